"""Walk nested data: apply a function to each leaf and keep every container's type."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, Iterator

import torch


def is_tensor(data: object) -> bool:
    """Whether `data` is a tensor: the usual leaf."""
    return isinstance(data, torch.Tensor)


def map_nested(function: Callable[[Any], Any], data: Any, is_leaf: Callable[[object], bool] = is_tensor) -> Any:
    """Applies `function` to each leaf of nested data and rebuilds the containers around the results.

    Args:
        function: called with each leaf, and with everything that is not a container (None, str, numbers).
        data: tuples, lists, namedtuples, dataclasses and mappings of any depth and type.
        is_leaf: what counts as a leaf though it is a container, asked before it is opened.

    Returns:
        A new structure of the same types; the input is unchanged.

    Example:
        >>> map_nested(lambda leaf: leaf + 1, {"a": [1, 2]})
        {'a': [2, 3]}
    """
    kind = type(data)
    if kind is torch.Tensor or is_leaf(data):
        return function(data)
    if kind is tuple or kind is list:
        return kind([map_nested(function, item, is_leaf) for item in data])
    if kind is dict:
        return {key: map_nested(function, value, is_leaf) for key, value in data.items()}
    if isinstance(data, Mapping):
        return _map_mapping(function, data, is_leaf)
    if isinstance(data, (tuple, list)):
        return _map_sequence(function, data, is_leaf)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return _map_dataclass(function, data, is_leaf)
    return function(data)


def _map_sequence(function: Callable[[Any], Any], data: Any, is_leaf: Callable[[object], bool]) -> Any:
    items = [map_nested(function, item, is_leaf) for item in data]
    if isinstance(data, list):
        clone = copy.copy(data)  # keeps attributes of the user's class, whatever its constructor takes
        clone[:] = items
        return clone
    return type(data)(*items) if hasattr(data, "_fields") else type(data)(items)


def _map_mapping(function: Callable[[Any], Any], data: Any, is_leaf: Callable[[object], bool]) -> Any:
    mapped = {key: map_nested(function, value, is_leaf) for key, value in data.items()}
    if not isinstance(data, dict) and not hasattr(data, "__copy__"):
        return type(data)(mapped)  # a shallow copy would share its insides with the input
    clone = copy.copy(data)  # keeps a default factory, an order, attributes of the user's class
    for key, value in mapped.items():
        clone[key] = value
    return clone


def _map_dataclass(function: Callable[[Any], Any], data: Any, is_leaf: Callable[[object], bool]) -> Any:
    clone = copy.copy(data)
    for field in dataclasses.fields(data):
        value = map_nested(function, getattr(data, field.name), is_leaf)
        object.__setattr__(clone, field.name, value)  # also where the class is frozen
    return clone


def leaves(data: Any) -> Iterator[Any]:
    """Yields the leaves of nested data in order.

    Args:
        data: any nested data, see `map_nested`.
    """
    found: list[Any] = []
    map_nested(found.append, data)
    yield from found


def describe(data: Any) -> str:
    """The structure of nested data as a short text for error messages.

    Example:
        >>> describe((torch.zeros(2, 3), None))
        'tuple(Tensor(2, 3) float32, NoneType)'
    """
    if isinstance(data, torch.Tensor):
        return f"Tensor{tuple(data.shape)} {str(data.dtype)[6:]}"
    kind = type(data).__name__
    if isinstance(data, Mapping):
        return f"{kind}({', '.join(f'{key}: {describe(value)}' for key, value in data.items())})"
    if isinstance(data, (tuple, list)):
        return f"{kind}({', '.join(describe(item) for item in data[:8])}{', ...' if len(data) > 8 else ''})"
    return kind


def concatenate(parts: list[Any]) -> Any:
    """Joins equal structures along the tensors' first dimension; a scalar is a row of its own, also beside vectors.

    Args:
        parts: the structures, at least one; leaves that are not tensors become a list, None stays None.

    Returns:
        One structure of the same containers.

    Raises:
        ValueError: the parts' structures differ.
    """
    if all(type(part) is torch.Tensor for part in parts):
        return _join(parts)
    columns = [list(leaves(part)) for part in parts]
    if len({len(column) for column in columns}) != 1:
        kinds = sorted({describe(part) for part in parts})
        raise ValueError(f"only equal structures can be joined, got {kinds[0]} and {kinds[-1]}")
    rows = iter([_join(list(row)) for row in zip(*columns)])
    return map_nested(lambda _leaf: next(rows), parts[0])


def _join(row: list[Any]) -> Any:
    if isinstance(row[0], torch.Tensor):
        rows = [each if each.ndim else each.reshape(1) for each in row]
        return rows[0] if len(rows) == 1 else torch.cat(rows)
    return None if all(item is None for item in row) else row
