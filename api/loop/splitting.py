"""Splitting: what of a batch goes into the model, what is the label, and how many samples there are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Callable, Tuple

import torch
from torch.nn.utils.rnn import PackedSequence

from deepepochs.engine import describe

LABELS = ("labels", "label", "targets", "target", "y")  # the names that models and data sets give to labels
Split = Callable[[Any], Tuple[Any, Any]]


def splitter(has_loss: bool, is_custom: bool) -> Split:
    """The function that splits a stage's batches into (batch_x, batch_y).

    Args:
        has_loss: a loss function needs a label: the last item of a tuple or list.
        is_custom: the step is the user's own and may take a batch of any type, which then is batch_x.
    """

    def split_labelled(batch: Any) -> tuple[Any, Any]:
        kind = type(batch)
        if kind is list or kind is tuple or isinstance(batch, (list, tuple)):
            size = len(batch)
            if size == 2:
                return batch[0], batch[1]
            if size > 2:
                return tuple(batch[:-1]), batch[-1]
        elif isinstance(batch, Mapping):
            return batch, None
        if is_custom:
            return batch, None
        raise ValueError(
            f"a batch must be a tuple or list (inputs..., label) or a dictionary of the model's arguments, "
            f"got {describe(batch)}; without a label leave `loss` out, for other batches write a step of your own"
        )

    def split_unlabelled(batch: Any) -> tuple[Any, Any]:
        if isinstance(batch, (list, tuple)) and not isinstance(batch, PackedSequence):
            if not batch:
                raise ValueError("a batch must hold at least one input for the model, got an empty one")
            return (batch[0] if len(batch) == 1 else tuple(batch)), None
        return batch, label_of(batch)

    return split_labelled if has_loss else split_unlabelled


def label_of(batch: Any) -> Any:
    """The label for metrics among the fields of a dictionary, where one has such a name; else None."""
    if not isinstance(batch, Mapping):
        return None
    found = [name for name in LABELS if name in batch]
    return batch[found[0]] if len(found) == 1 else None


def call_model(model: Callable[..., Any], batch_x: Any) -> Any:
    """Calls a model with one input, with several (tuple, list), or with the fields of a dictionary."""
    kind = type(batch_x)
    if kind is torch.Tensor:
        return model(batch_x)
    if kind is tuple or kind is list:
        return model(*batch_x)
    return model(**batch_x) if isinstance(batch_x, Mapping) else model(batch_x)


def infer_size(batch_x: Any) -> int:
    """The number of samples in a batch: the first dimension of its first tensor, else its length, else 1."""
    if isinstance(batch_x, torch.Tensor):
        return int(batch_x.shape[0]) if batch_x.ndim else 1
    if isinstance(batch_x, PackedSequence):
        return int(batch_x.batch_sizes[0])
    if isinstance(batch_x, Mapping):
        found = [each for each in batch_x.values() if isinstance(each, torch.Tensor) and each.ndim]
        return infer_size(found[0]) if found else infer_size(list(batch_x.values()))
    if isinstance(batch_x, (list, tuple)):
        return infer_size(batch_x[0]) if batch_x else 1
    return len(batch_x) if hasattr(batch_x, "__len__") else 1


def sizer(batch_size: Any) -> Callable[[Any, Any], int]:
    """The function (batch_x, batch_y) -> samples for a stage's batches.

    Args:
        batch_size: a whole number, such a function, or None: infer it.

    Raises:
        TypeError: `batch_size` is something else.
        ValueError: it is less than 1.
    """
    if batch_size is None:
        return lambda batch_x, batch_y: (
            batch_x.shape[0] if type(batch_x) is torch.Tensor and batch_x.ndim else infer_size(batch_x)
        )
    if isinstance(batch_size, Integral) and not isinstance(batch_size, bool):
        samples = int(batch_size)
        if samples < 1:
            raise ValueError(f"`batch_size` must be at least 1, got {samples}")
        return lambda batch_x, batch_y: samples
    if callable(batch_size):
        return checked_sizer(batch_size)
    raise TypeError(f"`batch_size` must be a whole number or a function (batch_x, batch_y) -> int, got {batch_size!r}")


def checked_sizer(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A user's function (batch_x, batch_y) -> samples, refused when it gives something else."""

    def size(batch_x: Any, batch_y: Any) -> Any:
        samples = function(batch_x, batch_y)
        if (type(samples) is int and samples >= 0) or is_count(samples):
            return samples
        raise ValueError(
            f"the `batch_size` function must return a number of at least 0, got {samples!r}; it must be finite"
        )

    return size


def is_count(samples: Any) -> bool:
    """Whether it is a finite number of at least 0; one on an accelerator is looked at when the stage ends."""
    if isinstance(samples, torch.Tensor):
        if samples.numel() != 1 or samples.is_complex() or samples.dtype == torch.bool:
            return False
        return not samples.is_cpu or is_count(samples.item())
    return isinstance(samples, Real) and not isinstance(samples, bool) and 0 <= float(samples) < math.inf
