"""Numeric precision: the autocast context, and the loss scale with what is pending of it."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Iterable

import torch

from .gradients import gradients, has_gradients, multiply

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Precision:
    """One precision on one device.

    Args:
        name: 'fp32', 'fp16' or 'bf16'.
        device: where the model is computed.

    Raises:
        ValueError: the name is unknown, or the device or this torch cannot compute in it.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in DTYPES:
            raise ValueError(f"`precision` must be one of {sorted(DTYPES)}, got {name!r}")
        if name == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise ValueError(f"`precision='bf16'` is not supported by {torch.cuda.get_device_name(device)}; use 'fp16'")
        self.name = name
        self.device = device
        self.scaler = make_scaler(device) if name == "fp16" else None
        self._plain: ContextManager[Any] = contextlib.nullcontext()
        self._spent: set[int] = set()  # ids of the optimizers that stepped since the scale's last update

    def autocast(self, cache: bool = True) -> ContextManager[Any]:
        """The context for forward and loss; one that does nothing in fp32.

        Args:
            cache: whether a weight that is used twice is cast once.
        """
        if self.name == "fp32":
            return self._plain
        return torch.autocast(self.device.type, dtype=DTYPES[self.name], cache_enabled=cache)

    def backward(self, loss: torch.Tensor, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Scales the loss and runs backward outside autocast.

        Args:
            loss: a scalar.
            optimizers: all that may hold gradients of the present scale.
        """
        if self._spent:
            self._update_between(optimizers)
        with torch.autocast(self.device.type, enabled=False):
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> bool:
        """Divides the optimizer's gradients by the scale, once a window.

        Returns:
            Whether all of them are finite (a sync point). Without a scaler, True.
        """
        if self.scaler is None or not has_gradients(optimizer):
            return True
        if not self._is_unscaled(id(optimizer)):
            self.scaler.unscale_(optimizer)
        found: dict[Any, torch.Tensor] = self.scaler._found_inf_per_device(optimizer)
        return not any(flag.item() for flag in found.values())

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Steps the optimizer unless its gradients overflowed.

        Returns:
            Whether it stepped.
        """
        if self.name == "fp32":
            optimizer.step()
            return True
        torch.clear_autocast_cache()  # it holds casts of the weights that this step changes
        with torch.autocast(self.device.type, enabled=False):  # a step method calls this inside autocast
            return self._step(optimizer)

    def _step(self, optimizer: torch.optim.Optimizer) -> bool:
        if self.scaler is None:
            optimizer.step()
            return True
        if not has_gradients(optimizer):
            return False
        finite = self.unscale(optimizer)
        self.scaler.step(optimizer)
        self._spent.add(id(optimizer))
        return finite

    def skip(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes that an optimizer is done with its gradients without a step: the scale must move all the same."""
        if self.scaler is not None:
            self._spent.add(id(optimizer))

    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        """Forgets what is noted about an optimizer: another one may get its id."""
        self._spent.discard(id(optimizer))
        if self.scaler is not None:
            self.scaler._per_optimizer_states.pop(id(optimizer), None)

    def update(self) -> None:
        """Moves the scale, if gradients of any optimizer were unscaled since it was moved last."""
        self._spent.clear()
        if self.scaler is not None and any(map(self._is_unscaled, list(self.scaler._per_optimizer_states))):
            self.scaler.update()

    def _is_unscaled(self, identity: int) -> bool:
        assert self.scaler is not None
        return bool(self.scaler._per_optimizer_states[identity]["found_inf_per_device"])

    def _update_between(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Moves the scale before another backward; gradients that wait for their optimizer follow it."""
        assert self.scaler is not None
        waiting = [each for each in optimizers if id(each) not in self._spent and has_gradients(each)]
        before = self.scaler.get_scale()
        held = [1.0 if self._is_unscaled(id(each)) else before for each in waiting]
        self.update()
        scale = self.scaler.get_scale()
        for optimizer, present in zip(waiting, held):
            if scale != present:
                multiply(gradients(optimizer), scale / present)

    def drop(self) -> None:
        """Forgets what an interrupted window left: the scale itself stays."""
        self._spent.clear()
        if self.scaler is not None and self.scaler._scale is not None:
            self.scaler.update(self.scaler.get_scale())

    def state_dict(self) -> dict[str, Any]:
        """The scaler's state; empty without one."""
        if self.scaler is None:
            return {}
        if self._spent:
            self.update()
        return dict(self.scaler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the scaler's state; an empty one, as other precisions write it, changes nothing."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)


def make_scaler(device: torch.device) -> Any:
    """A GradScaler for the device.

    Raises:
        ValueError: this torch has none for it.
    """
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler(device.type)
    if device.type == "cuda":
        return torch.cuda.amp.GradScaler()
    raise ValueError(f"`precision='fp16'` on {device.type} needs torch >= 2.3, this is {torch.__version__}; use 'bf16'")
