"""EarlyStopping: ends a fit that no longer improves, by Lightning's rules."""

from __future__ import annotations

import math
from typing import Any, Mapping

import torch

from ..overrides import sign_of
from .base import Callback

GOOD_ENOUGH, TOO_BAD, NO_PATIENCE, NOT_FINITE = 1, 2, 3, 4  # as Lightning's checkpoints number the reasons


class EarlyStopping(Callback):
    """Ends the fit when a logged metric has not improved for some checks.

    Args:
        monitor: the metric's name.
        min_delta: the least change that counts.
        patience: checks without improvement.
        verbose: whether it prints why it stopped.
        mode: 'min' or 'max'.
        strict: whether a missing metric is an error.
        check_finite: stops when the metric is NaN or infinite.
        stopping_threshold: stops as soon as the metric is better than this.
        divergence_threshold: stops as soon as the metric is worse than this.
        check_on_train_epoch_end: checks after the training epoch rather than the validation; None decides by the
            trainer's validation interval.

    Raises:
        MisconfigurationException: `mode` is neither.
    """

    def __init__(
        self,
        monitor: str,
        min_delta: float = 0.0,
        patience: int = 3,
        verbose: bool = False,
        mode: str = "min",
        strict: bool = True,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
        check_on_train_epoch_end: bool | None = None,
    ) -> None:
        self._sign = sign_of(mode)
        self.monitor, self.patience, self.verbose, self.mode = monitor, patience, verbose, mode
        self.min_delta, self.strict, self.check_finite = abs(min_delta), strict, check_finite
        self.stopping_threshold, self.divergence_threshold = stopping_threshold, divergence_threshold
        self._check_on_train_epoch_end = check_on_train_epoch_end
        self.wait_count = self.stopped_epoch = self.stopping_reason = 0
        self.stopping_reason_message: str | None = None
        self.best_score = torch.tensor(self._sign * math.inf)

    @property
    def state_key(self) -> str:
        """The name of its state in checkpoints, Lightning's."""
        return f"EarlyStopping{ {'monitor': self.monitor, 'mode': self.mode}!r}"

    def state_dict(self) -> dict[str, Any]:
        """The best score and the waiting."""
        names = ("wait_count", "stopped_epoch", "best_score", "patience", "stopping_reason", "stopping_reason_message")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        for name, value in state_dict.items():
            setattr(self, name, value)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Decides when to check."""
        if self._check_on_train_epoch_end is None:
            self._check_on_train_epoch_end = trainer.val_check_interval == 1.0 and trainer.check_val_every_n_epoch == 1

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Checks, if it is to check here."""
        if self._check_on_train_epoch_end and not self._must_skip(trainer):
            self._check(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Checks, if it is to check here."""
        if not self._check_on_train_epoch_end and not self._must_skip(trainer):
            self._check(trainer)

    def _must_skip(self, trainer: Any) -> bool:
        return bool(trainer.state.fn != "fit" or trainer.sanity_checking or trainer.fast_dev_run)

    def _check(self, trainer: Any) -> None:
        value = trainer.callback_metrics.get(self.monitor)
        if value is None:
            if self.strict:
                raise RuntimeError(
                    f"EarlyStopping follows {self.monitor!r}, which was not logged; "
                    f"there are {sorted(trainer.callback_metrics)}"
                )
            return
        self.stopping_reason, reason = self._judge(value.squeeze())
        if trainer.strategy.reduce_boolean_decision(self.stopping_reason > 0, all=False):
            trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
            self.stopping_reason_message = reason
            if reason and self.verbose:
                trainer.print(reason)

    def _judge(self, value: torch.Tensor) -> tuple[int, str | None]:
        """Lightning's number for why to stop, 0 for going on, and the reason in words."""
        score, sign = float(value), self._sign
        if self.check_finite and not math.isfinite(score):
            return NOT_FINITE, f"{self.monitor} is {score}: training stops"
        if self.stopping_threshold is not None and sign * score < sign * self.stopping_threshold:
            return GOOD_ENOUGH, f"{self.monitor} is {score:.6g}, better than {self.stopping_threshold}: training stops"
        if self.divergence_threshold is not None and sign * score > sign * self.divergence_threshold:
            return TOO_BAD, f"{self.monitor} is {score:.6g}, worse than {self.divergence_threshold}: training stops"
        best = self.best_score.to(value.device)
        if bool(sign * (value - sign * -self.min_delta) < sign * best):
            self.best_score, self.wait_count = value, 0
            return 0, None
        self.wait_count += 1
        if self.wait_count >= self.patience:
            return NO_PATIENCE, f"{self.monitor} has not improved for {self.wait_count} checks: training stops"
        return 0, None
