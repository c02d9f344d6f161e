"""Trainer: wires model, loss, optimizers, data and callbacks together and runs fit, test and predict."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, ContextManager, Iterator, Mapping, Sequence

import torch

from deepepochs.engine import Engine, unwrap

from .aggregation.collector import patch_class
from .aggregation.metric_functions import as_list, combine, copies
from .arguments import check_engine, check_epochs, check_parts, check_running_id, make_tasks
from .callbacks import CallbackPool, make_console, number_monitors
from .checkpoints.checkpointer import Checkpointer
from .history import Progress
from .loop.fit import FitLoop, run_stage
from .loop.prediction import predict
from .loop.splitting import call_model
from .loop.step import Step, StepTools
from .loop.task import EpochTask
from .modules import given_modules, prepare_loss
from .optimizer import as_optimizers, check_parameters
from .output import Output
from .tools import unique_id
from .writer import Writer


class TrainerBase(StepTools):
    """Base of trainers with steps of their own; `Trainer` says what the arguments are.

    A subclass may define `step`, `train_step`, `val_step`, `test_step` or `evaluate_step`, each with the signature
    (batch_x, batch_y, **step_args) -> None | {name: patch}, and use `self.model`, `self.loss`, `self.optimize`,
    `self.do_metric`, `self.no_sync` and `self.device` in it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Callable[..., Any] | None = None,
        opt: Any = None,
        epochs: int = 1000,
        device: str | torch.device | None = None,
        callbacks: Any = None,
        metrics: Any = None,
        metric_patch: Any = "tensor",
        resume: bool | int | str = False,
        running_id: int | str | None = None,
        hyper_params: dict[str, Any] | None = None,
        log_long: bool = False,
        log_batch: bool = True,
        log_tqdm: bool = False,
        show_info: bool = True,
        auto_traindata_to_device: bool = True,
        compile_model: bool = False,
        precision: str = "fp32",
        gradient_accumulation_steps: int = 1,
        split_batches: bool = False,
        engine: Engine | None = None,
    ) -> None:
        check_parts(model, loss, epochs)
        if engine is not None:
            check_engine(engine, device, precision, gradient_accumulation_steps, split_batches)
        self._owns_engine = engine is None
        self._is_closed = False
        self.metric_patch = patch_class(metric_patch)
        self.general_metrics = combine(metrics)
        self.opt = as_optimizers(opt, model)
        self.console = make_console(log_long, log_batch, log_tqdm, show_info)
        self.callbacks = CallbackPool([*as_list(callbacks), self.console])
        self.engine = engine or Engine(device, precision, gradient_accumulation_steps, split_batches)
        check_parameters(self.opt, [model, loss], strict=self.engine.world_size > 1)
        self.loss_fn = prepare_loss(self.engine, loss, model)
        self.model: Any = self.engine.prepare_model(model)
        if compile_model:
            self.model = torch.compile(self.model)
        for each in self.opt:
            self.engine.prepare_optimizer(each.opt)
        self.max_epochs = epochs
        self.init_epoch = 0
        self.global_step = 0  # ended windows: updates, those included that an overflow has skipped
        self.resume = resume
        self.running_id = check_running_id(
            self.engine.broadcast_object(unique_id()) if running_id is None else running_id
        )
        self.output = Output()
        self.writer = Writer(self.running_id, self.main_process)
        self.hyper_params = hyper_params
        self.auto_traindata_to_device = auto_traindata_to_device
        self.default_steps: tuple[Callable[..., Any], ...] = (TrainerBase.train_step, TrainerBase.evaluate_step)
        self.history: dict[str, dict[str, list[Any]]] = Progress()
        self.current_task: Any = EpochTask(())  # until a stage runs: its step methods say that none does
        self.cleanup = contextlib.ExitStack()
        self.monitors = number_monitors(as_list(callbacks))
        self.checkpointer = Checkpointer(self, self.monitors)
        self.train_tasks: Sequence[EpochTask] = []
        self._has_fitted = False
        self.stage_metrics: dict[str, list[Any]] = {}

    # ---- where

    @property
    def device(self) -> torch.device:
        """The device of model and batches."""
        return self.engine.device

    @property
    def main_process(self) -> bool:
        """Whether this process prints, logs and writes files."""
        return self.engine.is_main

    def main_process_first(self) -> ContextManager[None]:
        """Runs a block in the main process and only then in the others, for downloads and caches."""
        return self.engine.main_process_first()

    def print(self, *values: Any, **options: Any) -> None:
        """Prints in the main process, as `print` does; output that cannot be written does not end training."""
        if self.main_process:
            stream = options.pop("file", None)
            print(*values, **options, file=self.output if stream is None else Output(stream))

    # ---- for step methods

    def _tools(self) -> Step:
        tools: Step | None = self.current_task.stage_step
        return self.current_task.running if tools is None else tools

    def no_sync(self) -> ContextManager[None]:
        """The context for parts of a batch that are not its last; nothing in one process."""
        return self.engine.no_sync()

    def train_step(self, batch_x: Any, batch_y: Any, **step_args: Any) -> Any:
        """Trains on a batch: model, loss, gradients, update. Override it for training of your own.

        Args:
            batch_x: the model's input: one, a tuple of several, or a dictionary of its arguments.
            batch_y: the label, None without one.
            step_args: the task's.

        Returns:
            None, or {name: patch}.
        """
        self.loss(call_model(self.model, batch_x), batch_y)

    def evaluate_step(self, batch_x: Any, batch_y: Any, **step_args: Any) -> Any:
        """Evaluates a batch in validation and test: model and loss. Override it for evaluation of your own."""
        self.loss(call_model(self.model, batch_x), batch_y)

    # ---- fit

    def fit(
        self,
        train_dl: Any = None,
        val_dl: Any = None,
        metrics: Any = None,
        val_freq: int = 1,
        do_val_loss: bool = True,
        batch_size: Any = None,
        train_metrics: Any = None,
        val_metrics: Any = None,
        train_tasks: Any = None,
        val_tasks: Any = None,
        epochs: int | None = None,
    ) -> dict[str, dict[str, list[Any]]]:
        """Trains the model.

        Args:
            train_dl: the training loader; either it or `train_tasks`.
            val_dl: the validation loader.
            metrics: metrics of training and validation, besides the trainer's own.
            val_freq: validate every so many epochs.
            do_val_loss: whether validation computes the loss.
            batch_size: samples in a batch: a whole number, a function (batch_x, batch_y) -> int, or None: infer it.
            train_metrics: further metrics of training.
            val_metrics: further metrics of validation.
            train_tasks: an EpochTask or a list of them, instead of `train_dl`.
            val_tasks: the same for validation; `val_dl` comes before them.
            epochs: the total at the first call; a later call adds that many to it.

        Returns:
            {'train': {name: [a value an epoch]}, 'val': {...}} of the epochs of this call.

        Raises:
            ValueError: no or two sources of training data, or an empty loader.
        """
        self._check_open()
        if (train_dl is None) == (train_tasks is None):
            given = "neither" if train_dl is None else "both"
            raise ValueError(f"fit() takes either `train_dl` or `train_tasks`, got {given}")
        if not isinstance(val_freq, int) or val_freq < 1:
            raise ValueError(f"`val_freq` must be a whole number of at least 1, got {val_freq!r}")
        if epochs is not None:
            check_epochs(epochs)
        self.stage_metrics["train"] = combine(train_metrics, metrics, self.general_metrics)
        self.stage_metrics["val"] = combine(val_metrics, metrics, self.general_metrics)
        train = make_tasks(train_dl, train_tasks, batch_size=batch_size)
        val = make_tasks(val_dl, val_tasks, batch_size=batch_size, do_loss=do_val_loss)
        for task in val:
            task.val_freq = val_freq
        self._bind(train, True)
        self._bind(val, False)
        if epochs is not None:
            self.max_epochs = self.max_epochs + epochs if self._has_fitted else epochs
        self._has_fitted = True
        self.train_tasks = train
        with self._running():
            return FitLoop(self, train, val, val_freq).run()

    # ---- test and predict

    def test(
        self, test_dl: Any = None, metrics: Any = None, do_loss: bool = True, batch_size: Any = None, tasks: Any = None
    ) -> dict[str, Any]:
        """Evaluates the model.

        Args:
            test_dl: the test loader.
            metrics: metrics besides the trainer's own.
            do_loss: whether to compute the loss.
            batch_size: as in `fit`.
            tasks: an EpochTask or a list of them; `test_dl` comes before them.

        Returns:
            {name: value}: floats, or numpy arrays of vector metrics.

        Raises:
            ValueError: there is no data, or a loader is empty.
        """
        self._check_open()
        chosen = combine(metrics, self.general_metrics)
        self.stage_metrics["test"] = copies(chosen) if self.current_task.is_running else chosen
        test = make_tasks(test_dl, tasks, batch_size=batch_size, do_loss=do_loss)
        if not test:
            raise ValueError("test() takes `test_dl`, `tasks` or both, got neither")
        self._bind(test, False)
        with self._running(), self.checkpointer.best_weights():
            return run_stage(self, "test", test, None)

    def predict(self, dl: Any) -> Any:
        """The model's outputs for a loader's inputs.

        Args:
            dl: a loader; where the trainer has a loss function, the last item of a tuple or list batch of two or more
                items counts as a label and is left out.

        Returns:
            The outputs on the CPU, joined along the first dimension, in the order of the data set, the same on all
            ranks; None for no data.
        """
        self._check_open()
        return predict(self, dl)

    # ---- checkpoints

    def load_checkpoint(self, ckpt_path: str | os.PathLike[str]) -> TrainerBase:
        """Loads a checkpoint: model, optimizers, schedulers, finished epochs, monitors, loss scale.

        The next `fit` goes on with the epoch after those in the file, and with its random numbers.

        Args:
            ckpt_path: the file, wherever it was moved.

        Returns:
            The trainer itself.

        Raises:
            CheckpointError: the file is missing, damaged, unsafe, or does not fit; the trainer is as before.
        """
        self.checkpointer.load(ckpt_path)
        return self

    def load_model_states(self, states: Mapping[str, Any]) -> None:
        """Loads the states of the modules that the trainer was given.

        Args:
            states: `model_state`, and `loss_state` where the loss is a module with a state.
        """
        self.engine.load_model_state(self.model, states["model_state"])
        if "loss_state" in states:
            if not isinstance(self.loss_fn, torch.nn.Module):
                raise ValueError("it holds the state of a loss module, the trainer's loss is none")
            self.engine.load_model_state(self.loss_fn, states["loss_state"])

    # ---- wiring

    def trigger(self, event: str, **arguments: Any) -> None:
        """Calls all callbacks that listen to an event, with this trainer and the arguments."""
        for listener in self.callbacks.listeners(event):
            listener(trainer=self, **arguments)

    def _bind(self, tasks: Sequence[EpochTask], train: bool) -> None:
        for task in tasks:
            task.trainer = self
            if task.batchs == 0:
                raise ValueError(
                    "a loader is empty: it has 0 batches; check its data set, and drop_last with a large batch_size"
                )
            task.loader(self, train)

    def equalise(self) -> None:
        """Makes all ranks start from rank 0's parameters and buffers."""
        if self.engine.world_size > 1:
            for module in map(unwrap, given_modules(self).values()):
                self.engine.broadcast([*module.parameters(), *module.buffers()])

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """While fit or test runs: whatever ends it, what callbacks registered in `cleanup` is undone."""
        outer = self.cleanup, self.current_task  # a callback of fit may call test
        self.cleanup = contextlib.ExitStack()
        try:
            with self.cleanup:
                yield
        except BaseException:
            if not outer[1].is_running:  # else the window belongs to the fit around this test
                self.engine.drop_window()
            self.writer.close()
            raise
        finally:
            self.cleanup, self.current_task = outer

    # ---- life

    def close(self) -> None:
        """Ends the trainer's use: releases what it holds; may be called again."""
        self.cleanup.close()
        self.writer.close()
        if self._owns_engine:
            self._is_closed = True
            self.engine.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RuntimeError("this trainer is closed: use it before close(), or within its `with`; or make a new one")

    def __enter__(self) -> TrainerBase:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()


