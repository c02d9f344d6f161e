"""EpochTask: one pass over one loader for training, validation or test; here is THE loop."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Iterable, Iterator

import torch

from deepepochs.engine import Loader, preserved_rng, sized

from ..aggregation.collector import Collector
from ..aggregation.metric_functions import as_list, combine
from ..aggregation.patches import detach
from ..checkpoints.mid_epoch import load_start_states, start_states
from ..modules import given_modules
from ..protocols import Run
from ..tools import as_array
from .splitting import sizer, splitter
from .step import Step, StepTools


class EpochTask(StepTools):
    """A loader with its metrics and step arguments: what a stage runs once an epoch.

    Subclasses may define `step`, `train_step`, `val_step`, `test_step` or `evaluate_step`, each with the signature
    (batch_x, batch_y, **step_args) -> None | {name: patch}. There `self.model`, `self.loss`, `self.optimize`,
    `self.do_metric`, `self.no_sync` and `self.device` do the work.

    Args:
        dataloader: a DataLoader, or any iterable of batches that can be iterated again.
        metrics: a metric or a list of metrics; those of the trainer come on top.
        do_loss: whether validation and test compute the loss.
        batch_size: samples in a batch: a whole number, a function (batch_x, batch_y) -> int, or None: infer it.
        step_args: handed to the step methods as keyword arguments.

    Raises:
        TypeError: `dataloader` or `batch_size` is of a wrong type.
    """

    def __init__(
        self, dataloader: Any, metrics: Any = None, do_loss: bool = True, batch_size: Any = None, **step_args: Any
    ) -> None:
        self.dataloader = dataloader
        self.metrics = as_list(metrics)
        self.do_loss = do_loss
        self.step_args = step_args
        self.stage: str | None = None
        self.val_freq = 1
        self.trainer: Any = None  # the trainer that runs it: a TrainerBase, whose file comes after this one
        self._size = sizer(batch_size)
        self._infers_size = batch_size is None
        self._loaders: dict[tuple[int, bool], Loader] = {}
        self.stage_step: Step | None = None
        self.start_states: dict[str, Any] = {}
        self.length: int | None = None  # batches of this rank in the present pass, where that is known

    # ---- for step methods

    @property
    def model(self) -> Any:
        """The model to call in steps."""
        return self.trainer.model

    @property
    def device(self) -> torch.device:
        """The device of model and batches."""
        device: torch.device = self.trainer.device
        return device

    @property
    def batch_size(self) -> int:
        """Samples in the present batch."""
        size: int = self.running.batch_size
        return size

    @property
    def batchs(self) -> int | None:
        """The number of batches, None where it is unknown."""
        try:
            return len(self.dataloader)
        except TypeError:
            return None

    @property
    def is_running(self) -> bool:
        """Whether a stage runs over this task."""
        return self.stage_step is not None

    @property
    def running(self) -> Step:
        """The tools of the stage that runs.

        Raises:
            RuntimeError: none does.
        """
        return self._tools()

    def _tools(self) -> Step:
        if self.stage_step is None:
            raise RuntimeError("loss(), optimize() and do_metric() work in step methods, while fit() or test() runs")
        return self.stage_step

    def no_sync(self) -> ContextManager[None]:
        """The context for parts of a batch that are not its last; nothing in one process."""
        return self.running.no_sync()

    # ---- the loop

    def loader(self, trainer: Run, train: bool) -> Loader:
        """The loader as this rank reads it.

        Args:
            trainer: whose engine and rank.
            train: training or evaluation.
        """
        key = (id(trainer.engine), train)
        if key not in self._loaders:
            if isinstance(self.dataloader, Loader):
                self._loaders[key] = self.dataloader
            else:
                moves = trainer.auto_traindata_to_device or not train
                self._loaders[key] = trainer.engine.prepare_loader(self.dataloader, train, moves)
        return self._loaders[key]

    def _generators(self) -> list[torch.Generator]:
        """The generators of its own that the user's loader and sampler draw from."""
        owners = [self.dataloader, getattr(self.dataloader, "sampler", None)]
        found: list[torch.Generator] = []
        for generator in [getattr(owner, "generator", None) for owner in owners]:
            if isinstance(generator, torch.Generator) and not any(generator is each for each in found):
                found.append(generator)
        return found

    def generator_states(self) -> list[torch.Tensor]:
        """The states of the loader's own generators, for a checkpoint."""
        return [each.get_state() for each in self._generators()]

    def noted_generators(self, states: list[torch.Tensor]) -> list[tuple[torch.Generator, torch.Tensor]]:
        """The loader's own generators, each with the state that a checkpoint has for it."""
        return list(zip(self._generators(), states))

    def run(
        self, trainer: Run, stage: str, metrics: Any = None, epoch_idx: int = 0, position: Any = None
    ) -> dict[str, Any]:
        """Runs a stage over all batches.

        Args:
            trainer: who runs it.
            stage: 'train', 'val' or 'test'.
            metrics: the stage's metrics besides the task's own.
            epoch_idx: the epoch, for the order of the samples.
            position: where a checkpoint within an epoch goes on; None begins with the first batch.

        Returns:
            The metrics of all samples on all ranks, as they were computed.
        """
        self.stage = stage
        collector = Collector(combine(self.metrics, metrics), trainer.metric_patch, trainer.engine.device)
        if position is not None:
            collector.load_state_dict(position["totals"])
        step = self.stage_step = Step(trainer, self, stage, collector, self.do_loss)
        listeners = trainer.callbacks.listeners
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(training(trainer.model) if stage == "train" else evaluating(trainer.model))
                if stage != "train":
                    sync_buffers(trainer)
                for listener in listeners(f"before_{stage}_epoch"):
                    listener(trainer=trainer, task=self)
                stack.enter_context(forward_events(trainer, stage))
                batches = self.loader(trainer, stage == "train")
                batches.set_epoch(epoch_idx)
                self.length = sized(batches.loader)
                if stage == "train":
                    trainer.engine.when_left_out = step.optimize
                begin, source = self._open(trainer, stage, batches, position)
                count = self._loop(trainer, stage, step, batches, source, begin)
                if count == 0 and (stage == "train" or trainer.engine.world_size == 1):  # only evaluation shards may be
                    raise ValueError(f"the {stage} loader gave no batch: it is empty; give it data or leave it out")
                values = collector.values(trainer.engine)
        finally:
            self.stage_step = None
            if stage == "train":
                trainer.engine.when_left_out = None
        plain = {name: plain_value(name, value) for name, value in values.items()}
        for listener in listeners(f"after_{stage}_epoch"):
            listener(trainer=trainer, task=self, metrics=plain)
        return plain

    def _open(self, trainer: Run, stage: str, batches: Loader, position: Any) -> tuple[int, Iterable[Any]]:
        """Where the pass begins, and the batches from there on."""
        if position is None:
            if stage == "train" and trainer.checkpointer.saves_steps:
                self.start_states = start_states(self)
            return 0, batches
        self.start_states = position["start"]
        load_start_states(self, self.start_states)
        saves = trainer.checkpointer
        noted = saves.generators_of(self)
        return position["batches"], batches.resumed(
            position["batches"], saves.restore_generators, position["loader"], noted
        )

    def _loop(self, trainer: Run, stage: str, step: Step, batches: Loader, source: Iterable[Any], begin: int) -> int:
        """THE loop: every batch's way through split, step and metrics.

        Everything that does not change between batches is decided before the first.

        Returns:
            The number of batches.
        """
        is_training = stage == "train"
        method, is_custom = self._choose(trainer, stage)
        call = method if trainer.engine.precision == "fp32" else in_autocast(method, trainer.engine.autocast)
        split, size, step_args = splitter(trainer.loss_fn is not None, is_custom), self._size, self.step_args
        before = trainer.callbacks.listeners(f"before_{stage}_batch")
        after = trainer.callbacks.listeners(f"after_{stage}_batch")
        accumulate = trainer.engine.accumulate if is_training else None
        saves = trainer.checkpointer
        watch = saves.watcher(self, step.collector) if is_training else None
        if stage == "val":
            watch = saves.validation_watcher()
        is_counted = batches.counts_samples and self._infers_size and trainer.engine.world_size > 1
        index = begin - 1
        for index, batch in enumerate(source, begin):
            batch_x, batch_y = split(batch)
            step.batch_size = samples = size(batch_x, batch_y)
            for listener in before:
                listener(trainer=trainer, batch_x=batch_x, batch_y=batch_y, batch_idx=index)
            if accumulate is None:
                returned = call(batch_x, batch_y, **step_args)
            else:
                with accumulate(n_samples=None if is_counted else samples):
                    returned = call(batch_x, batch_y, **step_args)
            if returned is not None:
                step.take(returned, method)
            if watch is not None:
                watch(index)
            if after:
                metrics = step.batch_metrics()
                for listener in after:
                    listener(trainer=trainer, metrics=metrics, batch_idx=index)
        return index + 1

    def _choose(self, trainer: Run, stage: str) -> tuple[Callable[..., Any], bool]:
        """The step method of a stage, and whether it is the user's: by name first, the task's before the trainer's."""
        names = ["step", f"{stage}_step"] + ([] if stage == "train" else ["evaluate_step"])
        for name in names:
            for owner in (self, trainer):
                method = getattr(owner, name, None)
                if callable(method):
                    is_default = getattr(method, "__func__", None) in trainer.default_steps
                    return method, not is_default
        raise AssertionError(f"a trainer has default steps for all stages, none found for {stage}")


