"""Metric names, and several metrics as one."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Mapping
from typing import Any, Callable, Iterable, Sequence


def metric_name(metric: Any) -> str:
    """What a metric is called in results.

    Args:
        metric: a function (its `__name__`), a partial (that of its function), or an object (its class's);
            a torchmetrics collection names its members itself.
    """
    if isinstance(metric, functools.partial) and not hasattr(metric, "__name__"):
        return metric_name(metric.func)
    own = "" if type(metric).__name__ == "MetricCollection" else type(metric).__name__
    return str(getattr(metric, "__name__", own))


def is_stateful(metric: Any) -> bool:
    """Whether a metric is an object of torchmetrics, which accumulates by itself."""
    torchmetrics = sys.modules.get("torchmetrics")  # an object of it can only exist where it is imported
    return torchmetrics is not None and isinstance(metric, (torchmetrics.Metric, torchmetrics.MetricCollection))


def flatten(name: str, value: Any) -> dict[str, Any]:
    """A metric's value under its full name: dictionaries give name + key for each entry.

    Raises:
        ValueError: a value that is no dictionary has an empty name.
    """
    if isinstance(value, Mapping):
        flat: dict[str, Any] = {}
        for key, each in value.items():
            add_values(flat, flatten(f"{name}{key}", each))
        return flat
    if name == "":
        raise ValueError("a metric renamed to '' must return a dictionary, whose keys are then the names")
    return {name: value}


def add_values(known: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Adds results to others.

    Raises:
        ValueError: two of them have the same name.
    """
    for name, value in values.items():
        if name in known:
            raise ValueError(f"two metrics are named {name!r}; give one another name with @rename(...)")
        known[name] = value


class MetricSet:
    """Metric functions as one function: it passes its arguments on and returns every value under its full name.

    Args:
        metrics: the functions.
    """

    def __init__(self, metrics: Sequence[Callable[..., Any]]) -> None:
        self.metrics = list(metrics)

    def __call__(self, *data: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for metric in self.metrics:
            add_values(values, flatten(metric_name(metric), metric(*data)))
        return values


def combine(*groups: Any) -> list[Any]:
    """Joins lists of metrics; the same object counts once.

    Args:
        groups: each a metric, a list of metrics or None.

    Raises:
        TypeError: a metric cannot be called.
        ValueError: two different metrics have the same name, or one is called 'loss'.
    """
    chosen: list[Any] = []
    for group in groups:
        for metric in as_list(group):
            if not callable(metric):
                raise TypeError(f"`metrics` must hold functions (preds, targets) -> value, got {metric!r}")
            if not any(is_same(metric, each) for each in chosen):
                chosen.append(metric)
    names = [metric_name(metric) for metric in chosen]
    doubles = sorted({name for name in names if name and names.count(name) > 1})
    if doubles or "loss" in names:
        raise ValueError(
            f"metrics must have names of their own, got two named {doubles[0]!r}; use @rename(...)"
            if doubles
            else "a metric must not be named 'loss': that is the loss's own name; use @rename(...)"
        )
    return chosen


def copies(metrics: Sequence[Any]) -> list[Any]:
    """The same metrics, torchmetrics objects as objects of their own: the given ones are in use."""
    return [each.clone() if is_stateful(each) else each for each in metrics]


def is_same(one: Any, other: Any) -> bool:
    """Whether two metrics are the same object; a bound method is made anew each time it is looked up."""
    return one is other or (isinstance(one, types.MethodType) and isinstance(other, types.MethodType) and one == other)


def as_list(items: Any) -> list[Any]:
    """None as an empty list, a single object as a list of it, an iterable of objects as a list."""
    if items is None:
        return []
    if isinstance(items, (list, tuple, set)) or (isinstance(items, Iterable) and not is_stateful(items)):
        return list(items)
    return [items]
