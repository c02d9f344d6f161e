"""Midway: checkpoints within an epoch, at a window's end, and going on from them exactly."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import torch

from deepepochs.engine import CheckpointError, load_rng_state, rng_state, sized

from ..aggregation.collector import Collector


class StepSaver:
    """Asks for a checkpoint every so many updates, where no window is open.

    Args:
        trainer: the trainer, whose file comes after this one.
        task: the training task that runs.
        collector: its totals.
        monitors: those with `every_n_steps`.
    """

    def __init__(self, trainer: Any, task: Any, collector: Collector, monitors: Sequence[Any]) -> None:
        self._trainer, self._task, self._collector = trainer, task, collector
        self._length = task.length
        self._due = {each: next_multiple(trainer.global_step, each.every_n_steps) for each in monitors}

    @property
    def is_needed(self) -> bool:
        """Whether any monitor asks for checkpoints within an epoch."""
        return bool(self._due)

    def after_batch(self, index: int) -> None:
        """Called after each training batch on every rank."""
        if index + 1 == self._length:
            return  # the epoch's own end comes next
        step: int = self._trainer.global_step
        for monitor, due in self._due.items():
            if step >= due and self._trainer.engine.is_between_windows:
                self._due[monitor] = next_multiple(step, monitor.every_n_steps)
                self._trainer.checkpointer.save_step(monitor, self.position(index + 1))

    def position(self, batches: int) -> dict[str, Any]:
        """Where the epoch stands, as a checkpoint keeps it."""
        gather: Callable[[Any], list[Any]] = self._trainer.engine.gather_object
        return {
            "task": next(i for i, each in enumerate(self._trainer.train_tasks) if each is self._task),
            "batches": batches,
            "order": reading_orders(self._trainer.train_tasks),
            "finished": dict(self._trainer.checkpointer.finished_metrics),
            "start": gather(self._task.start_states),
            "totals": gather(self._collector.state_dict()),
            "loader": gather(self._task.loader(self._trainer, True).state()),
        }


def trained_position(trainer: Any, metrics: dict[str, Any]) -> dict[str, Any]:
    """Where an epoch stands whose training is finished and whose validation is not.

    Args:
        trainer: of one process.
        metrics: those of the training.
    """
    return {
        "task": len(trainer.train_tasks),
        "batches": 0,
        "order": reading_orders(trainer.train_tasks),
        "finished": dict(metrics),
        "start": [{"rng": rng_state(), "loader": []}],
        "totals": [None],
        "loader": [None],
    }


def next_multiple(step: int, every: int) -> int:
    """The next step that `every` divides."""
    return (step // every + 1) * every


def start_states(task: Any) -> dict[str, Any]:
    """All generators as a pass over a task's loader begins."""
    return {"rng": rng_state(), "loader": task.generator_states()}


def load_start_states(task: Any, states: dict[str, Any]) -> None:
    """Puts back what `start_states` gave."""
    load_rng_state(states["rng"])
    set_states(task.noted_generators(states["loader"]))


def set_states(noted: Sequence[tuple[torch.Generator, torch.Tensor]]) -> None:
    """Puts generators into the states that were noted of them."""
    for generator, state in noted:
        generator.set_state(state)


def reading_orders(tasks: Sequence[Any]) -> list[dict[str, Any]]:
    """What decides which samples each batch of the tasks' loaders holds, besides the generators."""
    return [reading_order(task.dataloader) for task in tasks]


def reading_order(loader: Any) -> dict[str, Any]:
    """The same of one loader: plain values, by the names that a user gave or can look up."""
    loader = getattr(loader, "loader", loader)  # as the engine prepared it
    found: dict[str, Any] = {"batches": sized(loader)}
    for name in ("batch_size", "drop_last"):
        value = getattr(loader, name, None)
        if value is None or isinstance(value, (bool, int)):
            found[name] = value
    found["samples"] = sized(getattr(loader, "dataset", None))
    found["sampler"] = type(getattr(loader, "sampler", None)).__name__
    return found


def check_reading(position: Mapping[str, Any] | None, tasks: Sequence[Any]) -> None:
    """Refuses to go on within an epoch with loaders that read in another order: samples would be lost or read twice.

    Args:
        position: where the epoch stands; None at its beginning, where other loaders do no harm.
        tasks: the training tasks of the present fit.

    Raises:
        CheckpointError: the number of tasks differs, or the loader of one that is not finished.
    """
    before = None if position is None else position.get("order")
    if position is None or before is None:  # an older file does not say
        return
    if len(before) != len(tasks):
        raise CheckpointError(
            f"the checkpoint lies within an epoch of {len(before)} training tasks, this fit has {len(tasks)}; "
            "give the same ones, or use a checkpoint from an epoch's end"
        )
    for index, (old, new) in enumerate(zip(before, reading_orders(tasks))):
        changed = [f"{name} {old.get(name)} -> {new.get(name)}" for name in new if old.get(name) != new.get(name)]
        if index >= position["task"] and changed:
            raise CheckpointError(
                f"the checkpoint lies within an epoch, and the loader of training task {index} reads otherwise now "
                f"({', '.join(changed)}): samples would be left out or read twice; give the same loader, or use a "
                "checkpoint from an epoch's end"
            )
