"""Reads: what modules, callbacks and loggers may read from `self.trainer`, by Lightning's names."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from typing import Any, Iterator

import torch

from .overrides import Word, is_a, overrides_module


class Reads:
    """The read-only side of the trainer; an attribute that is not there is an error that says what is."""

    engine: Any
    strategy: Any
    precision_plugin: Any
    state: Any
    logged: Any
    limits: dict[str, int | float]
    fit_loop: Any
    validate_loop: Any
    test_loop: Any
    predict_loop: Any
    callbacks: list[Any]
    accumulate_grad_batches: int
    num_sanity_val_steps: int | float
    _loggers: list[Any]
    _default_root_dir: str

    barebones = False
    received_sigterm = False
    num_nodes = 1

    # ---- processes and devices

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return int(self.engine.world_size)

    @property
    def global_rank(self) -> int:
        """This process's number among all."""
        return int(self.engine.rank)

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return int(self.engine.local_rank)

    @property
    def node_rank(self) -> int:
        """This machine's number among those that torchrun knows."""
        return int(os.environ.get("GROUP_RANK", 0))

    @property
    def is_global_zero(self) -> bool:
        """Whether this process prints, logs and writes."""
        return bool(self.engine.is_main)

    @property
    def num_devices(self) -> int:
        """Devices on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))

    @property
    def device_ids(self) -> list[int]:
        """The indices of this machine's devices."""
        return list(range(self.num_devices))

    @functools.cached_property
    def accelerator(self) -> Any:
        """The kind of device: an object with `name()`."""
        return Accelerator(self.engine.device.type)

    @functools.cached_property
    def profiler(self) -> Any:
        """Measures nothing; `with trainer.profiler.profile('part')` may stay in modules."""
        return NoProfiler()

    @property
    def distributed_sampler_kwargs(self) -> dict[str, int] | None:
        """What a DistributedSampler needs here, None for one process."""
        if self.world_size == 1:
            return None
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    @functools.cached_property
    def _accelerator_connector(self) -> Any:
        return Distribution(self.world_size > 1)

    @property
    def precision(self) -> str:
        """The precision's full name, such as '32-true'."""
        return str(self.precision_plugin.precision)

    @property
    def scaler(self) -> Any:
        """The GradScaler, None without a loss scale."""
        return self.precision_plugin.scaler

    # ---- the module and what trains it

    @property
    def lightning_module(self) -> Any:
        """The module of the present or last run."""
        return self.strategy.lightning_module

    @property
    def model(self) -> Any:
        """The module, data parallel while it trains on several processes."""
        return self.strategy.model

    @property
    def optimizers(self) -> list[Any]:
        """The module's optimizers."""
        found: list[Any] = self.strategy.optimizers
        return found

    @optimizers.setter
    def optimizers(self, optimizers: list[Any]) -> None:
        self.strategy.optimizers = optimizers

    @property
    def lr_scheduler_configs(self) -> list[Any]:
        """The schedulers with their settings."""
        found: list[Any] = self.strategy.lr_scheduler_configs
        return found

    # ---- where the run stands

    @property
    def global_step(self) -> int:
        """Finished updates; in manual optimisation each optimizer's count."""
        return int(self.fit_loop.epoch_loop.global_step)

    @property
    def current_epoch(self) -> int:
        """Finished epochs."""
        return int(self.fit_loop.epoch_progress.current.completed)

    @property
    def max_epochs(self) -> int | None:
        """The last epoch; -1 for none."""
        found: int | None = self.fit_loop.max_epochs
        return found

    @property
    def min_epochs(self) -> int | None:
        """No early stop before."""
        found: int | None = self.fit_loop.min_epochs
        return found

    @property
    def max_steps(self) -> int:
        """The last update; -1 for none."""
        return int(self.fit_loop.max_steps)

    @property
    def min_steps(self) -> int | None:
        """No early stop before so many updates."""
        found: int | None = self.fit_loop.min_steps
        return found

    @property
    def is_last_batch(self) -> bool:
        """Whether the present training batch is its epoch's last."""
        return bool(self.fit_loop.epoch_loop.batch_progress.is_last_batch)

    @property
    def interrupted(self) -> bool:
        """Whether an exception ended the last run."""
        return bool(self.state.status == "interrupted")

    def _is_stage(self, stage: str) -> bool:
        return bool(self.state.stage == stage)

    def _set_stage(self, stage: str, is_on: bool) -> None:
        if is_on:
            self.state.stage = Word(stage)
        elif self.state.stage == stage:
            self.state.stage = None

    @property
    def training(self) -> bool:
        """Whether training batches run."""
        return self._is_stage("train")

    @training.setter
    def training(self, is_on: bool) -> None:
        self._set_stage("train", is_on)

    @property
    def validating(self) -> bool:
        """Whether a validation runs, but for the sanity check."""
        return self._is_stage("validate")

    @validating.setter
    def validating(self, is_on: bool) -> None:
        self._set_stage("validate", is_on)

    @property
    def testing(self) -> bool:
        """Whether a test runs."""
        return self._is_stage("test")

    @property
    def predicting(self) -> bool:
        """Whether a prediction runs."""
        return self._is_stage("predict")

    @property
    def sanity_checking(self) -> bool:
        """Whether the validation before training runs."""
        return self._is_stage("sanity_check")

    @property
    def evaluating(self) -> bool:
        """Whether a validation or test runs."""
        return self.state.stage in ("validate", "test")

    @property
    def _active_loop(self) -> Any:
        stage = self.state.stage
        if stage == "train":
            return self.fit_loop
        if stage in ("sanity_check", "validate", "test"):
            return self._evaluation_loop
        return self.predict_loop if stage == "predict" else None

    @property
    def _evaluation_loop(self) -> Any:
        loops = {"fit": self.fit_loop.epoch_loop.val_loop, "validate": self.validate_loop, "test": self.test_loop}
        return loops[self.state.fn]

    @property
    def _results(self) -> Any:
        loop = self._active_loop
        return None if loop is None else loop._results

    # ---- data

    @property
    def limit_train_batches(self) -> int | float:
        """So many batches an epoch, or a share of them."""
        return self.limits["train"]

    @property
    def limit_val_batches(self) -> int | float:
        """The same in validation."""
        return self.limits["val"]

    @property
    def limit_test_batches(self) -> int | float:
        """The same in test."""
        return self.limits["test"]

    @property
    def limit_predict_batches(self) -> int | float:
        """The same in prediction."""
        return self.limits["predict"]

    @property
    def enable_validation(self) -> bool:
        """Whether fit() validates."""
        has_data = self.fit_loop.epoch_loop.val_loop._data_source.is_defined() and self.limit_val_batches > 0
        return has_data and overrides_module(self.lightning_module, "validation_step")

    @property
    def num_training_batches(self) -> int | float:
        """Training batches an epoch, infinite where that is unknown."""
        found: int | float = self.fit_loop.max_batches
        return found

    @property
    def num_sanity_val_batches(self) -> list[int | float]:
        """Batches of each loader in the validation before training."""
        batches = self.fit_loop.epoch_loop.val_loop._max_batches
        return [min(self.num_sanity_val_steps, each) for each in batches]

    @property
    def num_val_batches(self) -> list[int | float]:
        """Batches of each loader in validation."""
        loop = self.validate_loop if self.state.fn == "validate" else self.fit_loop.epoch_loop.val_loop
        return list(loop._max_batches)

    @property
    def num_test_batches(self) -> list[int | float]:
        """Batches of each loader in test."""
        return list(self.test_loop.max_batches)

    @property
    def num_predict_batches(self) -> list[int | float]:
        """Batches of each loader in prediction."""
        return list(self.predict_loop.max_batches)

    @property
    def train_dataloader(self) -> Any:
        """The loaders of training."""
        return loaders_of(self.fit_loop)

    @property
    def val_dataloaders(self) -> Any:
        """The loaders of validation."""
        found = loaders_of(self.fit_loop.epoch_loop.val_loop)
        return loaders_of(self.validate_loop) if found is None else found

    @property
    def test_dataloaders(self) -> Any:
        """The loaders of the test."""
        return loaders_of(self.test_loop)

    @property
    def predict_dataloaders(self) -> Any:
        """The loaders of the prediction."""
        return loaders_of(self.predict_loop)

    @property
    def estimated_stepping_batches(self) -> int | float:
        """The updates that this fit will make; asks for the train loaders if it has to."""
        if self.max_epochs == -1:
            return float("inf") if self.max_steps == -1 else self.max_steps
        if self.train_dataloader is None:
            self.fit_loop.setup_data()
        if self.num_training_batches == float("inf"):
            return self.max_steps
        updates = math.ceil(self.num_training_batches / self.accumulate_grad_batches) * max(self.max_epochs or 0, 1)
        return updates if self.max_steps == -1 else min(updates, self.max_steps)

    # ---- logs

    @property
    def loggers(self) -> list[Any]:
        """All loggers."""
        return self._loggers

    @loggers.setter
    def loggers(self, loggers: list[Any] | None) -> None:
        self._loggers = loggers or []

    @property
    def logger(self) -> Any:
        """The first logger, None without one."""
        return self._loggers[0] if self._loggers else None

    @logger.setter
    def logger(self, logger: Any) -> None:
        self._loggers = [logger] if logger else []

    @property
    def log_every_n_steps(self) -> int:
        """Every so many updates' values go to the loggers."""
        return int(self.logged.every)

    @property
    def _logger_connector(self) -> Any:
        return self.logged

    @property
    def callback_metrics(self) -> dict[str, torch.Tensor]:
        """What was logged, for callbacks and schedulers."""
        found: dict[str, torch.Tensor] = self.logged.callback_metrics
        return found

    @property
    def logged_metrics(self) -> dict[str, torch.Tensor]:
        """What was logged for loggers."""
        found: dict[str, torch.Tensor] = self.logged.logged_metrics
        return found

    @property
    def progress_bar_metrics(self) -> dict[str, Any]:
        """What was logged with `prog_bar=True`, as numbers."""
        found: dict[str, Any] = self.logged.progress_bar_metrics
        return found

    @property
    def default_root_dir(self) -> str:
        """Where logs and checkpoints go."""
        return os.path.normpath(os.path.expanduser(self._default_root_dir))

    @property
    def log_dir(self) -> str | None:
        """The directory of this run's logs."""
        path = self.default_root_dir if self.logger is None else directory_of(self.logger)
        found: str | None = self.strategy.broadcast(path)
        return found

    # ---- callbacks

    def _all(self, name: str) -> list[Any]:
        return [each for each in self.callbacks if is_a(each, name)]

    @property
    def early_stopping_callbacks(self) -> list[Any]:
        """All EarlyStopping callbacks."""
        return self._all("EarlyStopping")

    @property
    def early_stopping_callback(self) -> Any:
        """The first EarlyStopping, None without one."""
        return next(iter(self.early_stopping_callbacks), None)

    @property
    def checkpoint_callbacks(self) -> list[Any]:
        """All checkpoint callbacks."""
        return self._all("Checkpoint")

    @property
    def checkpoint_callback(self) -> Any:
        """The first checkpoint callback, None without one."""
        return next(iter(self.checkpoint_callbacks), None)

    @property
    def progress_bar_callback(self) -> Any:
        """The progress bar, None without one."""
        return next(iter(self._all("ProgressBar")), None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = sorted(each for each in {*dir(type(self)), *self.__dict__} if not each.startswith("_"))
        raise AttributeError(f"the trainer has no attribute {name!r}; there are: {', '.join(known)}")


class Accelerator:
    """The kind of device that a trainer uses.

    Args:
        name: 'cpu', 'cuda' or 'mps'.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        """'cpu', 'cuda' or 'mps'."""
        return self._name

    @staticmethod
    def is_available() -> bool:
        """True: it is in use."""
        return True

    def auto_device_count(self) -> int:
        """How many devices of this kind there are; 1 for the CPU."""
        return max(torch.cuda.device_count(), 1) if self._name == "cuda" else 1


class NoProfiler:
    """Lightning's profiler that measures nothing, for modules that name the parts of their steps."""

    @contextlib.contextmanager
    def profile(self, action_name: str) -> Iterator[str]:
        """The context of a part."""
        yield action_name

    def start(self, action_name: str) -> None:
        """A part begins."""

    def stop(self, action_name: str) -> None:
        """A part ends."""

    def describe(self) -> None:
        """Tells nothing."""


class Distribution:
    """Whether there are several processes, as `LightningModule.log` asks it."""

    def __init__(self, is_distributed: bool) -> None:
        self.is_distributed = is_distributed


def loaders_of(loop: Any) -> Any:
    """A loop's loaders in their nesting, None before there are any."""
    return None if loop._combined_loader is None else loop._combined_loader.iterables


def directory_of(logger: Any) -> str | None:
    """Where a logger writes this run."""
    is_own = any(is_a(logger, name) for name in ("TensorBoardLogger", "CSVLogger"))
    found: str | None = logger.log_dir if is_own else logger.save_dir
    return found
