"""Loops: Lightning's order of hooks, batches, updates and validations."""
