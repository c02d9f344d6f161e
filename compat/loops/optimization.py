"""Stepping: one training batch, optimised by the trainer or by the module itself."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Callable

import torch

from ..optimizers import do_nothing
from ..overrides import MisconfigurationException
from .progress import Progress


class Closure:
    """A batch's step, zero_grad and backward, which the optimizer calls.

    Args:
        step: computes the loss.
        zero_grad: frees the gradients; None in the middle of an accumulation.
        backward: computes them.
        steps: batches in one update.
    """

    __slots__ = ("_backward", "_step", "_steps", "_zero_grad", "output")

    def __init__(
        self, step: Callable[[], Any], zero_grad: Callable[[], None] | None, backward: Callable[..., Any], steps: int
    ) -> None:
        self._step, self._zero_grad, self._backward, self._steps = step, zero_grad, backward, steps
        self.output: dict[str, Any] | None = None

    def __call__(self) -> torch.Tensor | None:
        with torch.enable_grad():
            loss, extra = parse_output(self._step())
            if loss is not None and self._steps > 1:
                loss = loss / self._steps
            kept = None if loss is None else loss.detach().clone()
            if self._zero_grad is not None:
                self._zero_grad()
            if loss is not None:
                self._backward(loss)
        self.output = {} if kept is None else {"loss": kept, **extra}
        return kept


def parse_output(returned: Any) -> tuple[torch.Tensor | None, dict[str, Any]]:
    """The loss that `training_step` returned, and what came with it.

    Raises:
        MisconfigurationException: it returned no loss in any known form.
    """
    if isinstance(returned, torch.Tensor):
        return returned, {}
    if isinstance(returned, Mapping):
        loss = returned.get("loss")
        if loss is None:
            raise MisconfigurationException(
                f"a dictionary that `training_step` returns needs the key 'loss', got {sorted(map(str, returned))}"
            )
        return loss, {key: value for key, value in returned.items() if key != "loss"}
    if returned is not None:
        raise MisconfigurationException(
            f"`training_step` must return the loss, a dictionary with 'loss', or None to skip the batch, "
            f"got {type(returned).__name__}"
        )
    return None, {}


class AutomaticOptimization:
    """Trains on a batch with the module's one optimizer.

    Args:
        trainer: who runs it.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.steps = Progress(("ready", "completed"))
        self.zero_grads = Progress(("ready", "completed", "started"))
        self._skip_backward = False

    def run(self, batch_idx: int, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """Trains on a batch.

        Args:
            batch_idx: its index.
            arguments: of `training_step`.

        Returns:
            The loss and what came with it; nothing where the step was skipped.
        """
        trainer = self._trainer
        optimizer = trainer.strategy.optimizers[0]
        begins = batch_idx % trainer.accumulate_grad_batches == 0
        closure = Closure(
            lambda: self._training_step(arguments),
            (lambda: self._zero_grad(batch_idx, optimizer)) if begins and not self._skip_backward else None,
            do_nothing_with if self._skip_backward else trainer.strategy.backward,
            trainer.accumulate_grad_batches,
        )
        if trainer.fit_loop._should_accumulate():
            with trainer.strategy.no_sync():
                closure()
        else:
            self.steps.ready()
            wrapped = trainer.strategy._lightning_optimizers[0]
            trainer.calls.module("optimizer_step", trainer.current_epoch, batch_idx, wrapped, closure)
            self.steps.completed()
        if closure.output is None:
            raise MisconfigurationException(
                "`optimizer_step` returned without calling its closure, which computes the gradients; call "
                "`optimizer.step(closure=optimizer_closure)`, or the closure alone to skip an update"
            )
        return closure.output

    def _training_step(self, arguments: tuple[Any, ...]) -> Any:
        trainer = self._trainer
        returned = trainer.strategy.run_step("training_step", *arguments)
        if returned is None:
            if trainer.world_size > 1:
                raise RuntimeError("on several processes `training_step` must not return None: the others would wait")
            warnings.warn("`training_step` returned None: this batch is skipped", stacklevel=2)
        return returned

    def _zero_grad(self, batch_idx: int, optimizer: Any) -> None:
        calls = self._trainer.calls
        self.zero_grads.ready()
        calls.both("on_before_zero_grad", optimizer)
        self.zero_grads.started()
        calls.module("optimizer_zero_grad", self._trainer.current_epoch, batch_idx, optimizer)
        self.zero_grads.completed()


class ManualOptimization:
    """Calls a module's `training_step` that steps its optimizers by itself.

    Args:
        trainer: who runs it.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.steps = Progress(("ready", "completed"))

    def run(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """Calls the step.

        Returns:
            What it returned, the loss without its graph.

        Raises:
            MisconfigurationException: it returned something else than a tensor, a dictionary or None.
        """
        strategy = self._trainer.strategy
        for optimizer in strategy._lightning_optimizers:
            optimizer._on_before_step, optimizer._on_after_step = self.steps.ready, self.steps.completed
        returned = strategy.run_step("training_step", *arguments)
        for optimizer in strategy._lightning_optimizers:
            optimizer._on_before_step = optimizer._on_after_step = do_nothing
        output: dict[str, Any] = {}
        if isinstance(returned, Mapping):
            output = dict(returned)
        elif isinstance(returned, torch.Tensor):
            output = {"loss": returned}
        elif returned is not None:
            raise MisconfigurationException(
                "in manual optimisation `training_step` must return a tensor, a dictionary or nothing, "
                f"got {type(returned).__name__}"
            )
        if "loss" in output:
            output["loss"] = output["loss"].detach()
        return output


def do_nothing_with(loss: torch.Tensor) -> None:
    """The backward of a step that has none."""
