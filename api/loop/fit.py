"""FitLoop: epoch after epoch: stages, schedulers, history, saves, and the ways in which training stops."""

from __future__ import annotations

from typing import Any, Sequence

from deepepochs.engine import confirm_stop, signals_noted

from ..checkpoints.mid_epoch import check_reading
from ..exceptions import CallbackException, StopLoopException, ValidationLeft
from ..history import History
from .task import EpochTask


class FitLoop:
    """One fit.

    Args:
        trainer: who runs it; its file comes after this one.
        train: the training tasks.
        val: the validation tasks.
        val_freq: validate every so many epochs.
    """

    def __init__(self, trainer: Any, train: Sequence[EpochTask], val: Sequence[EpochTask], val_freq: int) -> None:
        self._trainer, self._train, self._val, self._val_freq = trainer, train, val, val_freq
        self._own = History()

    def run(self) -> dict[str, Any]:
        """Trains until the trainer's `max_epochs` are finished, or something stops it.

        Returns:
            The metrics of the epochs of this fit.
        """
        trainer, saves = self._trainer, self._trainer.checkpointer
        with signals_noted(trainer.engine, saves.saves_on_sigterm, saves.sigterm_seconds) as saves.stopper:
            try:
                trainer.trigger("before_fit", epochs=trainer.max_epochs)
                wanted, trainer.resume = trainer.resume, False
                saves.resume(wanted)
                saves.purge_logs()
                check_reading(saves.position, self._train)
                self._check_monitors()
                trainer.equalise()
                if saves.position is None:
                    saves.restore_generators()
                if trainer.init_epoch >= trainer.max_epochs:
                    trainer.print(f"all {trainer.max_epochs} epochs are finished; fit(epochs=n) trains n more")
                for epoch_idx in range(trainer.init_epoch, trainer.max_epochs):
                    self._epoch(epoch_idx)
            except KeyboardInterrupt as stop:
                trainer.engine.drop_window()
                confirm_stop(trainer.engine, stop)
                trainer.print("\nstopped by the keyboard; the finished epochs count")
            except StopLoopException as stop:
                trainer.engine.drop_window()
                confirm_stop(trainer.engine, stop)
                trainer.print(stop)
            trainer.trigger("after_fit")
        return self._own.as_dict()

    def _epoch(self, epoch_idx: int) -> None:
        trainer, train, val = self._trainer, self._train, self._val
        validates = bool(val) and (epoch_idx + 1) % self._val_freq == 0
        trainer.trigger("before_epoch", train_tasks=train, val_tasks=val, epoch_idx=epoch_idx)
        train_metrics = run_stage(trainer, "train", train, epoch_idx)
        try:
            val_metrics = run_stage(trainer, "val", val, epoch_idx) if validates else {}
        except ValidationLeft:
            trainer.checkpointer.end_validation(train_metrics)
            raise
        self._schedule(train_metrics, val_metrics, validates)
        for history in (self._own, History(trainer.history)):
            history.append("train", train_metrics, epoch_idx + 1)
            if validates:
                history.append("val", val_metrics, epoch_idx + 1)
        trainer.init_epoch = epoch_idx + 1
        self._after_epoch(
            train_tasks=train, val_tasks=val, train_metrics=train_metrics, val_metrics=val_metrics, epoch_idx=epoch_idx
        )

    def _schedule(self, train_metrics: dict[str, Any], val_metrics: dict[str, Any], validates: bool) -> None:
        """Moves the epoch schedulers; those that follow the validation loss wait for it."""
        loss = val_metrics.get("loss", train_metrics.get("loss"))
        waits = not validates and any(task.do_loss for task in self._val)
        for each in self._trainer.opt:
            if not (waits and each.sched_with_loss):
                each.step(at="epoch", loss=loss)

    def _check_monitors(self) -> None:
        """Refuses monitors that would wait in vain for a validation.

        Raises:
            CallbackException: there is none before the last epoch.
        """
        begin, end = self._trainer.init_epoch, self._trainer.max_epochs
        waits = [each.monitor for each in self._trainer.monitors if each.on_stage == "val"]
        if not waits or begin >= end:
            return
        if not self._val:
            raise CallbackException(
                f"CheckCallback watches {waits[0]!r} of the validation, and fit() has no validation data; "
                "give it `val_dl`, or use on_stage='train'"
            )
        if end // self._val_freq == begin // self._val_freq:
            raise CallbackException(
                f"CheckCallback watches {waits[0]!r} of the validation, and with val_freq={self._val_freq} none comes "
                f"in epochs {begin + 1} to {end}; validate more often, or use on_stage='train'"
            )

    def _after_epoch(self, **arguments: Any) -> None:
        """Fires on_after_epoch; who asks to stop does not keep the others from finishing the epoch."""
        trainer, saves = self._trainer, self._trainer.checkpointer
        stop = None
        for listener in trainer.callbacks.listeners("after_epoch"):
            try:
                listener(trainer=trainer, **arguments)
            except StopLoopException as request:
                stop = stop or request
        saves.save_requested()
        if trainer.engine.any(stop is not None):
            raise stop or StopLoopException("stopped: another rank asked for it")
        if saves.stopper is not None and saves.stopper.ask():
            saves.end_terminated(None)


def run_stage(trainer: Any, stage: str, tasks: Sequence[EpochTask], epoch_idx: int | None) -> dict[str, Any]:
    """Runs all tasks of a stage.

    Args:
        trainer: who runs them.
        stage: 'train', 'val' or 'test'.
        tasks: what runs, one after the other.
        epoch_idx: the epoch; None in a test.

    Returns:
        Their metrics; a name that an earlier task has taken already gets the task's index behind it.
    """
    place = {} if epoch_idx is None else {"epoch_idx": epoch_idx}
    is_training = stage == "train"
    position = trainer.checkpointer.take_position() if is_training else None
    if position is not None and position["task"] == len(tasks):  # only its validation is to be done
        trainer.checkpointer.complete_optimizers()
        trainer.checkpointer.restore_generators()
        return dict(position["finished"])
    trainer.trigger(f"before_{stage}_epochs", tasks=tasks, **place)
    if is_training:
        trainer.checkpointer.complete_optimizers()
    merged: dict[str, Any] = dict(position["finished"]) if position is not None else {}
    for index, task in enumerate(tasks):
        if position is not None and index < position["task"]:
            continue
        if is_training:
            trainer.checkpointer.finished_metrics = merged
        trainer.current_task = task
        values = task.run(trainer, stage, trainer.stage_metrics[stage], epoch_idx or 0, position)
        position = None
        merged.update({f"{name}/{index}" if name in merged else name: value for name, value in values.items()})
    if is_training:
        trainer.engine.check_replicas()
    trainer.trigger(f"after_{stage}_epochs", tasks=tasks, metrics=merged, **place)
    return merged
