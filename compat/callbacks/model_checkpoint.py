"""ModelCheckpoint: writes .ckpt files, when and under which names Lightning's does."""

from __future__ import annotations

import math
import os
import re
import weakref
from pathlib import Path
from typing import Any, Mapping

import torch

from ..overrides import MisconfigurationException, sign_of
from .base import Callback


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
        self.dirpath = trainer.strategy.broadcast(self._directory(trainer))

    def _directory(self, trainer: Any) -> str:
        if self.dirpath is not None:
            return str(self.dirpath)
        logger, base = trainer.logger, trainer.default_root_dir
        if logger is not None:
            version = logger.version if isinstance(logger.version, str) else f"version_{logger.version}"
            base = os.path.join(logger.save_dir or base, str(logger.name), version)
        return os.path.join(base, "checkpoints")

    def _find_last_checkpoints(self, trainer: Any) -> set[str]:
        """The paths of the files that `save_last` wrote, also in an earlier process."""
        paths = Path(self._directory(trainer)).glob("last*.ckpt")
        return {str(path) for path in paths if re.fullmatch(r"last(-v\d+)?", path.stem)}

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
            previous, self.last_model_path = self.last_model_path, self._free("last", self.last_model_path)
            self._write(trainer, self.last_model_path)
            self._remove(trainer, previous, self.last_model_path)

    def _save_newest(self, trainer: Any, metrics: Mapping[str, Any]) -> None:
        previous, path = self.best_model_path, self._path(metrics, free_of=self.best_model_path)
        self.best_model_path = path  # before it is written: the file holds it
        self._write(trainer, path)
        if self.save_top_k == 1:
            self._remove(trainer, previous, path)

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
        self._remove(trainer, dropped, path)

    def _write(self, trainer: Any, path: str) -> None:
        trainer.save_checkpoint(path, self.save_weights_only)
        self._last_global_step_saved, self._has_written = trainer.global_step, True
        if trainer.is_global_zero:
            for logger in trainer.loggers:
                logger.after_save_checkpoint(weakref.proxy(self))  # loggers may keep it longer than the run lasts
        if self.verbose:
            trainer.print(f"saved {path}")

    def _remove(self, trainer: Any, previous: str, written: str) -> None:
        """Deletes a file that a new one replaces, unless the run began with it or it is another run's."""
        if not previous or os.path.abspath(previous) == os.path.abspath(written):
            return
        is_start = trainer.ckpt_path is not None and os.path.realpath(previous) == os.path.realpath(trainer.ckpt_path)
        if not is_start and Path(os.path.abspath(self.dirpath or "")) in Path(os.path.abspath(previous)).parents:
            trainer.strategy.remove_checkpoint(previous)

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
