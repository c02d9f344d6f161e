"""Callbacks: early stopping, checkpoints, learning-rate logs, a progress bar, by Lightning's names and rules."""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path
from typing import Any, Mapping

import torch

from .callback import Callback
from .shape import MisconfigurationException


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
        self.wait_count = self.stopped_epoch = 0
        self.best_score = torch.tensor(self._sign * math.inf)

    @property
    def state_key(self) -> str:
        """The name of its state in checkpoints, Lightning's."""
        return f"EarlyStopping{ {'monitor': self.monitor, 'mode': self.mode}!r}"

    def state_dict(self) -> dict[str, Any]:
        """The best score and the waiting."""
        names = ("wait_count", "stopped_epoch", "best_score", "patience")
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
        reason = self._judge(value.squeeze())
        if trainer.strategy.reduce_boolean_decision(reason is not None, all=False):
            trainer.should_stop = True
            self.stopped_epoch = trainer.current_epoch
            if reason and self.verbose:
                trainer.print(reason)

    def _judge(self, value: torch.Tensor) -> str | None:
        """Why to stop, None for going on."""
        score, sign = float(value), self._sign
        if self.check_finite and not math.isfinite(score):
            return f"{self.monitor} is {score}: training stops"
        if self.stopping_threshold is not None and sign * score < sign * self.stopping_threshold:
            return f"{self.monitor} is {score:.6g}, better than {self.stopping_threshold}: training stops"
        if self.divergence_threshold is not None and sign * score > sign * self.divergence_threshold:
            return f"{self.monitor} is {score:.6g}, worse than {self.divergence_threshold}: training stops"
        best = self.best_score.to(value.device)
        if bool(sign * (value - sign * -self.min_delta) < sign * best):
            self.best_score, self.wait_count = value, 0
            return None
        self.wait_count += 1
        if self.wait_count >= self.patience:
            return f"{self.monitor} has not improved for {self.wait_count} checks: training stops"
        return None


class Checkpoint(Callback):
    """Base of callbacks that write checkpoints: the trainer calls them last."""