class Trainer(TrainerBase):
    """Trains, validates and tests a PyTorch model.

    Args:
        model: the module.
        loss: a function (output, target) -> scalar; None where the model computes the loss.
        opt: a torch optimizer, an Optimizer, Optimizers, a list of these, or None: Adam with learning rate 1e-3.
        epochs: epochs in total.
        device: a name or torch.device; None takes CUDA where there is some, else the CPU.
        callbacks: a Callback or a list of them.
        metrics: metrics of all stages: functions (preds, targets), torchmetrics objects, or a list of these.
        metric_patch: how metrics are accumulated: 'tensor' (keeps predictions and targets, right for any metric),
            'mean' (sample-weighted mean of batch values), 'confusion' (the metric gets the summed confusion matrix),
            or a subclass of PatchBase.
        resume: False; True to go on from the newest checkpoint of the monitors; or the id of a run to go on from.
        running_id: the name of this run in logs and checkpoints; None makes one from the time.
        hyper_params: what is logged together with the test metrics.
        log_long: show seven decimals rather than four.
        log_batch: show metrics while an epoch runs.
        log_tqdm: show a progress bar.
        show_info: show what runs where before the first fit.
        auto_traindata_to_device: whether training batches are moved to the device.
        compile_model: compile the model with torch.compile.
        precision: 'fp32', 'fp16' or 'bf16'.
        gradient_accumulation_steps: batches in one update; the last window of an epoch may be shorter.
        split_batches: whether loaders' batch sizes count for all processes together.
        engine: an Engine to use instead of one made from device, precision, accumulation and split_batches.

    Raises:
        TypeError: an argument is of a wrong kind.
        ValueError: an argument has a wrong value.

    Example:
        >>> with Trainer(model, F.cross_entropy, opt, epochs=5, metrics=[accuracy]) as trainer:
        ...     progress = trainer.fit(train_dl, val_dl)
        ...     results = trainer.test(test_dl)
    """
