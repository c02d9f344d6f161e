"""The examples' models."""

from torch import nn


def mlp():
    """A small classifier of (1, 8, 8) images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
