"""Midway: checkpoints within an epoch, at a window's end, and going on from them exactly."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from deepepochs.engine import load_rng_state, rng_state

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
            "finished": dict(self._trainer.checkpointer.finished_metrics),
            "start": gather(self._task.start_states),
            "totals": gather(self._collector.state_dict()),
            "loader": gather(self._task.loader(self._trainer, True).state()),
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
    task.load_generator_states(states["loader"])
