"""Clipping of gradients that are unscaled: by value, or by their joint norm."""

from __future__ import annotations

from typing import Sequence

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer

from .gradients import gradients, parameters


def clip_value(optimizer: Optimizer, max_value: float) -> None:
    """Clips each element of an optimizer's gradients to [-max_value, max_value]."""
    clip_grad_value_(_clippable(optimizer), max_value)


def clip_norm(
    optimizers: Sequence[Optimizer], finite: Sequence[bool], max_norm: float, norm_type: float
) -> tuple[torch.Tensor, list[Optimizer]]:
    """Clips the joint norm over the optimizers whose gradients are finite.

    Args:
        optimizers: whose gradients.
        finite: what is known already about each: False after an overflow of the loss scale.
        max_norm: the largest norm allowed.
        norm_type: the order of the norm.

    Returns:
        The joint norm before, 0-dim; and the optimizers left out of it, which must not step.
        A single optimizer is never left out: without a loss scale its inf or NaN stays in sight.
    """
    if len(optimizers) > 1:
        finite = [known and all_finite(each) for known, each in zip(finite, optimizers)]
    kept = [each for good, each in zip(finite, optimizers) if good]
    norm = clip_grad_norm_([tensor for each in kept for tensor in _clippable(each)], max_norm, norm_type)
    return norm, [each for good, each in zip(finite, optimizers) if not good]


def _clippable(optimizer: Optimizer) -> list[torch.Tensor]:
    """The parameters; for a sparse gradient, which torch does not clip, a stand-in that holds its values."""
    found = []
    for each in parameters(optimizer):
        if each.grad is not None and each.grad.is_sparse:
            each.grad = each.grad.coalesce()
            values = each.grad._values()
            each = values.detach()  # the same memory: what is clipped there is clipped in the gradient
            each.grad = values
        found.append(each)
    return found


def all_finite(optimizer: Optimizer) -> bool:
    """Whether an optimizer's gradients hold neither inf nor NaN (a sync point)."""
    flags = [
        torch.isfinite(each.coalesce().values() if each.is_sparse else each).all() for each in gradients(optimizer)
    ]
    return not flags or bool(torch.stack([flag.to(flags[0].device) for flag in flags]).all().item())