def in_autocast(method: Callable[..., Any], autocast: Callable[[], ContextManager[Any]]) -> Callable[..., Any]:
    """A step method inside autocast; backward and metrics leave it by themselves."""

    def call(batch_x: Any, batch_y: Any, **step_args: Any) -> Any:
        with autocast():
            return method(batch_x, batch_y, **step_args)

    return call


def sync_buffers(trainer: Run) -> None:
    """Lets all ranks evaluate with the buffers of rank 0, which are those that are saved."""
    for module in given_modules(trainer).values():
        trainer.engine.sync_buffers(module)


@contextlib.contextmanager
def training(model: torch.nn.Module) -> Iterator[None]:
    """Training mode; parts that the user has put into evaluation mode stay there."""
    if not model.training:
        model.train()
    with torch.enable_grad():
        yield


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; modes and random number generators are as before afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with preserved_rng(), torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def forward_events(trainer: Run, stage: str) -> Iterator[None]:
    """Fires the events around the model's forward, by hooks that are there only if somebody listens."""
    before = trainer.callbacks.listeners(f"before_{stage}_forward")
    after = trainer.callbacks.listeners(f"after_{stage}_forward")

    def pre_hook(module: Any, inputs: Any) -> None:
        for listener in before:
            listener(trainer=trainer)

    def hook(module: Any, inputs: Any, output: Any) -> None:
        for listener in after:
            listener(trainer=trainer, model_out=detach(output))

    handles = []
    if before:
        handles.append(trainer.model.register_forward_pre_hook(pre_hook))
    if after:
        handles.append(trainer.model.register_forward_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def plain_value(name: str, value: Any) -> Any:
    """A metric's value as a float, or as a numpy array where it has several elements (a sync point).

    Raises:
        TypeError: it is neither a number nor an array.
    """
    if isinstance(value, torch.Tensor):
        return as_array(value) if value.ndim else value.item() * 1.0
    if hasattr(value, "ndim") and getattr(value, "ndim", 0) > 0:
        return value
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the metric {name!r} must return a number, a tensor, an array or a dictionary of these, "
            f"got {type(value).__name__}"
        ) from error
