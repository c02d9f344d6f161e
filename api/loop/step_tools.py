"""StepTools: what step methods call, of a trainer and of a task alike."""

from __future__ import annotations

from typing import Any

from .step import Step


class StepTools:
    """`loss`, `optimize` and `do_metric` for step methods; they work while a stage runs."""

    def _tools(self) -> Step:
        """The tools of the stage that runs."""
        raise NotImplementedError

    def loss(
        self, model_out: Any, batch_y: Any, loss_adjust: float = 1.0, do_optimize: bool = True, do_metric: bool = True
    ) -> Any:
        """Computes the loss, in training also gradients and update; for use in step methods.

        Args:
            model_out: the model's output.
            batch_y: the label.
            loss_adjust: samples here / samples in the batch, where a step cuts the batch.
            do_optimize: whether to update (at the end of an accumulation window).
            do_metric: whether to hand loss and output over to the metrics.

        Returns:
            The loss, 0-dim; None in an evaluation without loss.
        """
        return self._tools().loss(model_out, batch_y, loss_adjust, do_optimize, do_metric)

    def optimize(self, optimize_index: int | None = None) -> None:
        """Updates the parameters with one optimizer or all (None), if the accumulation window ends here."""
        self._tools().optimize(optimize_index)

    def do_metric(self, loss: Any = None, model_out: Any = None, batch_y: Any = None) -> None:
        """Hands a whole batch's loss, output and label over to the metrics."""
        self._tools().do_metric(loss, model_out, batch_y)
