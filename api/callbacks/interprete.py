"""InterpreteCallback: the samples with the highest or lowest scores, and confusion matrices."""

from __future__ import annotations

import heapq
import itertools
import math
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Sequence

import torch

from deepepochs.engine import map_nested

from ..metrics import confusion_matrix
from ..plotting import plot_confusion
from ..protocols import Run, Task
from .base import Callback

STAGES = ("train", "val", "test")


class InterpreteCallback(Callback):
    """Keeps the k samples of a stage whose score is highest (or lowest), and draws its confusion matrix.

    Args:
        metric: (preds, targets) -> one score for each sample (samples,); None keeps no samples.
        k: how many samples.
        mode: 'max' keeps the highest scores, 'min' the lowest.
        stages: one or several of 'train', 'val', 'test'; each run of a stage starts anew.
        class_num: number of classes; None takes it from outputs (samples, classes).
        log_dir: the folder of all runs, for figures and images in TensorBoard.
        image_data: write the samples' inputs as images: the first of several, the first field of a dictionary.
        class_names: for the figures' axes.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        metric: Callable[[Any, Any], torch.Tensor] | None = None,
        k: int = 100,
        mode: str = "max",
        stages: str | Sequence[str] = STAGES,
        class_num: int | None = None,
        log_dir: str = "./logs",
        image_data: bool = False,
        class_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        if mode not in ("max", "min"):
            raise ValueError(f"`mode` must be 'max' or 'min', got {mode!r}")
        if not isinstance(k, int) or k < 1:
            raise ValueError(f"`k` must be a whole number of at least 1, got {k!r}")
        self.stages = [stages] if isinstance(stages, str) else list(stages)
        if not set(self.stages) <= set(STAGES):
            raise ValueError(f"`stages` must be among {STAGES}, got {stages!r}")
        self.metric, self.k, self.sign = metric, k, 1.0 if mode == "max" else -1.0
        self.class_num, self.class_names = class_num, class_names
        self.log_dir, self.image_data = log_dir, image_data
        self.confusion_matrix: torch.Tensor | None = None
        self._heap: list[tuple[float, int, list[Any]]] = []
        self._order = itertools.count()
        self._inputs: Any = None

    def top_samples(self) -> list[list[Any]]:
        """The samples of the last run of a stage, the most extreme first; the same on all ranks.

        Returns:
            [value, pred, label, input] for each: a float, and CPU tensors of their own; the input as the model got it,
            a tensor, a tuple or a dictionary.
        """
        return [record for _, _, record in sorted(self._heap, key=lambda each: -each[0])]

    def top(self) -> list[list[Any]]:
        """The same as `top_samples`."""
        return self.top_samples()

    # ---- events

    def on_before_fit(self, trainer: Run, epochs: int) -> None:
        """Opens the log."""
        trainer.writer.open(self.log_dir, last_step)

    def on_before_train_epochs(self, trainer: Run, tasks: Sequence[Task], epoch_idx: int) -> None:
        """Starts anew."""
        self._start("train")

    def on_before_val_epochs(self, trainer: Run, tasks: Sequence[Task], epoch_idx: int) -> None:
        """Starts anew."""
        self._start("val")

    def on_before_test_epochs(self, trainer: Run, tasks: Sequence[Task]) -> None:
        """Opens the log and starts anew."""
        trainer.writer.open(self.log_dir, last_step)
        self._start("test")

    def _start(self, stage: str) -> None:
        if stage in self.stages:
            self._heap, self.confusion_matrix = [], None

    def on_before_train_batch(self, trainer: Run, batch_x: Any, batch_y: Any, batch_idx: int) -> None:
        """Notes the inputs."""
        self._inputs = batch_x

    def on_before_val_batch(self, trainer: Run, batch_x: Any, batch_y: Any, batch_idx: int) -> None:
        """Notes the inputs."""
        self._inputs = batch_x

    def on_before_test_batch(self, trainer: Run, batch_x: Any, batch_y: Any, batch_idx: int) -> None:
        """Notes the inputs."""
        self._inputs = batch_x

    def on_train_metrics(self, trainer: Run, loss: Any, model_out: Any, batch_y: Any, task: Task) -> None:
        """Takes in a batch."""
        self._take("train", model_out, batch_y)

    def on_val_metrics(self, trainer: Run, loss: Any, model_out: Any, batch_y: Any, task: Task) -> None:
        """Takes in a batch."""
        self._take("val", model_out, batch_y)

    def on_test_metrics(self, trainer: Run, loss: Any, model_out: Any, batch_y: Any, task: Task) -> None:
        """Takes in a batch."""
        self._take("test", model_out, batch_y)

    def on_after_train_epochs(
        self, trainer: Run, tasks: Sequence[Task], metrics: dict[str, Any], epoch_idx: int
    ) -> None:
        """Merges the ranks and writes figures."""
        self._finish(trainer, "train", epoch_idx + 1)

    def on_after_val_epochs(self, trainer: Run, tasks: Sequence[Task], metrics: dict[str, Any], epoch_idx: int) -> None:
        """Merges the ranks and writes figures."""
        self._finish(trainer, "val", epoch_idx + 1)

    def on_after_test_epochs(self, trainer: Run, tasks: Sequence[Task], metrics: dict[str, Any]) -> None:
        """Merges the ranks and writes figures."""
        self._finish(trainer, "test", trainer.init_epoch)

    # ---- work

    def _take(self, stage: str, model_out: Any, batch_y: Any) -> None:
        if stage not in self.stages:
            return
        if self.metric is not None:
            with torch.no_grad():
                scores = self.metric(model_out, batch_y)
            self._keep(scores, model_out, batch_y)
        classes = self.class_num or class_count(model_out)
        if classes is not None and isinstance(batch_y, torch.Tensor):
            matrix = confusion_matrix(model_out, batch_y, classes)
            self.confusion_matrix = matrix if self.confusion_matrix is None else self.confusion_matrix + matrix

    def _keep(self, scores: Any, model_out: Any, batch_y: Any) -> None:
        if not isinstance(scores, torch.Tensor) or scores.ndim != 1:
            got = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise ValueError(f"`metric` must return one score for each sample (samples,), got {got}; do not reduce it")
        count = len(scores)
        for index, score in enumerate(scores.tolist()):
            key = self.sign * score
            if math.isnan(key) or (len(self._heap) == self.k and key <= self._heap[0][0]):
                continue
            record = [score, *[sample(data, index, count) for data in (model_out, batch_y, self._inputs)]]
            entry = (key, next(self._order), record)
            if len(self._heap) < self.k:
                heapq.heappush(self._heap, entry)
            else:
                heapq.heapreplace(self._heap, entry)

    def _finish(self, trainer: Run, stage: str, step: int) -> None:
        if stage not in self.stages:
            return
        gathered = trainer.engine.gather_object(self._heap)
        merged = [(key, number, record) for number, (key, _, record) in enumerate(itertools.chain(*gathered))]
        self._heap = heapq.nlargest(self.k, merged, key=lambda each: each[0])
        heapq.heapify(self._heap)
        matrices = [each for each in trainer.engine.gather_object(on_cpu(self.confusion_matrix)) if each is not None]
        self.confusion_matrix = sum(matrices[1:], matrices[0]) if matrices else None
        if not trainer.main_process:
            return
        board = trainer.writer.board
        if self.confusion_matrix is not None:
            self._write_figure(board, stage, step)
        if self.image_data:
            self._write_images(board, stage, step)
        trainer.writer.flush()

    def _write_figure(self, board: Any, stage: str, step: int) -> None:
        try:
            figure = plot_confusion(self.confusion_matrix, class_names=self.class_names, info=f"{stage} {step}")
        except ImportError as error:  # the matrix is there without matplotlib
            warnings.warn(f"no figure of the confusion matrix: {error}", UserWarning, stacklevel=2)
            return
        board.add_figure(f"confusion_matrix/{stage}", figure, step)

    def _write_images(self, board: Any, stage: str, step: int) -> None:
        rows = ["| image | score | prediction | label |", "|---|---|---|---|"]
        for index, (value, pred, label, inputs) in enumerate(self.top_samples()):
            image = first_field(inputs)
            layout = "CHW" if image.ndim == 3 else "HW"
            board.add_image(f"top_samples_{stage}/{index}", image.float().clamp(0, 1), step, dataformats=layout)
            rows.append(f"| {index} | {value:.4f} | {caption(pred)} | {caption(label)} |")
        board.add_text(f"top_samples_{stage}", "\n".join(rows), step)

    def run_tensorboard(self) -> Any:
        """Starts TensorBoard on the log folder, see `deepepochs.run_tensorboard`."""
        from ..board import run_tensorboard

        return run_tensorboard(self.log_dir)


def last_step(tag: str, epochs: int) -> int | None:
    """The last step of a figure or an image in the log: they are counted in epochs; None for what others write."""
    return epochs if tag.split("/")[0] in ("confusion_matrix", *[f"top_samples_{stage}" for stage in STAGES]) else None


def sample(data: Any, index: int, count: int) -> Any:
    """One sample of nested batch data, as CPU tensors of their own."""

    def pick(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        own = leaf[index] if leaf.ndim and len(leaf) == count else leaf
        return own.detach().to("cpu", copy=True).contiguous()

    return map_nested(pick, data)


def on_cpu(matrix: torch.Tensor | None) -> torch.Tensor | None:
    """A matrix as it can travel."""
    return None if matrix is None else matrix.cpu()


def class_count(model_out: Any) -> int | None:
    """The number of classes of outputs (samples, classes); None for others."""
    is_scores = isinstance(model_out, torch.Tensor) and model_out.ndim == 2 and model_out.shape[1] > 1
    return int(model_out.shape[1]) if is_scores else None


def first_field(inputs: Any) -> torch.Tensor:
    """The tensor that stands for a sample: the only one, the first of several, or the first field."""
    if isinstance(inputs, Mapping):
        inputs = next(iter(inputs.values()))
    while isinstance(inputs, (list, tuple)):
        inputs = inputs[0]
    tensor: torch.Tensor = inputs
    return tensor


def caption(value: Any) -> str:
    """A short text for a prediction or a label."""
    if isinstance(value, torch.Tensor):
        return str(
            value.item() if value.numel() == 1 else int(value.argmax()) if value.ndim == 1 else tuple(value.shape)
        )
    return str(value)[:40]
