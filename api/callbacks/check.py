"""CheckCallback: watches a metric, asks for checkpoints, and stops training that no longer improves."""

from __future__ import annotations

import math
import os
import threading
import warnings
from pathlib import Path
from typing import Any, Mapping, Sequence

from ..exceptions import CallbackException, StopLoopException
from ..protocols import Run, Task
from .base import Callback


class CheckCallback(Callback):
    """Saves the best or the newest model by a metric, and stops early.

    The file is `<ckpt_dir>/<running_id>/checkpoint.ckpt`; further monitors in the same folder write
    `checkpoint-2.ckpt` and so on. What it holds lets `Trainer(resume=...)` go on exactly. A state whose weights hold
    NaN or inf never replaces it: that is written beside it, as `checkpoint-not-finite.ckpt`, with a warning.

    Args:
        monitor: the metric's name in the results of its stage.
        on_stage: 'val' or 'train'.
        mode: 'min' or 'max', what is better.
        patience: stop after so many monitored epochs in a row without improvement; 0 never stops.
        save_best: save when the metric is the best so far; False saves after every monitored epoch.
        ckpt_dir: the folder of all runs.
        every_n_steps: also keep the newest state within an epoch, every so many updates, in a file of its own
            (`checkpoint-step.ckpt`); resuming goes on with the next batch.
        on_sigterm: save to that file and stop in good order when the process gets SIGTERM while it trains, as
            clusters send it before they take a machine back; all ranks stop after the same window. One process alone
            stops within the validation, too, and a resume begins that anew.
        sigterm_seconds: how long that may take: a process that cannot stop by then (in one very long batch, or in
            the validation of several ranks) ends without a save. Give less than the cluster does before it kills.

    Raises:
        ValueError: an argument is out of its range.

    Example:
        >>> Trainer(model, loss, opt, callbacks=[CheckCallback("loss", patience=5)], resume=True)
    """

    def __init__(
        self,
        monitor: str,
        on_stage: str = "val",
        mode: str = "min",
        patience: int = 0,
        save_best: bool = True,
        ckpt_dir: str = "./logs",
        every_n_steps: int | None = None,
        on_sigterm: bool = True,
        sigterm_seconds: float = 10.0,
    ) -> None:
        super().__init__(priority=-1)
        if on_stage not in ("train", "val"):
            raise ValueError(f"`on_stage` must be 'train' or 'val', got {on_stage!r}")
        if mode not in ("min", "max"):
            raise ValueError(f"`mode` must be 'min' or 'max', got {mode!r}")
        if not isinstance(patience, int) or patience < 0:
            raise ValueError(f"`patience` must be a whole number of at least 0, got {patience!r}")
        if every_n_steps is not None and (not isinstance(every_n_steps, int) or every_n_steps < 1):
            raise ValueError(f"`every_n_steps` must be a whole number of at least 1, got {every_n_steps!r}")
        is_number = isinstance(sigterm_seconds, (int, float)) and not isinstance(sigterm_seconds, bool)
        if not is_number or not 0 < sigterm_seconds <= threading.TIMEOUT_MAX:
            raise ValueError(f"`sigterm_seconds` must be a number of seconds above 0, got {sigterm_seconds!r}")
        self.every_n_steps, self.on_sigterm = every_n_steps, on_sigterm
        self.sigterm_seconds = float(sigterm_seconds)
        self.monitor, self.on_stage, self.mode = monitor, on_stage, mode
        self.patience, self.save_best = patience, save_best
        self.ckpt_dir = os.path.abspath(ckpt_dir)  # whatever the working directory becomes
        self.best_value: float | None = None
        self.worse_times = 0
        self.number = 1  # among the monitors of this folder; the trainer counts them
        self.found: Path | None = None  # where its file lay when a checkpoint was loaded
        self._has_warned = False

    def path(self, trainer: Run) -> Path:
        """Its file in the present run."""
        name = "checkpoint.ckpt" if self.number == 1 else f"checkpoint-{self.number}.ckpt"
        return Path(self.ckpt_dir, trainer.running_id, name)

    def step_path(self, trainer: Run) -> Path:
        """Its file of states within an epoch."""
        path = self.path(trainer)
        return path.with_name(f"{path.stem}-step.ckpt")

    def existing(self, trainer: Run) -> Path | None:
        """Its file, if it has one: of this run, else of the run that was resumed."""
        for path in (self.path(trainer), self.found):
            if path is not None and path.is_file():
                return path
        return None

    def on_after_epoch(
        self,
        trainer: Run,
        train_tasks: Sequence[Task],
        val_tasks: Sequence[Task],
        train_metrics: dict[str, Any],
        val_metrics: dict[str, Any],
        epoch_idx: int,
    ) -> None:
        """Looks at the metric; asks for a save, or to stop."""
        metrics = val_metrics if self.on_stage == "val" else train_metrics
        if self.on_stage == "val" and val_tasks and not val_metrics:
            return  # an epoch without validation
        value = self._value(metrics)
        is_better = self._is_better(value)
        if is_better or not self.save_best:
            trainer.checkpointer.request(self)
        if is_better and trainer.checkpointer.is_finite():  # broken weights are never the best, whatever they gave
            self.best_value, self.worse_times = value, 0
        else:
            self.worse_times += 1
        if 0 < self.patience <= self.worse_times:
            raise StopLoopException(
                f"stopped early: {self.on_stage} {self.monitor} has not improved for {self.worse_times} epochs "
                f"(best {self.best_value})"
            )

    def _value(self, metrics: Mapping[str, Any]) -> float:
        if self.monitor not in metrics:
            hint = "" if metrics else "; without validation data use on_stage='train'"
            raise CallbackException(
                f"CheckCallback watches {self.monitor!r}, the {self.on_stage} metrics are {sorted(metrics)}{hint}"
            )
        try:
            return float(metrics[self.monitor])
        except TypeError as error:
            raise CallbackException(
                f"CheckCallback needs a number, {self.monitor!r} is {metrics[self.monitor]}"
            ) from error

    def _is_better(self, value: float) -> bool:
        if not math.isfinite(value):
            if not self._has_warned:
                self._has_warned = True
                name = "NaN" if math.isnan(value) else "infinite"
                warnings.warn(
                    f"{self.on_stage} {self.monitor} is {name}: it counts as no improvement", UserWarning, stacklevel=2
                )
            return False
        if self.best_value is None:
            return True
        return value < self.best_value if self.mode == "min" else value > self.best_value

    def identity(self) -> dict[str, str]:
        """What tells it from other monitors."""
        return {"monitor": self.monitor, "on_stage": self.on_stage, "mode": self.mode}

    def state_dict(self) -> dict[str, Any]:
        """Its early-stop state."""
        return {**self.identity(), "best_value": self.best_value, "worse_times": self.worse_times}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        best_value, worse_times = state["best_value"], state["worse_times"]
        if best_value is not None and (isinstance(best_value, bool) or not isinstance(best_value, (int, float))):
            raise ValueError(f"a monitor's best value must be a number, got {best_value!r}")
        if isinstance(worse_times, bool) or not isinstance(worse_times, int):
            raise ValueError(f"a monitor's count of epochs must be a whole number, got {worse_times!r}")
        self.best_value, self.worse_times = best_value, worse_times


def number_monitors(callbacks: Sequence[Any]) -> list[CheckCallback]:
    """The monitors among callbacks, in the order of their declaration, numbered within their folders."""
    monitors = [each for each in callbacks if isinstance(each, CheckCallback)]
    folders: dict[Path, int] = {}
    for monitor in monitors:
        folder = Path(monitor.ckpt_dir).resolve()
        folders[folder] = monitor.number = folders.get(folder, 0) + 1
    return monitors
