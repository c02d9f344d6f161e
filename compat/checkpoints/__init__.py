"""Checkpoints: .ckpt files in Lightning's form, written and read."""
