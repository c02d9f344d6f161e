"""Checkpointer: when a trainer's checkpoints are written and read, and what waits for the next fit."""

from __future__ import annotations

import contextlib
import copy
import os
import warnings
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import torch

from deepepochs.engine import CheckpointError, Stopper, load_rng_state, save_file

from ..callbacks import CheckCallback
from ..exceptions import StopLoopException, ValidationLeft
from .content import collect, model_states, read, restore
from .files import newest
from .finiteness import beside, first_not_finite
from .groups import complete_groups
from .mid_epoch import StepSaver, set_states, trained_position


class Checkpointer:
    """Saves and restores a trainer's whole state.

    Args:
        trainer: whose state; its file comes after this one.
        monitors: its CheckCallbacks, in the order of their declaration.

    Attributes:
        monitors: the same.
        position: where within an epoch a loaded checkpoint goes on; None at an epoch's beginning.
        rng_state: this rank's generators as a loaded checkpoint has them; None once they are put back.
        generator_states: those of the training loaders' own generators, a list for each task.
        pending_groups: states of parameter groups that callbacks have yet to add; None for none.
        has_loaded: whether a file was loaded since the last fit began.
        finished_metrics: metrics of the training tasks that the present epoch has finished.
        stopper: tells whether a signal asks to stop; None where none can.
    """

    def __init__(self, trainer: Any, monitors: list[CheckCallback]) -> None:
        self._trainer = trainer
        self.monitors = monitors
        self.position: Any = None
        self.rng_state: Any = None
        self.generator_states: list[Any] = []
        self.pending_groups: Any = None
        self.has_loaded = False
        self.finished_metrics: dict[str, Any] = {}
        self.stopper: Stopper | None = None
        self._requests: list[CheckCallback] = []
        self._kept_generators: list[torch.Generator] = []

    # ---- saving

    def request(self, monitor: CheckCallback) -> None:
        """Asks for a checkpoint by a monitor once all callbacks have finished the epoch."""
        self._requests.append(monitor)

    def save_requested(self) -> None:
        """Writes the checkpoints that were asked for; they hold the states of all monitors."""
        requests, self._requests = self._requests, []
        for monitor in requests:
            path = monitor.path(self._trainer)
            if self._write(path, None):
                monitor.found = path

    @property
    def saves_steps(self) -> bool:
        """Whether checkpoints are written within epochs."""
        return self.saves_on_sigterm or any(each.every_n_steps for each in self.monitors)

    def save_step(self, monitor: CheckCallback, position: dict[str, Any] | None) -> None:
        """Writes a monitor's checkpoint within an epoch; every rank calls it."""
        self._write(monitor.step_path(self._trainer), position)

    def is_finite(self) -> bool:
        """Whether the weights are finite, so that they may be the best ones; every rank calls it."""
        return first_not_finite(self._trainer) is None

    def _write(self, path: Path, position: dict[str, Any] | None) -> bool:
        """Whether the state went to that file: one that is not finite goes beside it."""
        content = collect(self._trainer, self.monitors, path, position)
        wrong = first_not_finite(self._trainer)
        place = path if wrong is None else beside(path)
        if self._trainer.main_process:
            save_file(place, content)
            if wrong is not None:
                warnings.warn(
                    f"the weights are not finite any more ({wrong!r} holds NaN or inf): the state is saved as "
                    f"{str(place)!r}, and {path.name!r} is left as it was",
                    UserWarning,
                    stacklevel=2,
                )
        return wrong is None

    def watcher(self, task: Any, collector: Any) -> Callable[[int], None] | None:
        """What is to be called after each training batch with its index; None where nothing is."""
        saver = StepSaver(self._trainer, task, collector, [each for each in self.monitors if each.every_n_steps])
        stopper = self.stopper
        if stopper is None:
            return saver.after_batch if saver.is_needed else None

        def watch(index: int) -> None:
            if saver.is_needed:
                saver.after_batch(index)
            if stopper.is_terminated() and index + 1 != task.length:  # at its end the epoch's own end comes next
                self.end_terminated(saver.position(index + 1))

        return watch

    def validation_watcher(self) -> Callable[[int], None] | None:
        """What is to be called after each validation batch; None where nothing is."""
        stopper = self.stopper
        if stopper is None or self._trainer.engine.world_size > 1 or not self.saves_on_sigterm:
            return None

        def watch(index: int) -> None:
            if stopper.is_terminated_alone():
                raise ValidationLeft

        return watch

    @property
    def saves_on_sigterm(self) -> bool:
        """Whether SIGTERM is to end training after a save."""
        return any(each.on_sigterm for each in self.monitors)

    @property
    def sigterm_seconds(self) -> float:
        """How long the process may take for that: the shortest that a monitor asks for."""
        return min([each.sigterm_seconds for each in self.monitors if each.on_sigterm], default=float("inf"))

    def end_validation(self, metrics: dict[str, Any]) -> None:
        """Saves and stops after a validation that was left, as if it had not begun.

        Args:
            metrics: those of the training, which is finished.
        """
        self.end_terminated(trained_position(self._trainer, metrics))

    def end_terminated(self, position: dict[str, Any] | None) -> None:
        """Saves and stops, as SIGTERM asks for."""
        for monitor in [each for each in self.monitors if each.on_sigterm][:1]:
            self.save_step(monitor, position)
        raise StopLoopException("SIGTERM: the state is saved, training stops")

    # ---- restoring

    def load(self, path: str | os.PathLike[str], tasks: Sequence[Any] | None = None) -> None:
        """Puts a file's content into the trainer.

        Args:
            path: the file.
            tasks: the training tasks of the present fit, if there is one: the file must be of the same.

        Raises:
            CheckpointError: the file is missing, damaged, unsafe, or does not fit; the trainer is as before.
        """
        restore(self._trainer, self, read(self._trainer, path), path, tasks)
        self.has_loaded = True
        self._trainer.print(f"loaded the checkpoint {path} of epoch {self._trainer.init_epoch}")

    def resume(self, wanted: bool | int | str) -> None:
        """Loads the checkpoint that the trainer's argument `resume` names.

        Args:
            wanted: False, True, or a run's id.
        """
        if wanted is False:
            return
        if not self.monitors:
            raise ValueError("`resume` needs a CheckCallback among the callbacks: its `ckpt_dir` says where to look")
        path = newest(self._trainer, self.monitors, None if wanted is True else str(wanted))
        if path is not None:
            self.load(path, self._trainer.train_tasks)
        elif wanted is True:
            self._trainer.print("there is no checkpoint to resume: training starts from scratch")
        else:
            folders = sorted({each.ckpt_dir for each in self.monitors})
            raise CheckpointError(f"the run {wanted!r} to resume has no checkpoint in {folders}")

    def purge_logs(self) -> None:
        """Takes what lies behind a loaded file out of the run's log, once: the fit writes it again."""
        has_loaded, self.has_loaded = self.has_loaded, False
        if has_loaded:
            self._trainer.writer.purge(self._trainer.init_epoch)

    def take_position(self) -> Any:
        """Where within an epoch the next training stage goes on, once; None for an epoch's beginning."""
        position, self.position = self.position, None
        return position

    def complete_optimizers(self) -> None:
        """Called when callbacks have had their chance to add parameter groups again: the loaded states of these."""
        pending, self.pending_groups = self.pending_groups, None
        if pending is not None:
            complete_groups(self._trainer, *pending)

    def _noted_generators(self) -> list[list[tuple[torch.Generator, torch.Tensor]]]:
        """For each training task its loader's generators with the states that the loaded checkpoint has for them."""
        return [task.noted_generators(states) for task, states in zip(self._trainer.train_tasks, self.generator_states)]

    def generators_of(self, task: Any) -> list[tuple[torch.Generator, torch.Tensor]]:
        """Those of the task that goes on within its pass, which knows better where they come out: they are its own now,
        under whichever task they stand, and `restore_generators` leaves them alone.
        """
        pairs = zip(self._trainer.train_tasks, self._noted_generators())
        found = next((noted for each, noted in pairs if each is task), [])
        self._kept_generators = [generator for generator, _ in found]
        return found

    def restore_generators(self) -> None:
        """Puts all generators where they were when the loaded checkpoint was written."""
        if self.rng_state is not None:
            load_rng_state(self.rng_state)
        for noted in self._noted_generators():
            set_states([pair for pair in noted if not any(pair[0] is each for each in self._kept_generators)])
        self.rng_state, self.generator_states, self._kept_generators = None, [], []

    @contextlib.contextmanager
    def best_weights(self) -> Iterator[None]:
        """The weights of the first monitor's file that exists, given back at the end; else the present ones.

        Raises:
            CheckpointError: the file cannot be read, or is of another model.
        """
        trainer = self._trainer
        paths = [str(path) for path in (each.existing(trainer) for each in self.monitors) if path is not None]
        path = trainer.engine.broadcast_object(paths[0] if paths else None)
        if path is None:
            yield
            return
        content = read(trainer, path)
        present = copy.deepcopy(model_states(trainer))
        trainer.print(f"testing with the weights of {path}")
        try:
            try:
                trainer.load_model_states(content)
            except Exception as error:  # torch and a model's own loading have many errors for what does not fit
                raise CheckpointError(f"the weights in {path!r} do not fit this model: {error}") from error
            yield
        finally:
            trainer.load_model_states(present)
