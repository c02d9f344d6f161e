"""Logged metrics: what callbacks, loggers and the progress bar can read, renewed after each batch and epoch."""

from __future__ import annotations

from typing import Any

import torch

from deepepochs.engine import map_nested


class Logged:
    """The metrics of a trainer.

    Args:
        trainer: whose loops' results are read.
        log_every_n_steps: how often batches' values go to the loggers; 0 means never.
    """

    def __init__(self, trainer: Any, log_every_n_steps: int) -> None:
        self._trainer = trainer
        self.every = log_every_n_steps
        self._current_fx: str | None = None  # the hook that logged last
        self._first_batch: bool | None = None  # None: between passes
        self.reset_metrics()

    # ---- what others read

    @property
    def callback_metrics(self) -> dict[str, torch.Tensor]:
        """By name, for callbacks and schedulers."""
        self._refresh("callback")
        return self._metrics["callback"]

    @property
    def logged_metrics(self) -> dict[str, torch.Tensor]:
        """By name, for loggers."""
        self._refresh("log")
        return self._metrics["log"]

    @property
    def progress_bar_metrics(self) -> dict[str, Any]:
        """By name, as numbers (a sync point)."""
        self._refresh("pbar")
        return {name: scalar(value) for name, value in self._metrics["pbar"].items()}

    def _refresh(self, kind: str) -> None:
        if self._trainer._results:
            self._metrics[kind].update(self._present()[kind])

    def _present(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self._trainer._results.metrics(self._first_batch is not None)
        return found

    def _take(self) -> dict[str, dict[str, Any]]:
        found = self._present()
        for kind, values in found.items():
            self._metrics[kind].update(values)
        return found

    def should_reset_tensors(self, fx: str) -> bool:
        """Whether a hook logs for the first time in this pass, so that an earlier pass's values must go."""
        return self._current_fx != fx and self._first_batch in (None, True)

    @property
    def should_update_logs(self) -> bool:
        """Whether the loggers get this batch's values."""
        trainer = self._trainer
        if self.every == 0:
            return False
        if trainer.training:
            step = trainer.fit_loop.epoch_loop._batches_that_stepped + 1
        elif trainer._active_loop is None:
            return True
        else:
            step = trainer._active_loop.batch_progress.current.ready
        return step % self.every == 0 or bool(trainer.should_stop)

    # ---- what loops tell

    def on_batch_start(self, batch: Any, dataloader_idx: int | None = None) -> None:
        """A batch begins."""
        self._first_batch = self._first_batch is None
        results = self._trainer._results
        results.batch, results.batch_size, results.dataloader_idx = batch, None, dataloader_idx

    def on_batch_end(self) -> None:
        """A batch's hooks are done."""
        results = self._trainer._results
        if results:
            self._take()
        results.batch = results.batch_size = None

    def end_pass(self) -> None:
        """The batches are over; what is logged from now on is of the epoch."""
        self._first_batch = None

    def on_epoch_end(self) -> None:
        """The epoch's hooks are done."""
        self._take()
        self._current_fx = None

    def update_train_step(self) -> None:
        """Sends a training batch's values to the loggers, when it is time."""
        trainer = self._trainer
        if not trainer.loggers or not trainer._results:
            return
        if trainer.fit_loop._should_accumulate() and trainer.lightning_module.automatic_optimization:
            return
        if self.should_update_logs or trainer.fast_dev_run:
            self.log_metrics(self._present()["log"])

    def update_train_epoch(self) -> None:
        """Sends a training epoch's values to the loggers and begins anew."""
        self.log_metrics(self._present()["log"])
        self.reset_results()

    def update_eval_step(self, step: int) -> None:
        """Sends an evaluation batch's values to the loggers."""
        if self._trainer.loggers and self._trainer._results:
            self.log_metrics(self._present()["log"], step=step)

    def take_eval_epoch(self) -> dict[str, Any]:
        """The values of one data loader's evaluation."""
        if self._trainer.sanity_checking:
            return {}
        return self._take()["log"]

    def log_eval_end(self, metrics: dict[str, Any]) -> None:
        """Sends an evaluation's values to the loggers."""
        if not self._trainer.sanity_checking:
            self.log_metrics(metrics)

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Sends values to all loggers (a sync point).

        Args:
            metrics: by name; one called 'step' says the step.
            step: the step; None takes the number of updates.
        """
        if not self._trainer.loggers or not metrics:
            return
        self._metrics["log"].update(metrics)
        values = {name: scalar(value) for name, value in metrics.items()}
        if step is None:
            given = values.pop("step", None)
            if given is None:
                values.setdefault("epoch", self._trainer.current_epoch)
                step = self._trainer.fit_loop.epoch_loop._batches_that_stepped
            else:
                step = int(given)
        for logger in self._trainer.loggers:
            logger.log_metrics(metrics=values, step=step)
            logger.save()

    def reset_metrics(self) -> None:
        """Forgets what is to be read."""
        self._metrics: dict[str, dict[str, Any]] = {"callback": {}, "log": {}, "pbar": {}}

    def reset_results(self) -> None:
        """Forgets what the running loop was given."""
        if self._trainer._results is not None:
            self._trainer._results.reset()
        self._first_batch = self._current_fx = None

    def teardown(self) -> None:
        """Moves what remains to the CPU."""
        self._metrics = map_nested(lambda leaf: leaf.cpu() if isinstance(leaf, torch.Tensor) else leaf, self._metrics)


def scalar(value: Any) -> Any:
    """A tensor of one element as a number, everything else as it is."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
