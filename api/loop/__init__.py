"""The loop: epochs, stages, tasks and steps: the way of a batch from a loader to its update."""
