"""Callbacks: learning-rate logs, a limit of time, a summary, a line an epoch."""

from __future__ import annotations

import time
from typing import Any, Mapping

import torch

from ..overrides import MisconfigurationException
from .base import Callback


class LearningRateMonitor(Callback):
    """Logs learning rates.

    Args:
        logging_interval: 'step', 'epoch', or None: as each scheduler moves.
        log_momentum: whether momenta are logged too.
    """

    def __init__(self, logging_interval: str | None = None, log_momentum: bool = False) -> None:
        if logging_interval not in (None, "step", "epoch"):
            raise MisconfigurationException(
                f"`logging_interval` must be 'step', 'epoch' or None, got {logging_interval!r}"
            )
        self.logging_interval, self.log_momentum = logging_interval, log_momentum

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuses to log to nowhere.

        Raises:
            MisconfigurationException: the trainer has no logger.
        """
        if not trainer.loggers:
            raise MisconfigurationException("LearningRateMonitor needs a logger; pass `logger=True`, or leave it out")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Logs those that move with the updates."""
        if self.logging_interval != "epoch" and trainer.logged.should_update_logs:
            self._log(trainer, "step" if self.logging_interval is None else "any")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Logs those that move with the epochs."""
        if self.logging_interval != "step":
            self._log(trainer, "epoch" if self.logging_interval is None else "any")

    def _log(self, trainer: Any, interval: str) -> None:
        rates = self._read(trainer, interval)
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        if rates:
            for logger in trainer.loggers:
                logger.log_metrics(rates, step=step)
            trainer.callback_metrics.update({name: torch.tensor(rate) for name, rate in rates.items()})

    def _read(self, trainer: Any, interval: str) -> dict[str, float]:
        found: dict[str, float] = {}
        seen: list[Any] = []
        counts: dict[type, int] = {}
        for config in trainer.lr_scheduler_configs:
            names = group_names(config.scheduler.optimizer, config.name, counts)
            seen.append(config.scheduler.optimizer)
            if interval in (config.interval, "any"):
                self._add(found, names, config.scheduler.optimizer)
        for optimizer in trainer.optimizers:
            if not any(optimizer is each for each in seen):
                self._add(found, group_names(optimizer, None, counts), optimizer)
        return found

    def _add(self, found: dict[str, float], names: list[str], optimizer: Any) -> None:
        for name, group in zip(names, optimizer.param_groups):
            found[name] = group["lr"]
            if self.log_momentum:
                found[f"{name}-momentum"] = group["betas"][0] if "betas" in group else group.get("momentum", 0)


def group_names(optimizer: Any, name: str | None, counts: dict[type, int]) -> list[str]:
    """The names under which an optimizer's groups are logged.

    Args:
        optimizer: whose groups.
        name: its scheduler's, None for none.
        counts: how many nameless ones there were of each class; it is counted here.

    Raises:
        MisconfigurationException: two groups have one name.
    """
    kind, groups = type(optimizer), optimizer.param_groups
    if name is None:
        counts[kind] = counts.get(kind, 0) + 1
    name = name or f"lr-{kind.__name__}"
    if counts.get(kind, 0) > 1:
        name = f"{name}-{counts[kind] - 1}"
    own = [group.get("name") for group in groups]
    if len(groups) == 1:
        return [f"{name}/{own[0]}" if own[0] else name]
    told = [each or f"pg{index}" for index, each in enumerate(own, 1)]
    if len(set(told)) < len(told):
        raise MisconfigurationException(f"two parameter groups of {kind.__name__} have one name: {told}")
    return [f"{name}/{each}" for each in told]


class Timer(Callback):
    """Ends the fit after a time; a fit that goes on from a checkpoint has spent what that one had.

    Args:
        duration_s: in seconds.
    """

    def __init__(self, duration_s: float) -> None:
        self.duration_s = duration_s
        self._spent_s = 0.0
        self._since: float | None = None

    def time_elapsed(self) -> float:
        """Seconds of training so far."""
        return self._spent_s + (0.0 if self._since is None else time.monotonic() - self._since)

    def state_dict(self) -> dict[str, Any]:
        """The time spent, in Lightning's form."""
        return {"time_elapsed": {"train": self.time_elapsed()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        self._spent_s = state_dict.get("time_elapsed", {}).get("train", 0.0)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Looks whether any time is left."""
        self._check(trainer)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Starts the clock."""
        self._since = time.monotonic()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stops it."""
        self._spent_s, self._since = self.time_elapsed(), None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Asks for the end once the time is over."""
        self._check(trainer)

    def _check(self, trainer: Any) -> None:
        is_over = trainer.strategy.broadcast(self.time_elapsed() >= self.duration_s)
        trainer.should_stop = trainer.should_stop or is_over


class ModelSummary(Callback):
    """Prints how many parameters a module has."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Prints it."""
        if trainer.is_global_zero:
            parameters = list(pl_module.parameters())
            total = sum(each.numel() for each in parameters)
            trained = sum(each.numel() for each in parameters if each.requires_grad)
            print(f"{type(pl_module).__name__}: {total:,} parameters, {trained:,} of them trained")


class ProgressBar(Callback):
    """Prints an epoch's metrics when it ends, on one line."""

    is_enabled = True

    def print(self, *values: Any, **options: Any) -> None:
        """Prints beside the progress."""
        print(*values, **options)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Prints them."""
        if trainer.is_global_zero:
            metrics = {**trainer.progress_bar_metrics}
            told = "  ".join(f"{name}: {value:.6g}" for name, value in metrics.items() if isinstance(value, float))
            print(f"epoch {trainer.current_epoch + 1}, update {trainer.global_step}  {told}".rstrip())
