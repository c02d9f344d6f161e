"""The contract: what a callback or a task may ask of the trainer that runs it, and of a task."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Iterator, Mapping, Protocol, Sequence

from deepepochs.engine import Engine

from .optimizer import Optimizers
from .output import Output
from .writer import Writer


class Task(Protocol):
    """What callbacks may ask of an EpochTask."""

    dataloader: Any
    step_args: dict[str, Any]

    @property
    def batchs(self) -> int | None:
        """The number of batches of this rank, None where it is unknown."""

    @property
    def batch_size(self) -> int:
        """The number of samples in the present batch."""


class Pool(Protocol):
    """What steps and checkpoints may ask of the callbacks."""

    def __iter__(self) -> Iterator[Any]:
        """All of them, larger priorities first."""

    def listeners(self, event: str) -> tuple[Callable[..., Any], ...]:
        """The methods that listen to an event, in the order in which it calls them."""


class Run(Protocol):
    """What callbacks may ask of a trainer.

    Attributes:
        engine: devices, processes, precision.
        model: what steps call; data parallel or compiled where asked for.
        loss_fn: the loss function, None where the model computes the loss.
        opt: the optimizers with their schedulers.
        max_epochs: epochs in total.
        init_epoch: finished epochs.
        global_step: updates that were due, those included that an overflow has skipped: ended windows.
        running_id: the name of this run.
        resume: what the trainer was asked to resume.
        hyper_params: what the user wants to see with the test metrics.
        history: metrics of all finished epochs.
        train_tasks: the tasks of the present fit.
        current_task: the task that runs.
        checkpointer: saves and restores this run.
        metric_patch: the patch class of metric functions.
        auto_traindata_to_device: whether training batches are moved to the device.
        default_steps: the step functions that are the trainer's own, not the user's.
        output: where `print` writes.
        writer: the one TensorBoard writer.
        cleanup: closed at the end of the present fit or test, however it ends; register what must be undone.
    """

    engine: Engine
    model: Any
    loss_fn: Any
    opt: Optimizers
    max_epochs: int
    init_epoch: int
    global_step: int
    running_id: str
    resume: Any
    hyper_params: dict[str, Any] | None
    history: dict[str, dict[str, list[Any]]]
    train_tasks: Sequence[Any]
    current_task: Any
    checkpointer: Any
    metric_patch: Any
    auto_traindata_to_device: bool
    default_steps: tuple[Callable[..., Any], ...]
    cleanup: contextlib.ExitStack
    output: Output
    writer: Writer

    def load_model_states(self, states: Mapping[str, Any]) -> None:
        """Loads the states of the modules that the trainer was given."""

    @property
    def main_process(self) -> bool:
        """Whether this process prints, logs and writes files."""

    @property
    def callbacks(self) -> Pool:
        """All callbacks, larger priorities first."""

    def print(self, *values: Any, **options: Any) -> None:
        """Prints in the main process."""

    def main_process_first(self) -> ContextManager[None]:
        """Runs a block in the main process and only then in the others."""
