"""Console: run info, a line an epoch, and in a terminal a batch line in place or a progress bar."""

from __future__ import annotations

import datetime
import time
from typing import Any, Mapping, Sequence

import numpy

from ..output import Output
from ..protocols import Run, Task
from ..tools import as_array
from .base import Callback

REFRESH_S = 0.1


class Console(Callback):
    """Prints run info before the first fit and a line after each epoch and test, in the main process.

    Args:
        log_long: seven decimals rather than four.
        show_info: print the run info.
    """

    def __init__(self, log_long: bool, show_info: bool) -> None:
        super().__init__(priority=0)
        self.decimals = 7 if log_long else 4
        self._shows_info = show_info
        self._epochs = 0
        self._tests = 0

    def on_before_fit(self, trainer: Run, epochs: int) -> None:
        """Prints the run info, once."""
        self._epochs = epochs
        if self._shows_info and trainer.main_process:
            self._shows_info = False
            print_info(run_info(trainer), trainer.output)

    def on_after_epoch(
        self,
        trainer: Run,
        train_tasks: Sequence[Task],
        val_tasks: Sequence[Task],
        train_metrics: dict[str, Any],
        val_metrics: dict[str, Any],
        epoch_idx: int,
    ) -> None:
        """Prints the epoch's line."""
        text = f"{self.epoch_text(epoch_idx)}  TRAIN> {self.metric_text(train_metrics)}"
        if val_metrics:
            text += f"  VAL> {self.metric_text(val_metrics)}"
        self.print_line(trainer, text)

    def on_before_test_epochs(self, trainer: Run, tasks: Sequence[Task]) -> None:
        """Counts the tasks."""
        self._tests = len(tasks)

    def on_after_test_epochs(self, trainer: Run, tasks: Sequence[Task], metrics: dict[str, Any]) -> None:
        """Prints the test's line."""
        self.print_line(trainer, f"TEST> {self.metric_text(metrics)}")

    def print_line(self, trainer: Run, text: str) -> None:
        """Prints a line that stays."""
        trainer.print(text, flush=True)

    def epoch_text(self, epoch_idx: int) -> str:
        """Such as 'E  3/10'."""
        return f"E {epoch_idx + 1:>{len(str(self._epochs))}}/{self._epochs}"

    def metric_text(self, metrics: Mapping[str, Any]) -> str:
        """Such as 'loss: 0.1234 acc: 0.9876'."""
        return " ".join([f"{name}: {self.value_text(value)}" for name, value in metrics.items()])

    def value_text(self, value: Any) -> str:
        """A value with the chosen number of decimals (a sync point for a tensor)."""
        if hasattr(value, "detach"):
            value = as_array(value)
        if numpy.ndim(value):
            return numpy.array2string(numpy.asarray(value), precision=self.decimals, threshold=8).replace("\n", "")
        return f"{float(value):.{self.decimals}f}"


