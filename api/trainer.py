"""Trainer: wires model, loss, optimizers, data and callbacks together and runs fit, test and predict."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, ContextManager, Iterator, Sequence

import torch

from deepepochs.engine import CheckpointError, Engine, Stopper, confirm_stop, save_file, signals_noted, unwrap

from .aggregation.collector import Collector, patch_class
from .aggregation.metric_functions import as_list, combine, copies
from .arguments import check_engine, check_epochs, check_parts, check_running_id, make_tasks
from .callbacks import CallbackPool, CheckCallback, make_console, number_monitors
from .checkpoints.content import apply_rng, collect, newest, read, restore
from .checkpoints.mid_epoch import StepSaver
from .exceptions import StopLoopException
from .history import History
from .loop.prediction import predict
from .loop.splitting import call_model
from .loop.task import EpochTask
from .optimizer import as_optimizers, check_parameters
from .writer import Writer


class TrainerBase:
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
        self.metric_patch = patch_class(metric_patch)
        self.general_metrics = combine(metrics)
        self.opt = as_optimizers(opt, model)
        self.console = make_console(log_long, log_batch, log_tqdm, show_info)
        self.callbacks = CallbackPool([*as_list(callbacks), self.console])
        self.engine = engine or Engine(device, precision, gradient_accumulation_steps, split_batches)
        check_parameters(self.opt, [model, loss], strict=self.engine.world_size > 1)
        if isinstance(loss, torch.nn.Module):
            loss.to(self.engine.device)
        self.loss_fn = loss
        self.model: Any = self.engine.prepare_model(model)
        if compile_model:
            self.model = torch.compile(self.model)
        for each in self.opt:
            self.engine.prepare_optimizer(each.opt)
        self.max_epochs = epochs
        self.init_epoch = 0
        self.global_step = 0
        self.resume = resume
        self.running_id = check_running_id(
            self.engine.broadcast_object(str(int(time.time() * 100))) if running_id is None else running_id
        )
        self.writer = Writer(self.running_id, self.main_process)
        self.hyper_params = hyper_params
        self.auto_traindata_to_device = auto_traindata_to_device
        self.default_steps: tuple[Callable[..., Any], ...] = (TrainerBase.train_step, TrainerBase.evaluate_step)
        self.history: dict[str, dict[str, list[Any]]] = {"train": {}, "val": {}}
        self.current_task: Any = EpochTask(())  # until a stage runs: its step methods say that none does
        self.cleanup = contextlib.ExitStack()
        self.monitors = number_monitors(as_list(callbacks))
        self._saves: list[CheckCallback] = []
        self._rng_state: Any = None
        self.train_tasks: Sequence[EpochTask] = []
        self.stopper: Stopper | None = None
        self.loader_states: list[Any] = []
        self.position: Any = None
        self.finished_tasks: dict[str, Any] = {}
        self._has_fitted = False
        self._stage_metrics: dict[str, list[Any]] = {}

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
        """Prints in the main process, as `print` does."""
        if self.main_process:
            print(*values, **options)

    # ---- for step methods

    def loss(
        self, model_out: Any, batch_y: Any, loss_adjust: float = 1.0, do_optimize: bool = True, do_metric: bool = True
    ) -> Any:
        """Computes the loss, in training also gradients and update; for use in step methods.

        Args:
            model_out: the model's output.
            batch_y: the label.
            loss_adjust: samples here / samples in the batch, where a step cuts the batch.
            do_optimize: whether to update (at the end of an accumulation window).
            do_metric: whether to hand loss and output over to the metrics.

        Returns:
            The loss, 0-dim; None in an evaluation without loss.
        """
        return self.current_task.running.loss(model_out, batch_y, loss_adjust, do_optimize, do_metric)

    def optimize(self, optimize_index: int | None = None) -> None:
        """Updates the parameters with one optimizer or all (None), if the accumulation window ends here."""
        self.current_task.running.optimize(optimize_index)

    def do_metric(self, loss: Any = None, model_out: Any = None, batch_y: Any = None) -> None:
        """Hands a whole batch's loss, output and label over to the metrics."""
        self.current_task.running.do_metric(loss, model_out, batch_y)

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
        if (train_dl is None) == (train_tasks is None):
            given = "neither" if train_dl is None else "both"
            raise ValueError(f"fit() takes either `train_dl` or `train_tasks`, got {given}")
        if not isinstance(val_freq, int) or val_freq < 1:
            raise ValueError(f"`val_freq` must be a whole number of at least 1, got {val_freq!r}")
        if epochs is not None:
            check_epochs(epochs)
        self._stage_metrics["train"] = combine(train_metrics, metrics, self.general_metrics)
        self._stage_metrics["val"] = combine(val_metrics, metrics, self.general_metrics)
        train = make_tasks(train_dl, train_tasks, batch_size=batch_size)
        val = make_tasks(val_dl, val_tasks, batch_size=batch_size, do_loss=do_val_loss)
        for task in val:
            task.val_freq = val_freq
        self._bind(train, True)
        self._bind(val, False)
        if epochs is not None:
            self.max_epochs = self.max_epochs + epochs if self._has_fitted else epochs
        self._has_fitted = True
        return self._fit(train, val, val_freq)

    def _fit(self, train: Sequence[EpochTask], val: Sequence[EpochTask], val_freq: int) -> dict[str, Any]:
        own = History()
        self.train_tasks = train
        with self._running(), signals_noted(self.engine, self.saves_steps) as self.stopper:
            try:
                self.trigger("before_fit", epochs=self.max_epochs)
                self._resume([*train, *val])
                self._equalise()
                self._start_where_left()
                if self.init_epoch >= self.max_epochs:
                    self.print(f"all {self.max_epochs} epochs are finished; fit(epochs=n) trains n more")
                for epoch_idx in range(self.init_epoch, self.max_epochs):
                    validates = bool(val) and (epoch_idx + 1) % val_freq == 0
                    self._epoch(train, val, validates, epoch_idx, own)
            except KeyboardInterrupt as stop:
                self.engine.drop_window()
                confirm_stop(self.engine, stop)
                self.print("\nstopped by the keyboard; the finished epochs count")
            except StopLoopException as stop:
                self.engine.drop_window()
                confirm_stop(self.engine, stop)
                self.print(stop)
            self.trigger("after_fit")
        return own.as_dict()

    def _epoch(
        self, train: Sequence[EpochTask], val: Sequence[EpochTask], validates: bool, epoch_idx: int, own: History
    ) -> None:
        self.trigger("before_epoch", train_tasks=train, val_tasks=val, epoch_idx=epoch_idx)
        train_metrics = self._stage("train", train, epoch_idx)
        val_metrics = self._stage("val", val, epoch_idx) if validates else {}
        self.opt.step(at="epoch", loss=val_metrics.get("loss", train_metrics.get("loss")))
        for history in (own, History(self.history)):
            history.append("train", train_metrics)
            if validates:
                history.append("val", val_metrics)
        self.init_epoch = epoch_idx + 1
        self._after_epoch(
            train_tasks=train, val_tasks=val, train_metrics=train_metrics, val_metrics=val_metrics, epoch_idx=epoch_idx
        )

    def _after_epoch(self, **arguments: Any) -> None:
        """Fires on_after_epoch; who asks to stop does not keep the others from finishing the epoch."""
        stop = None
        for listener in self.callbacks.listeners("after_epoch"):
            try:
                listener(trainer=self, **arguments)
            except StopLoopException as request:
                stop = stop or request
        self._save()
        if self.engine.reduce(int(stop is not None), "max"):
            raise stop or StopLoopException("stopped: another rank asked for it")
        if self.stopper is not None and self.stopper.ask():
            self._end_terminated(None)

    def _stage(self, stage: str, tasks: Sequence[EpochTask], epoch_idx: int | None) -> dict[str, Any]:
        """Runs all tasks of a stage.

        Returns:
            Their metrics; a name that an earlier task has taken already gets the task's index behind it.
        """
        place = {} if epoch_idx is None else {"epoch_idx": epoch_idx}
        self.trigger(f"before_{stage}_epochs", tasks=tasks, **place)
        position: Any = None
        merged: dict[str, Any] = {}
        if stage == "train" and self.position is not None:
            position, self.position = self.position, None
            merged = dict(position["finished"])
        for index, task in enumerate(tasks):
            if position is not None and index < position["task"]:
                continue
            if stage == "train":
                self.finished_tasks = merged
            self.current_task = task
            values = task.run(self, stage, self._stage_metrics[stage], epoch_idx or 0, position)
            position = None
            merged.update({f"{name}/{index}" if name in merged else name: value for name, value in values.items()})
        if stage == "train":
            self.engine.check_replicas()
        self.trigger(f"after_{stage}_epochs", tasks=tasks, metrics=merged, **place)
        return merged

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
        chosen = combine(metrics, self.general_metrics)
        self._stage_metrics["test"] = copies(chosen) if self.current_task.is_running else chosen
        test = make_tasks(test_dl, tasks, batch_size=batch_size, do_loss=do_loss)
        if not test:
            raise ValueError("test() takes `test_dl`, `tasks` or both, got neither")
        self._bind(test, False)
        with self._running(), self._best_weights():
            return self._stage("test", test, None)

    def predict(self, dl: Any) -> Any:
        """The model's outputs for a loader's inputs.

        Args:
            dl: a loader; where the trainer has a loss function, the last item of a tuple or list batch of two or more
                items counts as a label and is left out.

        Returns:
            The outputs on the CPU, joined along the first dimension, in the order of the data set, the same on all
            ranks; None for no data.
        """
        return predict(self, dl)

    # ---- checkpoints

    def request_save(self, monitor: CheckCallback) -> None:
        """Asks for a checkpoint by a monitor once all callbacks have finished the epoch."""
        self._saves.append(monitor)

    def _save(self) -> None:
        """Writes the checkpoints that were asked for; they hold the states of all monitors."""
        saves, self._saves = self._saves, []
        for monitor in saves:
            path = monitor.path(self)
            content = collect(self, self.monitors, path)
            if self.main_process:
                save_file(path, content)
            monitor.found = path

    @property
    def saves_steps(self) -> bool:
        """Whether checkpoints are written within epochs."""
        return any(each.every_n_steps or each.on_sigterm for each in self.monitors)

    def save_step(self, monitor: CheckCallback, position: dict[str, Any] | None) -> None:
        """Writes a monitor's checkpoint within an epoch; every rank calls it."""
        path = monitor.step_path(self)
        content = collect(self, self.monitors, path, position)
        if self.main_process:
            save_file(path, content)

    def watcher(self, task: EpochTask, collector: Collector) -> Callable[[int], None] | None:
        """What is to be called after each training batch with its index; None where nothing is."""
        saver = StepSaver(self, task, collector, [each for each in self.monitors if each.every_n_steps])
        stopper = self.stopper
        if stopper is None:
            return saver.after_batch if saver.is_needed else None

        def watch(index: int) -> None:
            if saver.is_needed:
                saver.after_batch(index)
            if stopper.is_terminated() and index + 1 != task.length:  # at its end the epoch's own end comes next
                self._end_terminated(saver.position(index + 1))

        return watch

    def _end_terminated(self, position: dict[str, Any] | None) -> None:
        """Saves and stops, as SIGTERM asks for."""
        for monitor in [each for each in self.monitors if each.on_sigterm][:1]:
            self.save_step(monitor, position)
        raise StopLoopException("SIGTERM: the state is saved, training stops")

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
        self._rng_state = restore(self, self.monitors, read(self, ckpt_path), ckpt_path)
        self.print(f"loaded the checkpoint {ckpt_path} of epoch {self.init_epoch}")
        return self

    def _resume(self, tasks: Sequence[EpochTask]) -> None:
        """Loads the checkpoint that the argument `resume` names, once."""
        wanted, self.resume = self.resume, False
        if wanted is False:
            return
        if not self.monitors:
            raise ValueError("`resume` needs a CheckCallback among the callbacks: its `ckpt_dir` says where to look")
        path = newest(self, self.monitors, None if wanted is True else str(wanted))
        if path is not None:
            self.load_checkpoint(path)
            for task in tasks:
                task.renew_loaders(self)
        elif wanted is True:
            self.print("there is no checkpoint to resume: training starts from scratch")
        else:
            folders = sorted({each.ckpt_dir for each in self.monitors})
            raise CheckpointError(f"the run {wanted!r} to resume has no checkpoint in {folders}")

    def _start_where_left(self) -> None:
        """Puts generators and loaders where they were when the loaded checkpoint was written, if one was."""
        if self.position is None:
            self.restore_generators()

    def restore_generators(self) -> None:
        """Puts all generators where they were when the loaded checkpoint was written."""
        apply_rng(self._rng_state)
        for task, states in zip(self.train_tasks, self.loader_states):
            task.load_generator_states(states)
        self._rng_state, self.loader_states = None, []

    @contextlib.contextmanager
    def _best_weights(self) -> Iterator[None]:
        """The weights of the first monitor's file that exists, given back at the end; else the present ones."""
        paths = [str(path) for path in (each.existing(self) for each in self.monitors) if path is not None]
        path = self.engine.broadcast_object(paths[0] if paths else None)
        if path is None:
            yield
            return
        content = read(self, path)
        present = {name: value.clone() for name, value in self.engine.model_state(self.model).items()}
        self.print(f"testing with the weights of {path}")
        try:
            self.engine.load_model_state(self.model, content["model_state"])
            yield
        finally:
            self.engine.load_model_state(self.model, present)

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

    def _equalise(self) -> None:
        """Makes all ranks start from rank 0's parameters and buffers."""
        if self.engine.world_size > 1:
            module = unwrap(self.model)
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
            self.engine.close()

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