class ModelCheckpoint(Checkpoint):
    """Writes .ckpt files.

    Args:
        dirpath: where; None means the logger's directory, or the trainer's.
        filename: with metrics in braces, as '{epoch}-{val_loss:.2f}'; None means '{epoch}-{step}'.
        monitor: the metric that decides which files stay; None keeps the newest.
        verbose: whether it prints what it writes.
        save_last: whether the newest is there as 'last.ckpt' too.
        save_top_k: so many best ones stay; -1 all, 0 none.
        save_weights_only: leaves optimizers, schedulers and callbacks out.
        mode: 'min' or 'max'.
        auto_insert_metric_name: whether file names hold the metrics' names.
        every_n_train_steps: writes every so many updates.
        every_n_epochs: writes every so many epochs.
        save_on_train_epoch_end: writes after the training epoch rather than the validation; None decides by the
            trainer's validation interval.

    Raises:
        MisconfigurationException: arguments are out of their range or contradict each other.
    """

    def __init__(
        self,
        dirpath: Any = None,
        filename: str | None = None,
        monitor: str | None = None,
        verbose: bool = False,
        save_last: bool | None = None,
        save_top_k: int = 1,
        save_weights_only: bool = False,
        mode: str = "min",
        auto_insert_metric_name: bool = True,
        every_n_train_steps: int | None = None,
        every_n_epochs: int | None = None,
        save_on_train_epoch_end: bool | None = None,
    ) -> None:
        if save_top_k < -1 or (monitor is None and save_top_k not in (-1, 0, 1)):
            raise MisconfigurationException(f"`save_top_k={save_top_k}` needs `monitor`, or must be -1, 0 or 1")
        if every_n_train_steps and every_n_epochs:
            raise MisconfigurationException("pass `every_n_train_steps` or `every_n_epochs`, not both")
        self._sign = sign_of(mode)
        self.dirpath = None if dirpath is None else os.path.abspath(os.path.expanduser(os.fspath(dirpath)))
        self.filename, self.monitor, self.verbose, self.mode = filename, monitor, verbose, mode
        self.save_last, self.save_top_k, self.save_weights_only = save_last, save_top_k, save_weights_only
        self.auto_insert_metric_name = auto_insert_metric_name
        self._every_n_train_steps = every_n_train_steps or 0
        self._every_n_epochs = every_n_epochs or (0 if every_n_train_steps else 1)
        self._save_on_train_epoch_end = save_on_train_epoch_end
        self.best_k_models: dict[str, torch.Tensor] = {}
        self.best_model_path = self.last_model_path = self.kth_best_model_path = ""
        self.best_model_score: torch.Tensor | None = None
        self.current_score: torch.Tensor | None = None
        self.kth_value = torch.tensor(self._sign * math.inf)
        self._last_global_step_saved, self._has_written = 0, False

    @property
    def state_key(self) -> str:
        """The name of its state in checkpoints, Lightning's."""
        told = {
            "monitor": self.monitor,
            "mode": self.mode,
            "every_n_train_steps": self._every_n_train_steps,
            "every_n_epochs": self._every_n_epochs,
            "train_time_interval": None,
        }
        return f"ModelCheckpoint{told!r}"

    def state_dict(self) -> dict[str, Any]:
        """Which files there are and how good they are."""
        names = "monitor best_model_score best_model_path current_score dirpath best_k_models kth_best_model_path"
        return {name: getattr(self, name) for name in (*names.split(), "kth_value", "last_model_path")}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave, if its files are in the same directory."""
        self.best_model_path = state_dict["best_model_path"]
        if self.dirpath == state_dict.get("dirpath", self.dirpath):
            for name in ("best_model_score", "best_k_models", "kth_best_model_path", "kth_value", "last_model_path"):
                setattr(self, name, state_dict.get(name, getattr(self, name)))

    # ---- when

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Decides where to write."""
        if self.dirpath is None:
            logger = trainer.logger
            base = trainer.default_root_dir
            if logger is not None:
                version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
                base = os.path.join(logger.save_dir or base, str(logger.name), version)
            self.dirpath = trainer.strategy.broadcast(os.path.join(base, "checkpoints"))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Writes every so many updates."""
        every = self._every_n_train_steps
        if every and trainer.global_step % every == 0 and not self._must_skip(trainer):
            self._save(trainer)
            self._save_last(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Writes every so many epochs, if it is to write here."""
        if self._saves_after_training(trainer):
            self._save_epoch(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Writes every so many epochs, if it is to write here."""
        if not self._saves_after_training(trainer):
            self._save_epoch(trainer)

    def _save_epoch(self, trainer: Any) -> None:
        every = self._every_n_epochs
        if every and (trainer.current_epoch + 1) % every == 0 and not self._must_skip(trainer):
            self._save(trainer)
            if self._last_global_step_saved == trainer.global_step:  # not where it was too bad to be kept
                self._save_last(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Writes the last one, if nothing has been written."""
        if not self._has_written:
            self._save_last(trainer)

    def _must_skip(self, trainer: Any) -> bool:
        is_other = trainer.fast_dev_run or trainer.state.fn != "fit" or trainer.sanity_checking
        return bool(is_other) or self._last_global_step_saved == trainer.global_step

    def _saves_after_training(self, trainer: Any) -> bool:
        if self._save_on_train_epoch_end is not None:
            return self._save_on_train_epoch_end
        validates = trainer.enable_validation and sum(trainer.num_val_batches) > 0
        if trainer.check_val_every_n_epoch != 1 or trainer._val_check_time_interval is not None:
            return False
        return not validates or trainer.val_check_interval == 1.0

    # ---- what

    def _save(self, trainer: Any) -> None:
        metrics = dict(trainer.callback_metrics)
        metrics["epoch"] = torch.tensor(trainer.current_epoch)
        metrics["step"] = torch.tensor(trainer.global_step)
        if self.save_top_k != 0:
            if self.monitor is None:
                self._save_newest(trainer, metrics)
            else:
                self._save_best(trainer, metrics)

    def _save_last(self, trainer: Any) -> None:
        if self.save_last:
            self.last_model_path = self._free("last", self.last_model_path)
            self._write(trainer, self.last_model_path)

    def _save_newest(self, trainer: Any, metrics: Mapping[str, Any]) -> None:
        previous, path = self.best_model_path, self._path(metrics, free_of=self.best_model_path)
        self._write(trainer, path)
        self.best_model_path = path
        if self.save_top_k == 1 and previous and previous != path:
            trainer.strategy.remove_checkpoint(previous)

    def _save_best(self, trainer: Any, metrics: Mapping[str, Any]) -> None:
        if self.monitor is None or self.monitor not in metrics:
            raise MisconfigurationException(
                f"ModelCheckpoint follows {self.monitor!r}, which was not logged; there are {sorted(metrics)}"
            )
        score = metrics[self.monitor]
        sign = self._sign
        score = torch.tensor(sign * math.inf) if bool(torch.isnan(score)) else score
        is_full = self.save_top_k != -1 and len(self.best_k_models) >= self.save_top_k
        worst = self.best_k_models.get(self.kth_best_model_path)
        is_better = not is_full or worst is None or bool(sign * score < sign * worst)
        if not trainer.strategy.reduce_boolean_decision(is_better):
            return
        dropped = self.kth_best_model_path if is_full else ""
        if dropped:
            self.best_k_models.pop(dropped)
        path = self._path(metrics, free_of=dropped)
        self.current_score = self.best_k_models[path] = score
        ranked = sorted(self.best_k_models, key=lambda each: float(sign * self.best_k_models[each]))
        self.best_model_path, self.best_model_score = ranked[0], self.best_k_models[ranked[0]]
        if self.save_top_k != -1 and len(ranked) == self.save_top_k:
            self.kth_best_model_path, self.kth_value = ranked[-1], self.best_k_models[ranked[-1]]
        self._write(trainer, path)
        if dropped and dropped != path:
            trainer.strategy.remove_checkpoint(dropped)

    def _write(self, trainer: Any, path: str) -> None:
        trainer.save_checkpoint(path, self.save_weights_only)
        self._last_global_step_saved, self._has_written = trainer.global_step, True
        if self.verbose:
            trainer.print(f"saved {path}")

    def _path(self, metrics: Mapping[str, Any], free_of: str) -> str:
        return self._free(self.format(metrics), free_of)

    def _free(self, name: str, free_of: str) -> str:
        """A path that no other file has; one that this callback wrote before may be written again."""
        folder, version = Path(self.dirpath or ""), 1
        path = folder / f"{name}.ckpt"
        while path.exists() and str(path) != free_of:
            path = folder / f"{name}-v{version}.ckpt"
            version += 1
        return str(path)

    def format(self, metrics: Mapping[str, Any]) -> str:
        """The file's name without its ending."""
        name = self.filename or "{epoch}-{step}"

        def fill(found: re.Match[str]) -> str:
            key, form = found.group(1), found.group(2) or ""
            value = metrics.get(key, torch.tensor(0))
            value = value.item() if isinstance(value, torch.Tensor) else value
            return f"{key}={value:{form}}" if self.auto_insert_metric_name else f"{value:{form}}"

        return re.sub(r"\{([^{}:]+):?([^{}]*)\}", fill, name)


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
        scheduled = [config.scheduler.optimizer for config in trainer.lr_scheduler_configs]
        for config in trainer.lr_scheduler_configs:
            if interval in (config.interval, "any"):
                self._add(found, config.name, config.scheduler.optimizer)
        for optimizer in trainer.optimizers:
            if not any(optimizer is each for each in scheduled):
                self._add(found, None, optimizer)
        return found

    def _add(self, found: dict[str, float], name: str | None, optimizer: Any) -> None:
        base, count = name or f"lr-{type(optimizer).__name__}", 0
        name = base
        while any(each == name or each.startswith(f"{name}/") for each in found):
            count += 1
            name = f"{base}-{count}"
        groups = optimizer.param_groups
        for index, group in enumerate(groups, 1):
            place = name if len(groups) == 1 else f"{name}/pg{index}"
            found[place] = float(group["lr"])
            if self.log_momentum:
                found[f"{place}-momentum"] = float(group.get("momentum", group.get("betas", (0.0,))[0]))


class Timer(Callback):
    """Ends the fit after a time.

    Args:
        duration_s: in seconds.
    """

    def __init__(self, duration_s: float) -> None:
        self.duration_s = duration_s
        self._end = math.inf

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Starts the clock."""
        self._end = time.monotonic() + self.duration_s

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Asks for the end once the time is over, on all processes together."""
        is_over = trainer.strategy.broadcast(time.monotonic() >= self._end)
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


def sign_of(mode: str) -> int:
    """1 where small is good, -1 where large is.

    Raises:
        MisconfigurationException: `mode` is neither 'min' nor 'max'.
    """
    if mode not in ("min", "max"):
        raise MisconfigurationException(f"`mode` must be 'min' or 'max', got {mode!r}")
    return 1 if mode == "min" else -1
