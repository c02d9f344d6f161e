"""Batches: how many samples one holds, as `self.log` must know for means."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Iterator

import torch

from ..overrides import MisconfigurationException


def sizes(batch: Any) -> Iterator[int]:
    """The first dimension of each tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        yield batch.size(0) if batch.ndim else 1
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from sizes(value)
    elif isinstance(batch, Iterable) and not isinstance(batch, (str, bytes)):
        for value in batch:
            yield from sizes(value)
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for field in dataclasses.fields(batch):
            yield from sizes(getattr(batch, field.name))


def batch_size(batch: Any) -> int:
    """The number of samples in a batch: the first dimension of its first tensor.

    Raises:
        MisconfigurationException: it holds no tensor.
    """
    found: int | None = None
    try:
        for size in sizes(batch):
            if found is not None and size != found:
                warnings.warn(
                    f"the batch's size is ambiguous, {found} is taken; say it: `self.log(..., batch_size=n)`",
                    stacklevel=2,
                )
                break
            found = size
    except RecursionError as error:
        raise RecursionError("the batch holds itself, its size cannot be found") from error
    if found is None:
        raise MisconfigurationException(
            f"the samples of a batch of type {type(batch).__name__} cannot be counted; "
            "say `self.log(..., batch_size=n)`"
        )
    return found
