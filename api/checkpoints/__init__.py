"""Checkpoints: what a file holds, where files lie, and going on from them, within an epoch too."""
