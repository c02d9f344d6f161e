"""Updates: what happens to the gradients at a window's end: clipped, spent or skipped, and freed."""

from __future__ import annotations

from typing import Sequence

import torch
from torch.optim import Optimizer

from .accumulation import Window
from .clipping import clip_norm, clip_value
from .gradients import gradients, multiply
from .precision import Precision


def rescale(optimizers: Sequence[Optimizer], factor: float) -> None:
    """Multiplies the gradients of optimizers, once each, also where these share parameters."""
    held = {id(grad): grad for optimizer in optimizers for grad in gradients(optimizer)}
    multiply(list(held.values()), factor)


class Updates:
    """The updates of prepared optimizers, each at its window's end.

    Args:
        precision: unscales and steps.
        window: says where an update is due.
        optimizers: the prepared ones; the list grows with them.

    Attributes:
        skipped: ids of the optimizers that joint clipping has left out: their next step in this window does nothing.
    """

    def __init__(self, precision: Precision, window: Window, optimizers: list[Optimizer]) -> None:
        self._precision, self._window, self._optimizers = precision, window, optimizers
        self.skipped: set[int] = set()

    def clip_norm(
        self, optimizers: Optimizer | Sequence[Optimizer], max_norm: float, norm_type: float
    ) -> torch.Tensor | None:
        """Clips the joint norm of the unscaled gradients, see `Engine.clip_grad_norm`."""
        if not self._window.closes:
            return None
        chosen = [optimizers] if isinstance(optimizers, Optimizer) else list(optimizers)
        finite = [self._precision.unscale(each) for each in chosen]
        norm, skipped = clip_norm(chosen, finite, max_norm, norm_type)
        self.skipped.difference_update(id(each) for each in chosen)
        self.skipped.update(id(each) for each in skipped)
        return norm

    def clip_value(self, optimizers: Optimizer | Sequence[Optimizer], max_value: float) -> None:
        """Clips each element of the unscaled gradients, see `Engine.clip_grad_value`."""
        if self._window.closes:
            for each in [optimizers] if isinstance(optimizers, Optimizer) else optimizers:
                if self._precision.unscale(each):
                    clip_value(each, max_value)

    def step(self, optimizer: Optimizer) -> bool:
        """Updates one optimizer's parameters and frees its gradients, see `Engine.step`."""
        return self.step_all([optimizer])[0]

    def step_all(self, optimizers: Sequence[Optimizer]) -> list[bool]:
        """Updates several optimizers' parameters before it frees the gradients, see `Engine.step_all`."""
        if self._window.steps > 1:
            for optimizer in optimizers:
                self._check_prepared(optimizer)
        if not self._window.closes:
            return [False] * len(optimizers)
        changed = [self._step_one(optimizer) for optimizer in optimizers]
        for optimizer in optimizers:
            optimizer.zero_grad()
        return changed

    def _step_one(self, optimizer: Optimizer) -> bool:
        if id(optimizer) in self.skipped:
            self.skipped.discard(id(optimizer))
            self._precision.skip(optimizer)
            return False
        return self._precision.step(optimizer)

    def _check_prepared(self, optimizer: Optimizer) -> None:
        if optimizer not in self._optimizers:
            raise RuntimeError(
                f"{type(optimizer).__name__} is not prepared: its gradients would miss the window's weights; "
                "pass it to prepare() first"
            )
        window = self._window
        if window.is_open and window.closes and not window.is_trained:
            window.leave_out()  # this is the update of what earlier micro-batches left

    def forget(self, optimizer: Optimizer) -> None:
        """Lets go of a prepared optimizer and of what is noted about it."""
        self._optimizers[:] = [each for each in self._optimizers if each is not optimizer]
        self.skipped.discard(id(optimizer))
        self._precision.forget(optimizer)

    def end_window(self) -> None:
        """Moves the loss scale by what the window's gradients were; the next window's optimizers all step."""
        self._precision.update()
        self.skipped.clear()

    def drop(self) -> None:
        """Frees the gradients that the optimizers hold, and forgets what was to be done with them."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        self._precision.drop()
        self.skipped.clear()
