"""LogCallback: metrics, learning rates, the model's graph and hyper-parameters for TensorBoard."""

from __future__ import annotations

import json
import time
import warnings
from typing import Any, Mapping

import numpy
import torch

from ..protocols import Run
from ..tools import as_array
from .base import Callback

ALWAYS, GAP_S = 200, 0.005  # so many batches are all logged, then one at most every so often
FLUSH_EVERY = 50


class LogCallback(Callback):
    """Writes to TensorBoard, under tags such as 'loss/epoch/val', 'acc/batch/train', 'learning_rate/epoch/train'.

    Values of batches are kept as tensors and converted together, so that the device is seldom waited for; in a very
    fast loop not every batch is logged (the first 200, then at most 200 a second).

    Args:
        log_dir: the folder of all runs; this run's log goes to `<log_dir>/<running_id>`.
        log_graph: also write the model's graph.
        example_input: what the graph is traced with: one input, or a tuple of several; None takes the first batch.
        json_lines: write `<log_dir>/<running_id>/scalars.jsonl` instead of a TensorBoard log: an object a line, with
            `step` and the values by the same tags.

    Raises:
        ValueError: a graph is to go into JSON lines.

    Example:
        >>> Trainer(model, loss, opt, callbacks=[LogCallback("./logs")], hyper_params={"lr": 0.1})
    """

    def __init__(
        self, log_dir: str = "./logs", log_graph: bool = False, example_input: Any = None, json_lines: bool = False
    ) -> None:
        super().__init__()
        if log_graph and json_lines:
            raise ValueError("a graph cannot be written as JSON lines: leave out `log_graph` or `json_lines`")
        self.json_lines = json_lines
        self.log_dir, self.log_graph, self.example_input = log_dir, log_graph, example_input
        self._batches = {"train": 0, "val": 0, "test": 0}
        self._waiting: list[tuple[int, dict[str, Any]]] = []
        self._last = 0.0
        self._rates: dict[str, float] = {}
        self._is_silent = False

    def on_before_fit(self, trainer: Run, epochs: int) -> None:
        """Opens the log."""
        self._start(trainer)

    def on_before_test_epochs(self, trainer: Run, tasks: Any) -> None:
        """Opens the log."""
        self._start(trainer)

    def _start(self, trainer: Run) -> None:
        self._is_silent = not trainer.main_process
        trainer.writer.open(self.log_dir, self.last_step)
        trainer.cleanup.callback(self._flush, trainer)

    def on_before_epoch(self, trainer: Run, train_tasks: Any, val_tasks: Any, epoch_idx: int) -> None:
        """Notes the learning rates that the epoch begins with."""
        self._rates = learning_rates(trainer)

    def on_before_train_batch(self, trainer: Run, batch_x: Any, batch_y: Any, batch_idx: int) -> None:
        """Counts the batch, and writes the graph, once."""
        self._batches["train"] += 1  # here, so that a checkpoint right after the update has counted it
        if self.log_graph and not self._is_silent:
            self.log_graph = False
            self._write_graph(trainer, batch_x if self.example_input is None else self.example_input)

    def _write_graph(self, trainer: Run, example: Any) -> None:
        was_training = trainer.model.training
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # TensorBoard's graphs are made by torch.jit
                trainer.writer.board.add_graph(trainer.model, tuple(example) if isinstance(example, list) else example)
        except Exception as error:  # tracing fails in as many ways as there are models; training must go on
            warnings.warn(f"the model's graph cannot be logged: {str(error)[:300]}", UserWarning, stacklevel=2)
        finally:
            trainer.model.train(was_training)

    def on_after_train_batch(self, trainer: Run, metrics: Any, batch_idx: int) -> None:
        """Keeps the batch's values."""
        self._keep(trainer, metrics, "train")

    def on_after_val_batch(self, trainer: Run, metrics: Any, batch_idx: int) -> None:
        """Keeps the batch's values."""
        self._batches["val"] += 1
        self._keep(trainer, metrics, "val")

    def on_after_test_batch(self, trainer: Run, metrics: Any, batch_idx: int) -> None:
        """Keeps the batch's values."""
        self._batches["test"] += 1
        self._keep(trainer, metrics, "test")

    def _keep(self, trainer: Run, metrics: Mapping[str, Any], stage: str) -> None:
        index = self._batches[stage]
        now = time.perf_counter()
        if self._is_silent or (index > ALWAYS and now - self._last < GAP_S):
            return
        self._last = now
        values = {f"{name}/batch/{stage}": value for name, value in metrics.items()}
        if stage == "train":
            values.update({f"{name}/batch/train": rate for name, rate in learning_rates(trainer).items()})
        self._waiting.append((index, values))
        if len(self._waiting) >= FLUSH_EVERY:
            self._write(trainer)

    def _write(self, trainer: Run) -> None:
        """Writes what was kept (a sync point)."""
        waiting, self._waiting = self._waiting, []
        self._put(trainer, [(index, as_numbers(values)) for index, values in waiting])

    def _put(self, trainer: Run, steps: list[tuple[int, dict[str, float]]]) -> None:
        if self.json_lines:
            trainer.writer.lines([{"step": step, **values} for step, values in steps])
            return
        for step, values in steps:
            trainer.writer.scalars(values, step)

    def _flush(self, trainer: Run) -> None:
        self._write(trainer)
        trainer.writer.flush()

    def on_after_train_epochs(self, trainer: Run, tasks: Any, metrics: dict[str, Any], epoch_idx: int) -> None:
        """Writes the epoch's metrics and the learning rates that it began with."""
        self._write_epoch(trainer, {**metrics, **self._rates}, "train", epoch_idx)

    def on_after_val_epochs(self, trainer: Run, tasks: Any, metrics: dict[str, Any], epoch_idx: int) -> None:
        """Writes the epoch's metrics."""
        self._write_epoch(trainer, metrics, "val", epoch_idx)

    def _write_epoch(self, trainer: Run, metrics: Mapping[str, Any], stage: str, epoch_idx: int) -> None:
        self._write(trainer)
        values = {f"{name}/epoch/{stage}": value for name, value in metrics.items()}
        self._put(trainer, [(epoch_idx + 1, as_numbers(values))])
        trainer.writer.flush()

    def on_after_test_epochs(self, trainer: Run, tasks: Any, metrics: dict[str, Any]) -> None:
        """Writes the test's metrics, with the hyper-parameters if there are any."""
        self._write(trainer)
        values, params = as_numbers({f"{name}/test": value for name, value in metrics.items()}), trainer.hyper_params
        if params is not None and self.json_lines:
            record = {"step": trainer.init_epoch, **values, "hyper_params": params}
            trainer.writer.lines([json.loads(json.dumps(record, default=str))])
            return
        if params is not None:
            trainer.writer.hyper_params(params, list(values))
        self._put(trainer, [(trainer.init_epoch, values)])
        self._flush(trainer)

    def last_step(self, tag: str, epochs: int) -> int | None:
        """The last step of a curve that was counted.

        Args:
            tag: the curve's.
            epochs: finished epochs.

        Returns:
            None for a curve of others, and for batches if none was counted: the loaded file knew nothing of them.
        """
        name, stage = tag.split("/")[:-1], tag.split("/")[-1]
        place = name[-1] if len(name) > 1 else ""
        if stage not in self._batches or not name:
            return None
        if place == "batch":
            return self._batches[stage] if self._batches["train"] else None
        return epochs if place == "epoch" or stage == "test" else None

    def state_dict(self) -> dict[str, Any]:
        """How many batches of each stage were counted."""
        return {"batches": dict(self._batches)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on counting there."""
        self._batches.update(state["batches"])

    def run_tensorboard(self) -> Any:
        """Starts TensorBoard on the log folder, see `deepepochs.run_tensorboard`."""
        from ..board import run_tensorboard

        return run_tensorboard(self.log_dir)


def learning_rates(trainer: Run) -> dict[str, float]:
    """The learning rates of all optimizers and groups by name: 'learning_rate' if there is one, else numbered."""
    rates = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in trainer.opt]
    if len(rates) == 1 and len(rates[0]) == 1:
        return {"learning_rate": rates[0][0]}
    found: dict[str, float] = {}
    for index, groups in enumerate(rates):
        name = "learning_rate" if len(rates) == 1 else f"learning_rate_{index}"
        for number, rate in enumerate(groups):
            found[name if len(groups) == 1 else f"{name}_group_{number}"] = rate
    return found


def as_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Scalars as floats; a vector as one entry for each element (a sync point)."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            value = as_array(value)
        if numpy.ndim(value) == 0:
            found[name] = float(value)
        else:
            head, _, tail = name.partition("/")
            for index, each in enumerate(numpy.ravel(value)):
                found[f"{head}_{index}{'/' if tail else ''}{tail}"] = float(each)
    return found
