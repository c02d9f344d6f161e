"""Precision: Lightning's names for it, and the steps of module and optimizer in it."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Iterator

import torch

from deepepochs.engine import Engine, map_nested

MIXED = {"32": "fp32", "16": "fp16", "bf16": "bf16"}  # by the part of Lightning's name before '-'
TRUE = {"64": torch.float64, "bf16": torch.bfloat16, "16": torch.float16}
NAMES = ["32-true", "16-mixed", "bf16-mixed", "64-true", "bf16-true", "16-true"]


def canonical(precision: Any) -> str:
    """Lightning's full name of a precision.

    Args:
        precision: such as 32, '32', 'bf16', 'bf16-mixed', '64-true', or None.

    Raises:
        ValueError: it is unknown.
    """
    name = "32-true" if precision is None else str(precision)
    name = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed", "64": "64-true"}.get(name, name)
    if name not in NAMES:
        raise ValueError(f"`precision` must be one of {NAMES} (or 32, 16, 'bf16', 64), got {precision!r}")
    return name


def engine_precision(name: str) -> str:
    """The engine's precision for a canonical name."""
    kind, how = name.split("-")
    return MIXED[kind] if how == "mixed" else "fp32"


class Precision:
    """Runs steps and updates in one precision.

    Args:
        name: the canonical name.
        engine: whose autocast and loss scale it uses.
        calls: finds the present run's hooks.
    """

    def __init__(self, name: str, engine: Engine, calls: Callable[[], Any]) -> None:
        self.precision = name
        self._engine, self._calls = engine, calls
        kind, how = name.split("-")
        self.dtype = TRUE.get(kind) if how == "true" else None
        self.is_plain = name == "32-true"

    @property
    def scaler(self) -> Any:
        """The GradScaler, None without a loss scale."""
        return self._engine.scaler

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:
        """The context of a step method."""
        if self.dtype is None:
            with self._engine.autocast(cache=False):
                yield
            return
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    def convert_module(self, module: torch.nn.Module) -> None:
        """Converts the weights, where the precision is theirs."""
        if self.dtype is not None:
            module.to(self.dtype)

    def convert_input(self, batch: Any) -> Any:
        """Converts a batch's floating-point tensors likewise."""
        if self.dtype is None:
            return batch

        def convert(leaf: Any) -> Any:
            is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            return leaf.to(self.dtype) if is_float else leaf

        return map_nested(convert, batch)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to run backward from."""
        scaled: torch.Tensor = loss if self.scaler is None else self.scaler.scale(loss)
        return scaled

    def optimizer_step(self, optimizer: Any, module: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Runs the closure, clips and updates."""
        if self.scaler is not None:
            return self._scaled_step(optimizer, module, closure, **kwargs)

        def compute() -> Any:
            result = closure()
            self._after_closure(optimizer, module)
            return result

        return optimizer.step(closure=compute, **kwargs)

    def _scaled_step(self, optimizer: Any, module: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError("LBFGS calls its closure several times, which '16-mixed' cannot scale; use 'bf16-mixed'")
        result = closure()
        skips = result is None and module.automatic_optimization  # the step was skipped: nothing to unscale
        if not skips:
            self.scaler.unscale_(optimizer)
        self._after_closure(optimizer, module)
        if skips:
            return result
        output = self.scaler.step(optimizer, **kwargs)
        self.scaler.update()
        return output

    def _after_closure(self, optimizer: Any, module: Any) -> None:
        calls, trainer = self._calls(), module.trainer
        calls.both("on_before_optimizer_step", optimizer)
        if module.automatic_optimization:
            calls.module(
                "configure_gradient_clipping",
                optimizer,
                gradient_clip_val=trainer.gradient_clip_val,
                gradient_clip_algorithm=trainer.gradient_clip_algorithm,
            )

    def clip_gradients(self, optimizer: Any, clip_val: float = 0.0, gradient_clip_algorithm: Any = "norm") -> None:
        """Clips an optimizer's gradients.

        Args:
            optimizer: whose.
            clip_val: the limit; 0 clips nothing.
            gradient_clip_algorithm: 'norm' or 'value'.
        """
        if clip_val <= 0:
            return
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        if str(getattr(gradient_clip_algorithm, "value", gradient_clip_algorithm)) == "value":
            torch.nn.utils.clip_grad_value_(parameters, clip_val)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, clip_val)

    def state_dict(self) -> dict[str, Any]:
        """The loss scale's state, empty without one."""
        return {} if self.scaler is None else dict(self.scaler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        if self.scaler is not None and state:
            self.scaler.load_state_dict(state)
