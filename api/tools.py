"""Tools for scripts: names of runs and metrics, cutting and joining batches, sums by group."""

from __future__ import annotations

import secrets
import time
from typing import Any, Callable, Iterator, TypeVar

import torch

from deepepochs.engine import concatenate

Function = TypeVar("Function", bound=Callable[..., Any])


def make_runningid(task: Any = None, seed: Any = None, other_info: Any = None, time_precision: float = 1) -> str:
    """Makes a run's name from the time and what the run is about.

    Args:
        task: what is trained.
        seed: the seed.
        other_info: anything else.
        time_precision: the time's resolution, in parts of a second.

    Example:
        >>> make_runningid("digits", seed=1)  # doctest: +SKIP
        '1790000000-digits-1'
    """
    parts = [int(time.time() * time_precision), task, seed, other_info]
    return "-".join(str(part) for part in parts if part is not None)


def unique_id() -> str:
    """A run's default name: readable, sorted by time, and nobody else's, on other machines neither."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}"


def as_array(tensor: torch.Tensor) -> Any:
    """A tensor as a numpy array (a sync point); bfloat16, which numpy lacks, as float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()


def rename(newname: str) -> Callable[[Function], Function]:
    """Gives a metric function another name in results; '' leaves the keys of its dictionary alone.

    Example:
        >>> @rename("acc")
        ... def accuracy_of_batch(preds, targets): ...
    """

    def decorate(function: Function) -> Function:
        function.__name__ = newname
        return function

    return decorate


def batches(inputs: Any, batch_size: int) -> Iterator[Any]:
    """Cuts a tensor, or a list or tuple of tensors, into pieces along the first dimension.

    Args:
        inputs: (samples, ...) or several of these, equally long.
        batch_size: samples in a piece; the last may have fewer.

    Yields:
        A piece; a tuple of pieces for a list or tuple.

    Raises:
        ValueError: `batch_size` is less than 1, or the tensors' lengths differ.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1, got {batch_size}")
    several = isinstance(inputs, (list, tuple))
    lengths = {len(each) for each in inputs} if several else {len(inputs)}
    if len(lengths) != 1:
        raise ValueError(f"`inputs` must be equally long, got the lengths {[len(each) for each in inputs]}")
    for start in range(0, lengths.pop(), batch_size):
        piece = slice(start, start + batch_size)
        yield tuple([each[piece] for each in inputs]) if several else inputs[piece]


def concat(datas: Any) -> Any:
    """Joins the outputs of pieces along the first dimension; scalars are stacked.

    Args:
        datas: a list of tensors, or of tuples, lists or dictionaries of tensors.

    Raises:
        ValueError: the list is empty, or its elements' structures differ.
    """
    parts = list(datas)
    if not parts:
        raise ValueError("concat() needs at least one element, got an empty list")
    return concatenate(parts)


def groupby_apply(values: torch.Tensor, keys: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Reduces the rows that have the same key.

    Args:
        values: (rows, ...) float.
        keys: (rows,) in any order.
        reduction: 'mean' or 'sum'.

    Returns:
        (different keys, ...), in the order of the sorted keys.

    Raises:
        ValueError: `reduction` is unknown, or the lengths differ.

    Example:
        >>> groupby_apply(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 0, 1]))
        tensor([2., 2.])
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"`reduction` must be 'mean' or 'sum', got {reduction!r}")
    if len(values) != len(keys):
        raise ValueError(f"`values` and `keys` must be equally long, got {len(values)} and {len(keys)}")
    found, places, counts = keys.to(values.device).unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    sums: torch.Tensor = values.new_zeros((len(found), *values.shape[1:])).index_add_(0, places, values)
    if reduction == "sum":
        return sums
    means: torch.Tensor = sums / counts.to(values.dtype).reshape(-1, *[1] * (values.ndim - 1))
    return means
