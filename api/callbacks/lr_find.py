"""LRFindCallback: raises the learning rate exponentially, watches the loss, and suggests a rate."""

from __future__ import annotations

import copy
import math
from typing import Any

from deepepochs.engine import load_rng_state, rng_state

from ..exceptions import CallbackException, StopLoopException
from ..plotting import figure_of
from ..protocols import Run
from .base import Callback

SMOOTHING, DIVERGENCE = 0.9, 4.0


class LRFindCallback(Callback):
    """A learning-rate range test (Smith 2017, https://arxiv.org/abs/1506.01186).

    It runs within a fit, stops it, and gives back weights, optimizers, generators and counters.

    Args:
        max_batch: how many updates.
        min_lr: the first learning rate.
        max_lr: the last one.
        opt_id: which optimizer; needed where there are several.

    Attributes:
        lrs: the learning rates that were tried.
        losses: the smoothed losses, one for each.
        suggestion: the rate where the loss falls most steeply; None before.
        figure: the curve, where matplotlib is installed; None before.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self, max_batch: int = 100, min_lr: float = 1e-6, max_lr: float = 5, opt_id: int | None = None
    ) -> None:
        super().__init__()
        if not isinstance(max_batch, int) or max_batch < 2:
            raise ValueError(f"`max_batch` must be a whole number of at least 2, got {max_batch!r}")
        if not 0 < min_lr < max_lr:
            raise ValueError(f"`min_lr` and `max_lr` must be positive and rising, got {min_lr!r} and {max_lr!r}")
        self.max_batch, self.min_lr, self.max_lr, self.opt_id = max_batch, min_lr, max_lr, opt_id
        self.lrs: list[float] = []
        self.losses: list[float] = []
        self.suggestion: float | None = None
        self.figure: Any = None
        self._mean = 0.0

    def on_before_fit(self, trainer: Run, epochs: int) -> None:
        """Notes what is to be given back."""
        if self.opt_id is None and len(trainer.opt) > 1:
            raise CallbackException(f"there are {len(trainer.opt)} optimizers: say which one with `opt_id`")
        self.lrs, self.losses, self._mean, self.suggestion = [], [], 0.0, None
        self._optimizer = trainer.opt[self.opt_id or 0]
        state = copy.deepcopy((trainer.engine.model_state(trainer.model), trainer.opt.state_dict(), rng_state()))
        counters = trainer.global_step, trainer.init_epoch, copy.deepcopy(trainer.history)
        trainer.cleanup.callback(self._give_back, trainer, state, counters)

    @staticmethod
    def _give_back(trainer: Run, state: Any, counters: Any) -> None:
        model_state, opt_state, generators = state
        trainer.engine.load_model_state(trainer.model, model_state)
        trainer.opt.load_state_dict(opt_state)
        load_rng_state(generators)
        trainer.global_step, trainer.init_epoch, trainer.history = counters

    def on_before_optimize(self, trainer: Run, optimize_index: int | None) -> None:
        """Sets the rate of the next update."""
        part = len(self.lrs) / (self.max_batch - 1)
        rate = self.min_lr * (self.max_lr / self.min_lr) ** part
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self.lrs.append(rate)

    def on_after_train_batch(self, trainer: Run, metrics: Any, batch_idx: int) -> None:
        """Notes the loss (a sync point), and stops at the end or when it diverges."""
        if len(self.losses) == len(self.lrs):
            return  # within an accumulation window
        if "loss" not in metrics:
            raise CallbackException("LRFindCallback watches 'loss', and the steps gave none")
        loss = float(trainer.engine.reduce(float(metrics["loss"]), "mean"))
        self._mean = SMOOTHING * self._mean + (1 - SMOOTHING) * loss
        self.losses.append(self._mean / (1 - SMOOTHING ** (len(self.losses) + 1)))
        diverges = not math.isfinite(loss) or self.losses[-1] > DIVERGENCE * min(self.losses)
        if diverges or len(self.lrs) >= self.max_batch:
            self._finish()
            raise StopLoopException(f"learning-rate test: {len(self.lrs)} updates, suggestion {self.suggestion}")

    def on_after_fit(self, trainer: Run) -> None:
        """Ends a test for which the epochs were too short."""
        if self.suggestion is None and self.losses:
            self._finish()

    def _finish(self) -> None:
        points = [(math.log(rate), loss) for rate, loss in zip(self.lrs, self.losses) if math.isfinite(loss)]
        points = points[len(points) // 10 :]  # the smoothed loss begins with single batches
        width = max(1, len(points) // 5)  # and single steps are noise
        slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(points, points[width:])]
        if slopes:
            steepest = slopes.index(min(slopes))
            self.suggestion = math.exp((points[steepest][0] + points[steepest + width][0]) / 2)
        try:
            self.figure = self._draw()
        except ImportError:  # the values are there without matplotlib
            self.figure = None

    def _draw(self) -> Any:
        figure = figure_of(6, 4)
        axes = figure.add_subplot()
        axes.plot(self.lrs[: len(self.losses)], self.losses)
        if self.suggestion is not None:
            axes.axvline(self.suggestion, linestyle="--", color="grey", label=f"suggestion {self.suggestion:.2e}")
            axes.legend()
        axes.set_xscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss, smoothed")
        return figure
