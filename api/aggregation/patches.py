"""Patches: the results of batches in a form that can be added up into the result of a data set."""

from __future__ import annotations

import abc
import copy
from typing import Any, Callable, Mapping, Sequence

import torch
from typing_extensions import Self

from deepepochs.engine import concatenate, describe, leaves, map_nested

from .. import metrics as metric_functions


class PatchBase(abc.ABC):
    """A batch's share of a metric: `load` data into it, add it to others, and call it for the value.

    `a + b` and `sum([a, b])` change neither of them.

    Args:
        name: what the metric is called in results; None takes the key under which a step returned the patch.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name

    @abc.abstractmethod
    def load(self, *values: Any) -> Any:
        """Takes in the data of a batch.

        Returns:
            The patch itself.
        """

    @abc.abstractmethod
    def add(self, obj: Any) -> Any:
        """Merges another patch into this one.

        Args:
            obj: a patch of the same class; it stays as it is.

        Returns:
            The merged patch: this one, changed, or a new one.
        """

    @abc.abstractmethod
    def forward(self) -> Any:
        """The metric's value: a number, a tensor, or a dictionary of these."""

    def __call__(self) -> Any:
        return self.forward()

    def __add__(self, other: Any) -> Any:
        return merge(self.copy(), other)

    def __radd__(self, other: Any) -> Any:
        if isinstance(other, (int, float)) and other == 0:  # where sum() starts
            return self.copy()
        return NotImplemented

    def copy(self) -> Self:
        """A patch with data of its own; metric functions are shared."""
        kept: dict[int, Any] = {id(value): value for value in vars(self).values() if callable(value)}
        for leaf in leaves(vars(self)):
            if isinstance(leaf, torch.Tensor):
                kept[id(leaf)] = leaf.detach().clone()
        return copy.deepcopy(self, kept)


def merge(total: PatchBase, patch: Any) -> Any:
    """Adds a patch to a total that may be changed.

    Raises:
        TypeError: the two are of different classes, or `add` of a user's class returns no patch.
    """
    if not isinstance(patch, type(total)):
        raise TypeError(
            f"only patches of one class can be added, got {type(total).__name__} and {type(patch).__name__}"
        )
    merged = total.add(patch)
    if not isinstance(merged, PatchBase):
        raise TypeError(f"{type(total).__name__}.add must return the merged patch, got {type(merged).__name__}")
    return merged