class Pace:
    """Samples a second since a stage began, and the time that is left; it counts when the display is refreshed."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._done, self._samples, self._elapsed = 0, 0, 0.0

    def update(self, done: int, batch_size: int, now: float) -> float:
        """Takes in that `done` batches are finished, the new ones taken to be of the present size.

        Returns:
            Samples a second.
        """
        self._samples += (done - self._done) * batch_size
        self._done, self._elapsed = done, max(now - self._begin, 1e-9)
        return self._samples / self._elapsed

    def time_left(self, total: int) -> str:
        """How long the rest of `total` batches takes at this pace, such as '0:01:30'."""
        return str(datetime.timedelta(seconds=round(self._elapsed * (total / max(self._done, 1) - 1))))


class LiveConsole(Console):
    """A console in a terminal: besides its lines it shows the present batch, at most ten times a second.

    Args:
        log_long: see Console.
        show_info: see Console.
        log_batch: show the present batch's metrics.
        log_tqdm: show a progress bar with the time that is left.
    """

    def __init__(self, log_long: bool, show_info: bool, log_batch: bool, log_tqdm: bool) -> None:
        super().__init__(log_long, show_info)
        self._shows_metrics = log_batch
        self._has_bar = log_tqdm
        self._bar: Any = None
        self._bar_output = Output(is_bare=True)
        self._due = float("inf")
        self._place, self._stage = "", ""
        self._total = 0
        self._done = 0
        self._pace = Pace()

    def on_before_epoch(
        self, trainer: Run, train_tasks: Sequence[Task], val_tasks: Sequence[Task], epoch_idx: int
    ) -> None:
        """Notes the epoch for the batch lines."""
        self._place = self.epoch_text(epoch_idx) + "  "

    def on_before_train_epochs(self, trainer: Run, tasks: Sequence[Task], epoch_idx: int) -> None:
        """Starts the stage's display."""
        self._start(trainer, "TRAIN", tasks)

    def on_before_val_epochs(self, trainer: Run, tasks: Sequence[Task], epoch_idx: int) -> None:
        """Starts the stage's display."""
        self._start(trainer, "VAL", tasks)

    def on_before_test_epochs(self, trainer: Run, tasks: Sequence[Task]) -> None:
        """Starts the stage's display."""
        super().on_before_test_epochs(trainer, tasks)
        outer = self._place, self._stage, self._total, self._done, self._bar, self._pace
        trainer.cleanup.callback(self._go_on, *outer)
        self._place = ""
        self._start(trainer, "TEST", tasks)

    def _go_on(self, place: str, stage: str, total: int, done: int, bar: Any, pace: Pace) -> None:
        """Puts back the display of the epoch within which a test ran."""
        self._place, self._stage, self._total, self._done, self._bar, self._pace = place, stage, total, done, bar, pace
        if bar is not None:
            bar.start()

    def _start(self, trainer: Run, stage: str, tasks: Sequence[Task]) -> None:
        lengths = [task.batchs for task in tasks]
        self._total = 0 if None in lengths else sum(lengths)  # type: ignore[arg-type]
        self._done = 0
        self._stage = stage
        self._pace = Pace()
        shows = trainer.main_process and trainer.output.isatty()
        self._due = 0.0 if shows else float("inf")
        if shows and self._has_bar:
            if self._bar is not None:  # of the epoch around this test; there can only be one
                self._bar.stop()
            self._bar = make_bar(self._bar_output)
            self._bar.add_task(f"{self._place}{stage}", total=self._total or None, metrics="", speed="")
            self._bar.start()
            trainer.cleanup.callback(self._stop_bar)

    def _show(self, trainer: Run, metrics: Mapping[str, Any]) -> None:
        self._done += 1
        now = time.perf_counter()
        if now < self._due:
            return
        self._due = now + REFRESH_S
        text = self.metric_text(metrics) if self._shows_metrics else ""
        speed = self._pace.update(self._done, trainer.current_task.batch_size * trainer.engine.world_size, now)
        if self._bar is not None:
            self._bar.update(0, completed=self._done, metrics=text, speed=f"{speed:,.0f} samples/s")
        else:
            total = f"/{self._total}" if self._total else ""
            left = f"  {self._pace.time_left(self._total)}" if self._total else ""
            place = f"{self._place}B {self._done}{total}  {self._stage}>"
            trainer.print(f"\r\x1b[K{place} {text}  {speed:,.0f} samples/s{left}", end="", flush=True)

    def on_after_train_batch(self, trainer: Run, metrics: Any, batch_idx: int) -> None:
        """Shows the batch, if it is time."""
        self._show(trainer, metrics)

    def on_after_val_batch(self, trainer: Run, metrics: Any, batch_idx: int) -> None:
        """Shows the batch, if it is time."""
        self._show(trainer, metrics)

    def on_after_test_batch(self, trainer: Run, metrics: Any, batch_idx: int) -> None:
        """Shows the batch, if it is time."""
        self._show(trainer, metrics)

    def on_after_train_epochs(
        self, trainer: Run, tasks: Sequence[Task], metrics: dict[str, Any], epoch_idx: int
    ) -> None:
        """Ends the stage's display."""
        self._stop_bar()

    def on_after_val_epochs(self, trainer: Run, tasks: Sequence[Task], metrics: dict[str, Any], epoch_idx: int) -> None:
        """Ends the stage's display."""
        self._stop_bar()

    def on_after_test_epochs(self, trainer: Run, tasks: Sequence[Task], metrics: dict[str, Any]) -> None:
        """Ends the stage's display and prints the test's line."""
        self._stop_bar()
        super().on_after_test_epochs(trainer, tasks, metrics)

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.update(0, completed=self._done)
            self._bar.stop()
            self._bar = None

    def print_line(self, trainer: Run, text: str) -> None:
        """Prints a line in the place of the batch line."""
        if self._due != float("inf"):
            text = f"\r\x1b[K{text}"
        super().print_line(trainer, text)


def make_console(log_long: bool, log_batch: bool, log_tqdm: bool, show_info: bool) -> Console:
    """The console for a trainer's flags and for where its output goes."""
    if (log_batch or log_tqdm) and Output().isatty():
        return LiveConsole(log_long, show_info, log_batch, log_tqdm)
    return Console(log_long, show_info)


def make_bar(output: Output) -> Any:
    """A progress bar with speed and the time that is left; it vanishes when it is done."""
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[metrics]}", markup=False),  # a metric may be named '[/x]'
        console=RichConsole(file=output),  # type: ignore[arg-type]
        transient=True,
    )


def run_info(trainer: Run) -> dict[str, str]:
    """What runs where, by name."""
    from torch.nn.parameter import is_lazy

    sizes = [each.numel() for each in trainer.model.parameters() if each.requires_grad and not is_lazy(each)]
    return {
        "device": str(trainer.engine.device),
        "processes": str(trainer.engine.world_size),
        "precision": trainer.engine.precision,
        "running ID": trainer.running_id,
        "parameters": f"{sum(sizes):,}",
    }


def print_info(info: Mapping[str, str], output: Output) -> None:
    """Prints the run info: a panel in a terminal, else plain lines."""
    if not output.isatty():
        for name, value in info.items():
            print(f"{name + ':':<12} {value}", file=output)
        return
    from rich.console import Console as RichConsole
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in info.items():
        table.add_row(name, Text(value))
    console = RichConsole(file=output)  # type: ignore[arg-type]
    console.print(Panel(table, title="DeepEpochs", expand=False))
