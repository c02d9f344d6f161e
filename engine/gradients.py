"""Gradients: those that an optimizer's parameters hold, and their scaling in place."""

from __future__ import annotations

import torch
from torch.optim import Optimizer


def parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    """All parameters of an optimizer."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def gradients(optimizer: Optimizer) -> list[torch.Tensor]:
    """The gradients that an optimizer's parameters hold."""
    return [each.grad for each in parameters(optimizer) if each.grad is not None]


def has_gradients(optimizer: Optimizer) -> bool:
    """Whether any parameter of the optimizer holds a gradient."""
    return any(each.grad is not None for group in optimizer.param_groups for each in group["params"])


def multiply(tensors: list[torch.Tensor], factor: float) -> None:
    """Multiplies tensors in place, together where they are dense."""
    dense = [each for each in tensors if each.layout == torch.strided]
    if dense:
        torch._foreach_mul_(dense, factor)
    for each in tensors:
        if each.layout != torch.strided:
            each.mul_(factor)
