"""Loggers: the base that others may subclass, TensorBoard's, and one that logs nothing."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Mapping

from deepepochs import writer


class Logger:
    """Base of loggers."""

    @property
    def name(self) -> str | None:
        """The experiment's name."""
        raise NotImplementedError

    @property
    def version(self) -> int | str | None:
        """The run's number or name."""
        raise NotImplementedError

    @property
    def save_dir(self) -> str | None:
        """Where all its experiments lie."""
        return None

    @property
    def log_dir(self) -> str | None:
        """Where this run lies."""
        return None

    @property
    def experiment(self) -> Any:
        """What it writes with."""
        return None

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Takes numbers by name.

        Args:
            metrics: the numbers.
            step: the update they belong to.
        """
        raise NotImplementedError

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Takes hyper-parameters."""
        raise NotImplementedError

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Takes the model's graph."""

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        """Hears of a new checkpoint."""

    def save(self) -> None:
        """Writes what it has."""

    def finalize(self, status: str) -> None:
        """Ends the run: 'success' or 'failed'."""


class NoLogger(Logger):
    """Takes everything and writes nothing."""

    name = None
    version = None

    @property
    def experiment(self) -> Any:
        """An object whose methods do nothing."""
        return NoExperiment()

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Takes them."""

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Takes them."""


class NoExperiment:
    """Has every method, and none does anything."""

    def __getattr__(self, name: str) -> Any:
        return self._nothing

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing."""


class TensorBoardLogger(Logger):
    """Writes TensorBoard's files to save_dir/name/version_N.

    Args:
        save_dir: where all experiments lie.
        name: the experiment's.
        version: the run's number or name; None takes the next number.
    """

    def __init__(self, save_dir: Any, name: str = "lightning_logs", version: int | str | None = None) -> None:
        self._save_dir, self._name, self._version = str(save_dir), name, version
        self._writer: Any = None
        self.hparams: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self._name

    @property
    def version(self) -> int | str:
        """The run's number or name."""
        if self._version is None:
            runs = Path(self._save_dir, self._name).glob("version_*")
            numbers = [int(each.name[8:]) for each in runs if each.name[8:].isdigit()]
            self._version = max(numbers, default=-1) + 1
        return self._version

    @property
    def save_dir(self) -> str:
        """Where all experiments lie."""
        return self._save_dir

    @property
    def root_dir(self) -> str:
        """Where this experiment lies."""
        return str(Path(self._save_dir, self._name))

    @property
    def log_dir(self) -> str:
        """Where this run lies."""
        version = self.version if isinstance(self.version, str) else f"version_{self.version}"
        return str(Path(self.root_dir, version))

    @property
    def experiment(self) -> Any:
        """torch's SummaryWriter in the main process; elsewhere an object whose methods do nothing."""
        if self._writer is None:
            self._writer = self._open()
        return self._writer

    def _open(self) -> Any:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized() and dist.get_rank() > 0:
            return NoExperiment()
        from torch.utils.tensorboard.writer import SummaryWriter

        return SummaryWriter(self.log_dir)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Writes numbers by name; a dictionary of them becomes one plot."""
        for name, value in metrics.items():
            if isinstance(value, Mapping):
                self.experiment.add_scalars(name, value, step)
            else:
                self.experiment.add_scalar(name, value, step)

    def log_hyperparams(self, params: Any, metrics: Any = None, step: int = 0) -> None:
        """Writes hyper-parameters for TensorBoard's view of them.

        Args:
            params: a dictionary or namespace.
            metrics: what they led to by name; a number alone is called 'hp_metric'.
            step: the update they belong to.
        """
        given = vars(params) if isinstance(params, argparse.Namespace) else dict(params or {})
        self.hparams.update(given)
        metrics = metrics if isinstance(metrics, Mapping) else {"hp_metric": -1 if metrics is None else metrics}
        self.log_metrics(metrics, step)
        if not isinstance(self.experiment, NoExperiment):
            writer.write_hyper_params(self.experiment, given, metrics)

    def save(self) -> None:
        """Writes what waits, and `hparams.yaml` beside it."""
        if self._writer is None or isinstance(self._writer, NoExperiment):
            return
        self._writer.flush()
        path = Path(self.log_dir, "hparams.yaml")
        if not path.exists():
            lines = [f"{key}: {json.dumps(value, default=str)}" for key, value in self.hparams.items()]
            path.write_text("\n".join(lines or ["{}"]) + "\n", encoding="utf-8")

    def finalize(self, status: str) -> None:
        """Closes the file; the next run appends another."""
        if self._writer is not None:
            self._writer.flush()
            self._writer.close()
            self._writer = None
