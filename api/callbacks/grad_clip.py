"""GradClipCallback: limits gradients between backward and update."""

from __future__ import annotations

from ..protocols import Run
from .base import Callback


class GradClipCallback(Callback):
    """Clips the unscaled gradients before each update.

    Args:
        max_value: the largest absolute value of an element, or the largest norm.
        norm_type: None clips each element; a positive number clips the joint norm of that order.

    Raises:
        ValueError: an argument is not positive.
    """

    def __init__(self, max_value: float, norm_type: float | None = None) -> None:
        super().__init__()
        if not max_value > 0:
            raise ValueError(f"`max_value` must be positive, got {max_value!r}")
        if norm_type is not None and not norm_type > 0:
            raise ValueError(f"`norm_type` must be None or a positive number, got {norm_type!r}")
        self.max_value = max_value
        self.norm_type = norm_type

    def on_before_optimize(self, trainer: Run, optimize_index: int | None) -> None:
        """Clips the gradients of the optimizers that are about to step."""
        chosen = trainer.opt if optimize_index is None else [trainer.opt[optimize_index]]
        optimizers = [each.opt for each in chosen]
        if self.norm_type is None:
            trainer.engine.clip_grad_value(optimizers, self.max_value)
        else:
            trainer.engine.clip_grad_norm(optimizers, self.max_value, self.norm_type)
