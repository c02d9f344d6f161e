"""LightningTrainer: Lightning's Trainer for existing modules, on this package's engine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable

import torch

from deepepochs.engine import preserved_rng

from . import arguments
from .checkpoints.checkpoint_state import Restorer, dump, select
from .logs.logger_connector import Logged, scalar
from .logs.loggers import NoLogger
from .loops.evaluation import EvaluationLoop, PredictionLoop
from .loops.fit_loop import FitLoop
from .loops.hooks import Calls
from .loops.run_stages import Run
from .overrides import MisconfigurationException, Word
from .parts import (
    as_datamodule,
    check_clipping,
    check_module,
    make_callbacks,
    make_loggers,
    ordered,
    set_determinism,
)
from .precision import Precision
from .strategy import Strategy
from .trainer_properties import Reads

STAGES = {"fit": Word("train"), "validate": Word("validate"), "test": Word("test"), "predict": Word("predict")}


@dataclass
class State:
    """What a trainer is doing.

    Attributes:
        fn: the method that was called: 'fit', 'validate', 'test' or 'predict'.
        stage: 'train', 'sanity_check', 'validate', 'test' or 'predict'; None between runs.
        status: 'initializing', 'running', 'finished' or 'interrupted'.
    """

    fn: Word | None = None
    stage: Word | None = None
    status: str = "initializing"

    @property
    def finished(self) -> bool:
        """Whether the last run came to its end."""
        return self.status == "finished"


class LightningTrainer(Reads):
    """Runs LightningModules with the arguments, hooks and numbers of Lightning's Trainer.

    Args:
        accelerator: 'auto', 'cpu', 'gpu', 'cuda' or 'mps'.
        strategy: 'auto', 'ddp', 'ddp_find_unused_parameters_true' or '..._false'.
        devices: must be the number of processes of the job, which torchrun or `deepepochs.launch` starts; or 'auto'.
        precision: '32-true', '16-mixed', 'bf16-mixed', '64-true', 'bf16-true', '16-true', or 32, 16, 'bf16', 64.
        logger: a logger, several, True (TensorBoard) or False.
        callbacks: a callback or a list of them.
        fast_dev_run: runs so many batches of everything, without logs and checkpoints.
        max_epochs: ends then; -1 never. None means 1000, or -1 with `max_steps`.
        min_epochs: no early stop before.
        max_steps: ends after so many updates; -1 never.
        min_steps: no early stop before so many updates.
        max_time: ends after it: 'DD:HH:MM:SS', a timedelta or a dictionary of its arguments.
        limit_train_batches: so many batches an epoch, or a share of them from 0.0 to 1.0.
        limit_val_batches: the same in validation.
        limit_test_batches: the same in test.
        limit_predict_batches: the same in prediction.
        overfit_batches: so many batches, or a share, in training and validation, never shuffled.
        val_check_interval: validates every so many batches, after a share of an epoch, or after a time.
        check_val_every_n_epoch: validates every so many epochs; None counts batches over epochs.
        num_sanity_val_steps: validation batches before training; -1 means all.
        log_every_n_steps: sends every so many updates' values to the loggers.
        enable_checkpointing: whether a ModelCheckpoint is added where there is none.
        enable_progress_bar: whether progress is shown.
        enable_model_summary: whether the module's size is printed.
        accumulate_grad_batches: batches in one update; each loss counts alike, as in Lightning.
        gradient_clip_val: the limit of gradients.
        gradient_clip_algorithm: 'norm' or 'value'.
        deterministic: makes torch use deterministic algorithms; 'warn' only where it has them.
        benchmark: whether cuDNN tries algorithms out.
        inference_mode: evaluation in inference mode, else without gradients only.
        use_distributed_sampler: whether ranks get their own parts of the data.
        detect_anomaly: whether torch looks for the origin of NaN gradients.
        sync_batchnorm: whether batch norms are synchronised over ranks.
        reload_dataloaders_every_n_epochs: asks for the loaders anew every so many epochs.
        default_root_dir: where logs and checkpoints go; the working directory.
        enable_autolog_hparams: whether hyper-parameters go to the loggers.
        num_nodes: not supported, nor are the four that follow: they must be left at their defaults.
        profiler: not supported.
        barebones: not supported.
        plugins: not supported.
        model_registry: not supported.

    Raises:
        NotImplementedError: an argument asks for what is not supported.
        MisconfigurationException: arguments are out of their range or contradict each other.

    Example:
        >>> LightningTrainer(max_epochs=3, gradient_clip_val=1.0).fit(module, datamodule=datamodule)
    """

    def __init__(
        self,
        *,
        accelerator: str = "auto",
        strategy: str = "auto",
        devices: Any = "auto",
        num_nodes: int = 1,
        precision: Any = None,
        logger: Any = None,
        callbacks: Any = None,
        fast_dev_run: int | bool = False,
        max_epochs: int | None = None,
        min_epochs: int | None = None,
        max_steps: int = -1,
        min_steps: int | None = None,
        max_time: Any = None,
        limit_train_batches: int | float | None = None,
        limit_val_batches: int | float | None = None,
        limit_test_batches: int | float | None = None,
        limit_predict_batches: int | float | None = None,
        overfit_batches: int | float = 0.0,
        val_check_interval: Any = None,
        check_val_every_n_epoch: int | None = 1,
        num_sanity_val_steps: int | None = None,
        log_every_n_steps: int | None = None,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = None,
        accumulate_grad_batches: int = 1,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
        deterministic: bool | str | None = None,
        benchmark: bool | None = None,
        inference_mode: bool = True,
        use_distributed_sampler: bool = True,
        profiler: Any = None,
        detect_anomaly: bool = False,
        barebones: bool = False,
        plugins: Any = None,
        sync_batchnorm: bool = False,
        reload_dataloaders_every_n_epochs: int = 0,
        default_root_dir: Any = None,
        enable_autolog_hparams: bool = True,
        model_registry: str | None = None,
    ) -> None:
        arguments.refuse_unsupported(
            {
                "num_nodes": num_nodes,
                "profiler": profiler,
                "plugins": plugins,
                "barebones": barebones,
                "model_registry": model_registry,
            }
        )
        self.accumulate_grad_batches = arguments.at_least(accumulate_grad_batches, 1, "accumulate_grad_batches")
        self.gradient_clip_val, self.gradient_clip_algorithm = check_clipping(
            gradient_clip_val, gradient_clip_algorithm
        )
        for name, limit in (("max_epochs", max_epochs), ("max_steps", max_steps)):
            if limit is not None:
                arguments.at_least(limit, -1, name)
        self.fast_dev_run: int | bool = fast_dev_run
        self.overfit_batches = arguments.batch_limit(overfit_batches, "overfit_batches")
        self._default_root_dir = os.fspath(default_root_dir) if default_root_dir is not None else os.getcwd()
        self.use_distributed_sampler, self.enable_autolog_hparams = use_distributed_sampler, enable_autolog_hparams
        self.reload_dataloaders_every_n_epochs = arguments.at_least(
            reload_dataloaders_every_n_epochs, 0, "reload_dataloaders_every_n_epochs"
        )
        self._detect_anomaly = detect_anomaly
        set_determinism(deterministic, benchmark)
        self.engine, name = arguments.make_engine(accelerator, devices, strategy, precision, sync_batchnorm)
        self.precision_plugin = Precision(name, self.engine, lambda: self.calls)
        self.strategy = Strategy(self.engine, self.precision_plugin, lambda: self.calls)
        self.state = State()
        self.should_stop = False
        self.datamodule: Any = None
        self.calls: Any = None
        self.transfer: Any = None
        self.logged = Logged(self, 50 if log_every_n_steps is None else log_every_n_steps)
        self._loggers = make_loggers(logger, self._default_root_dir)
        self._set_validation(val_check_interval, check_val_every_n_epoch)
        self._set_limits(
            train=limit_train_batches, val=limit_val_batches, test=limit_test_batches, predict=limit_predict_batches
        )
        self.num_sanity_val_steps: int | float = 2 if num_sanity_val_steps is None else num_sanity_val_steps
        if self.num_sanity_val_steps == -1:
            self.num_sanity_val_steps = float("inf")
        if fast_dev_run:
            max_epochs, max_steps = 1, int(fast_dev_run)
            self.num_sanity_val_steps, self._loggers = 0, [NoLogger()] if self._loggers else []
        self._max_time_s = None if max_time is None else arguments.seconds(max_time, "max_time")
        self.fit_loop = FitLoop(self, min_epochs, max_epochs, min_steps, max_steps)
        self.validate_loop = EvaluationLoop(self, "validate", inference_mode)
        self.test_loop = EvaluationLoop(self, "test", inference_mode)
        self.predict_loop = PredictionLoop(self, inference_mode)
        self.callbacks: list[Any] = ordered(
            make_callbacks(callbacks, enable_checkpointing, enable_progress_bar, enable_model_summary, self._max_time_s)
        )
        self._ckpt_path: Any = None
        self._keeps_ckpt_path = False  # whether the user has set it

    def _set_validation(self, interval: Any, every: int | None) -> None:
        self._last_val_time = 0.0
        self._val_check_time_interval: float | None = None
        self.val_check_batch: int | float | None = None
        self.check_val_every_n_epoch = 1 if self.fast_dev_run else every
        self.val_check_interval: Any = 1.0
        if self.fast_dev_run:
            return
        if interval is not None and not isinstance(interval, (int, float)):
            self._val_check_time_interval = arguments.seconds(interval, "val_check_interval")
            return
        self.val_check_interval = arguments.batch_limit(interval, "val_check_interval")
        if every is None and isinstance(self.val_check_interval, float):
            raise MisconfigurationException(
                "`check_val_every_n_epoch=None` counts batches over epochs: `val_check_interval` must be a whole "
                f"number of them or a time, got {interval!r}"
            )
        if every is not None:
            arguments.at_least(every, 1, "check_val_every_n_epoch")

    def _set_limits(self, **given: Any) -> None:
        self.limits = {name: arguments.batch_limit(value, f"limit_{name}_batches") for name, value in given.items()}
        if self.fast_dev_run:
            self.limits = dict.fromkeys(self.limits, int(self.fast_dev_run))
        if self.overfit_batches > 0:
            self.limits["train"] = self.limits["val"] = self.overfit_batches

    @property
    def ckpt_path(self) -> Any:
        """The file that the last run began with; a path that is set here is used by all runs from now on."""
        return self._ckpt_path

    @ckpt_path.setter
    def ckpt_path(self, path: Any) -> None:
        self._ckpt_path, self._keeps_ckpt_path = path, path is not None

    # ---- fit, validate, test, predict

    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: Any = None,
        weights_only: bool | None = None,
    ) -> None:
        """Trains a module.

        Args:
            model: the LightningModule.
            train_dataloaders: a loader, several in any nesting, or a data module; None asks the module.
            val_dataloaders: a loader or several.
            datamodule: instead of loaders.
            ckpt_path: goes on from this file; 'best' or 'last' from the checkpoint callback's.
            weights_only: False loads files of objects of any class, which may run code.

        Raises:
            MisconfigurationException: module, data and arguments do not go together.
        """
        train_dataloaders, datamodule = as_datamodule(train_dataloaders, datamodule)
        self.should_stop = False
        loaders = {"train": train_dataloaders, "val": val_dataloaders}
        self._start("fit", model, loaders, datamodule, ckpt_path, weights_only, self._fit)

    def validate(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: Any = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Validates a module.

        Args:
            model: the LightningModule; None takes the last run's, with its best checkpoint.
            dataloaders: a loader, several, or a data module; None asks the module.
            ckpt_path: loads this file's weights; also 'best' and 'last'.
            verbose: whether the metrics are printed.
            datamodule: instead of loaders.
            weights_only: see `fit`.

        Returns:
            For each loader what was logged.
        """
        return self._evaluate("validate", "val", model, dataloaders, ckpt_path, verbose, datamodule, weights_only)

    def test(
        self,
        model: Any = None,
        dataloaders: Any = None,
        ckpt_path: Any = None,
        verbose: bool = True,
        datamodule: Any = None,
        weights_only: bool | None = None,
    ) -> list[dict[str, Any]]:
        """Tests a module; the arguments are those of `validate`."""
        return self._evaluate("test", "test", model, dataloaders, ckpt_path, verbose, datamodule, weights_only)

    def _evaluate(
        self,
        fn: str,
        prefix: str,
        model: Any,
        dataloaders: Any,
        ckpt_path: Any,
        verbose: bool,
        datamodule: Any,
        weights_only: bool | None,
    ) -> list[dict[str, Any]]:
        dataloaders, datamodule = as_datamodule(dataloaders, datamodule)
        loop = self.validate_loop if fn == "validate" else self.test_loop
        loop.verbose = verbose
        found = self._start(fn, model, {prefix: dataloaders}, datamodule, ckpt_path, weights_only, loop.run)
        return [{name: scalar(value) for name, value in each.items()} for each in found]

    def predict(
        self,
        model: Any = None,
        dataloaders: Any = None,
        datamodule: Any = None,
        return_predictions: bool | None = None,
        ckpt_path: Any = None,
        weights_only: bool | None = None,
    ) -> Any:
        """Predicts with a module.

        Args:
            model: the LightningModule; None takes the last run's, with its best checkpoint.
            dataloaders: a loader, several, or a data module; None asks the module.
            datamodule: instead of loaders.
            return_predictions: whether they are kept; else callbacks take them.
            ckpt_path: loads this file's weights; also 'best' and 'last'.
            weights_only: see `fit`.

        Returns:
            What `predict_step` gave by batch, by loader and batch where there are several.
        """
        dataloaders, datamodule = as_datamodule(dataloaders, datamodule)
        loop = self.predict_loop
        loop.return_predictions = return_predictions is not False
        return self._start("predict", model, {"predict": dataloaders}, datamodule, ckpt_path, weights_only, loop.run)

    # ---- a run

    def _start(
        self,
        fn: str,
        model: Any,
        loaders: dict[str, Any],
        datamodule: Any,
        ckpt_path: Any,
        weights_only: bool | None,
        run: Callable[[], Any],
    ) -> Any:
        module = check_module(model if model is not None else self.lightning_module, fn)
        if datamodule is not None and any(each is not None for each in loaders.values()):
            raise MisconfigurationException(f"{fn}() takes either loaders or `datamodule`, got both")
        self.state = State(Word(fn), STAGES[fn], "running")
        self.strategy.connect(module)
        self.calls = Calls(self, module)
        if fn == "fit":
            self._set_epochs()
        try:
            self._attach(module, loaders, datamodule)
            kept = self._ckpt_path if self._keeps_ckpt_path and ckpt_path is None else ckpt_path
            path = self._ckpt_path = select(self, kept, model is not None)
            return Run(self, module, datamodule, Restorer(self, path, weights_only)).go(run)
        except BaseException as error:
            self._interrupt(error)
            raise

    def _attach(self, module: Any, loaders: dict[str, Any], datamodule: Any) -> None:
        if datamodule is not None:
            self.datamodule = datamodule
            datamodule.trainer = self
        loops: list[Any]
        for name, loops in {
            "train": [self.fit_loop],
            "val": [self.fit_loop.epoch_loop.val_loop, self.validate_loop],
            "test": [self.test_loop],
            "predict": [self.predict_loop],
        }.items():
            for loop in loops:
                loop._combined_loader = None
                loop._data_source.given = loaders.get(name)
                loop._data_source.owner = module if datamodule is None else datamodule
        module.trainer = self

    def _fit(self) -> None:
        with preserved_rng():
            self._sanity_check()
        with torch.autograd.set_detect_anomaly(self._detect_anomaly):
            self.fit_loop.run()

    def _sanity_check(self) -> None:
        loop = self.fit_loop.epoch_loop.val_loop
        if not self.enable_validation or self.num_sanity_val_steps <= 0 or self.fit_loop.is_restarting:
            return
        self.state.stage = Word("sanity_check")
        self.logged.reset_results()
        self.logged.reset_metrics()
        self.calls.callbacks("on_sanity_check_start")
        loop.run()
        self.calls.callbacks("on_sanity_check_end")
        self.logged.reset_results()
        self.logged.reset_metrics()
        loop.batch_progress.begin_pass()
        loop.batch_progress.total.reset()
        self.state.stage = STAGES["fit"]

    def _set_epochs(self) -> None:
        loop = self.fit_loop
        if loop.max_epochs is None:
            loop.max_epochs = -1 if loop.max_steps != -1 or self._max_time_s is not None else 1000
        if loop.min_epochs is None:
            loop.min_epochs = 1 if loop.min_steps is not None else 0

    def _teardown(self) -> None:
        self.strategy.teardown()
        loop = self._active_loop
        if loop is not None:
            loop.teardown()
        self.logged.teardown()

    def _interrupt(self, error: BaseException) -> None:
        self.state.status = "interrupted"
        self.calls.callbacks("on_exception", error)
        if self.datamodule is not None:
            self.calls.datamodule("on_exception", error)
        for logger in self.loggers:
            logger.finalize("failed")
        self._teardown()
        self.state.stage = None

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None) -> None:
        """Writes a .ckpt file; all processes must call it.

        Args:
            filepath: the file.
            weights_only: leaves optimizers, schedulers and callbacks out.
            storage_options: not supported.

        Raises:
            RuntimeError: the trainer has no module yet.
        """
        if self.lightning_module is None:
            raise RuntimeError("there is no module to save: call fit(), validate(), test() or predict() first")
        self.strategy.save_checkpoint(dump(self, weights_only), filepath, storage_options)
        self.strategy.barrier("save_checkpoint")

    def print(self, *values: Any, **options: Any) -> None:
        """Prints in the first process of each machine."""
        if self.local_rank == 0:
            print(*values, **options)
