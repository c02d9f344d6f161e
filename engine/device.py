"""Devices: pick one by its name, move nested data to it."""

from __future__ import annotations

from typing import Any

import torch

from .nested import map_nested


def available_devices() -> list[str]:
    """The names of the devices this process can use."""
    names = ["cpu"] + [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [*names, "mps"] if torch.backends.mps.is_available() else names


def choose_device(device: str | torch.device | None, local_rank: int = 0) -> torch.device:
    """Turns what the user asked for into a device that is there.

    Args:
        device: a name such as 'cuda:1', a `torch.device`, or None: this rank's CUDA device if there is one, else 'cpu'.
        local_rank: this process's number on its machine; 'cuda' without an index means the device of that number.

    Returns:
        The device; for CUDA always with an index.

    Raises:
        TypeError: `device` is neither text nor a device.
        ValueError: `device` is unknown or not available.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if not isinstance(device, (str, torch.device)):
        raise TypeError(
            f"`device` must be a name such as 'cpu' or 'cuda:0', or a torch.device, got {type(device).__name__}; "
            "for several processes use launch() or torchrun, for mixed precision the argument `precision`"
        )
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise ValueError(_refusal(device)) from error
    if chosen.type == "cuda":
        if chosen.index is None:
            chosen = torch.device("cuda", local_rank)
        if chosen.index >= torch.cuda.device_count():
            raise ValueError(_refusal(chosen))
    elif chosen.type != "cpu":
        try:
            chosen = torch.empty(0, device=chosen).device
        except Exception as error:  # each backend has its own error for a device that is not there
            raise ValueError(_refusal(device)) from error
    return chosen


def _refusal(device: str | torch.device) -> str:
    return f"`device` must be one of {available_devices()}, got {str(device)!r}"


def move(data: Any, device: torch.device) -> Any:
    """Moves nested data to a device.

    Args:
        data: tensors, and objects with a method `to`, in any nesting of containers; everything else stays as it is.
            A `to` that gives None has moved its object in place.
        device: where to; copies of pinned memory to CUDA do not block the host.

    Returns:
        The same structure with the same container types.
    """

    def transfer(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=device.type == "cuda")
        if not _movable(leaf):
            return leaf
        moved = leaf.to(device)
        return leaf if moved is None else moved

    return map_nested(transfer, data, _movable)


def _movable(data: object) -> bool:
    return hasattr(data, "to")