class ValuePatch(PatchBase):
    """The mean over samples of a value that each batch gives as its mean, such as the loss.

    Args:
        batch_size: samples in the batch.
        name: see PatchBase.

    Example:
        >>> total = ValuePatch(2).load(1.0) + ValuePatch(1).load(4.0)
        >>> float(total())
        2.0
    """

    def __init__(self, batch_size: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.batch_size = batch_size
        self.batch_value: Any = None

    def load(self, batch_mean_value: Any) -> Self:
        """Takes in the batch's mean value: a number, a tensor of any shape, or a dictionary of these."""
        self.batch_value = _weighted(batch_mean_value, self.batch_size)
        return self

    def update(self, batch_mean_value: Any, batch_size: Any) -> None:
        """Adds a batch without a patch of its own: what `load` and `add` together do."""
        value = self.batch_value
        if type(value) is type(batch_mean_value) is torch.Tensor and type(batch_size) in (int, float):
            value.add_(batch_mean_value.detach(), alpha=batch_size)
        else:
            self.batch_value = _summed(value, _weighted(batch_mean_value, batch_size))
        self.batch_size = self.batch_size + batch_size

    def add(self, obj: ValuePatch) -> Self:
        """Merges another patch into this one."""
        self.batch_value = _summed(self.batch_value, obj.batch_value)
        self.batch_size = self.batch_size + obj.batch_size
        return self

    def forward(self) -> Any:
        """The mean, as a 0-dim tensor or in the shape that was loaded."""
        if isinstance(self.batch_value, dict):
            return {key: value / self.batch_size for key, value in self.batch_value.items()}
        return self.batch_value / self.batch_size


def _weighted(value: Any, weight: Any) -> Any:
    """value * weight, in double precision where the device has it: long sums of floats drift."""
    if isinstance(value, Mapping):
        return {key: _weighted(each, weight) for key, each in value.items()}
    if not isinstance(value, torch.Tensor):
        try:
            value = torch.as_tensor(value)
        except (TypeError, RuntimeError, ValueError) as error:
            raise TypeError(f"a batch's value must be a number or a tensor, got {type(value).__name__}") from error
    value = value.detach()
    return value.to(torch.float32 if value.device.type == "mps" else torch.float64) * weight


def _summed(one: Any, other: Any) -> Any:
    if isinstance(one, dict) != isinstance(other, dict) or (isinstance(one, dict) and one.keys() != other.keys()):
        raise ValueError(f"only values of the same names can be added, got {describe(one)} and {describe(other)}")
    return {key: one[key] + other[key] for key in one} if isinstance(one, dict) else one + other


class MeanPatch(ValuePatch):
    """The mean over samples of a metric's batch values; right for metrics that are means over samples.

    Args:
        metric: called with a batch's (preds, targets), returns its mean value or a dictionary of these.
        batch_size: samples in the batch.
        name: see PatchBase.

    Raises:
        TypeError: `metric` cannot be called.
    """

    def __init__(self, metric: Callable[..., Any], batch_size: Any, name: str | None = None) -> None:
        super().__init__(batch_size, name)
        self.metric = _callable(metric)

    def load(self, batch_preds: Any, batch_targets: Any = None) -> Self:
        """Computes the metric of a batch."""
        with torch.no_grad():
            return super().load(self.metric(batch_preds, batch_targets))


class TensorPatch(PatchBase):
    """A metric of all predictions and targets, which are kept, detached and without copies.

    Args:
        metric: called with all (preds, targets).
        batch_size: not needed; here because every patch class of a trainer gets it.
        name: see PatchBase.

    Raises:
        TypeError: `metric` cannot be called.
    """

    def __init__(self, metric: Callable[..., Any], batch_size: Any = None, name: str | None = None) -> None:
        super().__init__(name)
        self.metric = _callable(metric)
        self.batch_size = batch_size
        self.batch_preds: list[Any] = []
        self.batch_targets: list[Any] = []

    def load(self, batch_preds: Any, batch_targets: Any = None) -> Self:
        """Takes in predictions and targets: tensors or nested containers of tensors (batch, ...)."""
        self.batch_preds, self.batch_targets = [detach(batch_preds)], [detach(batch_targets)]
        return self

    def update(self, batch_preds: Any, batch_targets: Any) -> None:
        """Adds a batch without a patch of its own: what `load` and `add` together do."""
        self.batch_preds.append(detach(batch_preds))
        self.batch_targets.append(detach(batch_targets))

    def add(self, obj: TensorPatch) -> Self:
        """Merges another patch into this one."""
        if obj.metric is not self.metric:
            raise ValueError("only patches of one metric can be added")
        self.batch_preds.extend(obj.batch_preds)
        self.batch_targets.extend(obj.batch_targets)
        return self

    def copy(self) -> Self:
        """A patch with lists of its own; the tensors are never changed and are shared."""
        clone = copy.copy(self)
        clone.batch_preds, clone.batch_targets = list(self.batch_preds), list(self.batch_targets)
        return clone

    def joined(self) -> tuple[Any, Any]:
        """All predictions and all targets, each joined along the first dimension.

        Raises:
            ValueError: the batches' shapes do not fit together.
        """
        try:
            return concatenate(self.batch_preds), concatenate(self.batch_targets)
        except (RuntimeError, ValueError) as error:
            raise ValueError(
                f"the batches' predictions or targets cannot be joined ({error}); "
                "use metric_patch='mean', 'confusion' or a patch class of your own"
            ) from error

    def forward(self) -> Any:
        """The metric of all that was loaded."""
        with torch.no_grad():
            return self.metric(*self.joined())


def detach(data: Any) -> Any:
    """Nested tensors without their graph."""
    if type(data) is torch.Tensor:
        return data.detach()
    return map_nested(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, data)


def _callable(metric: Any) -> Callable[..., Any]:
    if not callable(metric):
        raise TypeError(f"`metric` must be a function (preds, targets) -> value, got {type(metric).__name__}")
    function: Callable[..., Any] = metric
    return function


class ConfusionPatch(PatchBase):
    """A metric of the confusion matrix over all batches.

    Args:
        metric: called with the matrix, int64 (classes, classes), rows are targets, columns predictions.
        batch_size: not needed; here because every patch class of a trainer gets it.
        name: see PatchBase.

    Raises:
        TypeError: `metric` cannot be called.
    """

    def __init__(self, metric: Callable[..., Any], batch_size: Any = None, name: str | None = None) -> None:
        super().__init__(name)
        self.metric = _callable(metric)
        self.batch_size = batch_size
        self.confusion_matrix: torch.Tensor | None = None

    def load(self, batch_preds: torch.Tensor, batch_targets: torch.Tensor) -> Self:
        """Counts a batch; for the shapes see `deepepochs.metrics.confusion_matrix`."""
        self.confusion_matrix = metric_functions.confusion_matrix(batch_preds.detach(), batch_targets)
        return self

    def add(self, obj: Any) -> Self:
        """Merges another patch into this one."""
        self.confusion_matrix = _summed_matrices(self.confusion_matrix, obj.confusion_matrix)
        return self

    def forward(self) -> Any:
        """The metric of the summed matrix."""
        return self.metric(self.confusion_matrix)


def _summed_matrices(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    """Sums matrices; one that has not seen the highest classes yet is smaller."""
    if one is None or other is None:
        return one if other is None else other
    size = max(len(one), len(other))
    return _padded(one, size) + _padded(other, size)


def _padded(matrix: torch.Tensor, size: int) -> torch.Tensor:
    missing = size - len(matrix)
    return torch.nn.functional.pad(matrix, (0, missing, 0, missing)) if missing else matrix


class ConfusionMetrics(ConfusionPatch):
    """Several metrics of one confusion matrix, for steps of your own.

    Args:
        metrics: one or several of 'accuracy', 'precision', 'recall', 'f1', 'fbeta'; they are called acc, p, r, f1, fb.
        average: 'micro', 'macro' or 'weighted'; None takes class 1 as positive of two classes, else 'micro'.
        beta: of 'fbeta'.
        name: goes before each metric's own name.

    Raises:
        ValueError: a metric or the average is unknown, or beta is not positive.
    """

    short_names = {"accuracy": "acc", "precision": "p", "recall": "r", "f1": "f1", "fbeta": "fb"}

    def __init__(
        self,
        metrics: str | Sequence[str] = ("accuracy", "precision", "recall", "f1", "fbeta"),
        average: str | None = None,
        beta: float = 1.0,
        name: str = "C.",
    ) -> None:
        PatchBase.__init__(self, name)
        self.confusion_matrix = None
        self.metrics = [metrics] if isinstance(metrics, str) else list(metrics)
        unknown = [each for each in self.metrics if each not in self.short_names]
        if unknown:
            raise ValueError(f"`metrics` must be among {sorted(self.short_names)}, got {unknown}")
        if average not in (None, "micro", "macro", "weighted"):
            raise ValueError(f"`average` must be None, 'micro', 'macro' or 'weighted', got {average!r}")
        if beta <= 0:
            raise ValueError(f"`beta` must be positive, got {beta}")
        self.average = average
        self.beta = beta

    def forward(self) -> dict[str, torch.Tensor]:
        """Each metric under its short name."""
        values = {}
        for name in self.metrics:
            options: dict[str, Any] = {} if name == "accuracy" else {"average": self.average}
            if name == "fbeta":
                options["beta"] = self.beta
            values[self.short_names[name]] = getattr(metric_functions, name)(conf_mat=self.confusion_matrix, **options)
        return values
