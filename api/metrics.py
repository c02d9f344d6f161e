"""Classification metrics: pure functions of predictions and targets, or of their confusion matrix.

A confusion matrix is an int64 tensor (classes, classes): rows are targets, columns predictions. A value that would be
divided by zero is 0, so without samples every metric is 0. Nothing is cached, no result has a gradient, and nothing
here waits for the device unless it says so.
"""

from __future__ import annotations

import torch

__all__ = ["accuracy", "confusion_matrix", "f1", "fbeta", "precision", "recall"]

_AVERAGES = (None, "micro", "macro", "weighted")
_ONE_HOT_TOLERANCE = 1e-2  # rows of soft labels in half precision do not sum to 1 exactly


def confusion_matrix(preds: torch.Tensor, targets: torch.Tensor, num_classes: int | None = None) -> torch.Tensor:
    """Counts how often each target was predicted as each class.

    Whether two-class floats are probabilities or logits is decided for each call: they are probabilities if all of
    them lie within 0 and 1. A small batch of logits may do so by chance; give two columns of scores to be safe.

    Args:
        preds: scores, logits or probabilities (N, classes) or (N, classes, ...) float, the highest is predicted; or
            those of class 1 alone, (N,), (N, 1) or (N, 1, ...) float, probabilities predict it above 0.5, logits
            above 0; or the predicted classes themselves, int or bool, of the targets' shape.
        targets: classes (N,) or (N, ...), int or whole floats, also with a dimension of 1 after the first; or for
            `preds` (N, classes) float also one-hot or soft labels of that shape.
        num_classes: size of the matrix, at least 2. None takes it from `preds`: their columns, or 2 for floats of
            one column and for bool; for int the highest class that occurs plus 1, but at least 2 (waits for the
            device).

    Returns:
        The matrix, int64 (classes, classes), on the device of `preds`.

    Raises:
        TypeError: `preds` or `targets` is no tensor, or `num_classes` no int.
        ValueError: the shapes do not fit together, `num_classes` is too small, or (seen on the CPU only) `targets`
            are no whole numbers, a row of them is not one-hot, or a class is out of range. On CUDA a class out of
            range is torch's device-side assertion, for nothing waits to look.
    """
    preds, targets = _tensor("preds", preds), _tensor("targets", targets)
    predicted, known = _predicted(preds)
    expected = _expected(targets, preds)
    classes = _class_count(num_classes, known, predicted, expected)
    cells = _cells(predicted, expected, classes)
    counts = torch.zeros(classes * classes, dtype=torch.int64, device=cells.device)
    return counts.scatter_add_(0, cells, torch.ones_like(cells)).reshape(classes, classes)


def accuracy(
    preds: torch.Tensor | None = None, targets: torch.Tensor | None = None, conf_mat: torch.Tensor | None = None
) -> torch.Tensor:
    """The part of the samples whose class was predicted.

    `metric(conf_mat)` is `metric(conf_mat=conf_mat)` for all metrics here: so they serve with metric_patch='confusion',
    where a metric receives the summed confusion matrix.

    Args:
        preds: see `confusion_matrix`; or alone, without `targets`, a confusion matrix.
        targets: see `confusion_matrix`.
        conf_mat: a confusion matrix (classes, classes) int or float, in place of `preds` and `targets`.

    Returns:
        0-dim float32.

    Raises:
        TypeError: an argument is no tensor, or the confusion matrix holds no numbers.
        ValueError: neither or both of `conf_mat` and (`preds`, `targets`) are given, or one of them is not as above.
    """
    matrix = _matrix(preds, targets, conf_mat)
    return _ratio(matrix.diagonal().sum(), matrix.sum()).float()


def precision(
    preds: torch.Tensor | None = None,
    targets: torch.Tensor | None = None,
    conf_mat: torch.Tensor | None = None,
    average: str | None = None,
) -> torch.Tensor:
    """Of the samples predicted as a class, the part that is of it: tp / (tp + fp).

    Args:
        preds: see `accuracy`.
        targets: see `accuracy`.
        conf_mat: see `accuracy`.
        average: 'micro' over all samples, 'macro' over the classes that occur in predictions or targets, 'weighted'
            over the classes by their number of targets. None takes class 1 as positive if there are two classes
            (in int `preds` and `targets`: if no class above 1 occurs), else 'micro'.

    Returns:
        0-dim float32.

    Raises:
        TypeError: see `accuracy`.
        ValueError: see `accuracy`; or `average` is unknown.
    """
    return _averaged(_matrix(preds, targets, conf_mat), average, missed=0.0, wrong=1.0)


def recall(
    preds: torch.Tensor | None = None,
    targets: torch.Tensor | None = None,
    conf_mat: torch.Tensor | None = None,
    average: str | None = None,
) -> torch.Tensor:
    """Of the samples of a class, the part that was predicted as it: tp / (tp + fn).

    Args:
        preds: see `accuracy`.
        targets: see `accuracy`.
        conf_mat: see `accuracy`.
        average: see `precision`.

    Returns:
        0-dim float32.

    Raises:
        TypeError: see `accuracy`.
        ValueError: see `precision`.
    """
    return _averaged(_matrix(preds, targets, conf_mat), average, missed=1.0, wrong=0.0)


def fbeta(
    preds: torch.Tensor | None = None,
    targets: torch.Tensor | None = None,
    conf_mat: torch.Tensor | None = None,
    beta: float = 1.0,
    average: str | None = None,
) -> torch.Tensor:
    """The weighted harmonic mean of precision and recall: (1 + beta^2) tp / ((1 + beta^2) tp + beta^2 fn + fp).

    The measure is van Rijsbergen's (Information Retrieval, 2nd ed. 1979, chapter 7), here in counts for each class.

    Args:
        preds: see `accuracy`.
        targets: see `accuracy`.
        conf_mat: see `accuracy`.
        beta: how many times as important recall is as precision; positive.
        average: see `precision`.

    Returns:
        0-dim float32.

    Raises:
        TypeError: see `accuracy`; or `beta` is no number.
        ValueError: see `precision`; or `beta` is not positive.
    """
    if isinstance(beta, bool) or not isinstance(beta, (int, float)):
        raise TypeError(f"`beta` must be a positive number, got {beta!r}")
    if not beta > 0:
        raise ValueError(f"`beta` must be a positive number, got {beta!r}")
    wrong = 1 / (1 + beta * beta)
    return _averaged(_matrix(preds, targets, conf_mat), average, missed=1 - wrong, wrong=wrong)


def f1(
    preds: torch.Tensor | None = None,
    targets: torch.Tensor | None = None,
    conf_mat: torch.Tensor | None = None,
    average: str | None = None,
) -> torch.Tensor:
    """The harmonic mean of precision and recall: 2 tp / (2 tp + fn + fp).

    Args:
        preds: see `accuracy`.
        targets: see `accuracy`.
        conf_mat: see `accuracy`.
        average: see `precision`.

    Returns:
        0-dim float32.

    Raises:
        TypeError: see `accuracy`.
        ValueError: see `precision`.
    """
    return fbeta(preds, targets, conf_mat, beta=1.0, average=average)


def _tensor(name: str, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"`{name}` must be a tensor, got {type(value).__name__}")
    return value.detach()


def _predicted(preds: torch.Tensor) -> tuple[torch.Tensor, int | None]:
    """The predicted classes, flat int64, and the number of classes if `preds` tell it without a look at the values."""
    if preds.ndim == 0 or 0 in preds.shape[1:]:
        raise ValueError(f"`preds` must be (N,), (N, 1), (N, classes) or (N, classes, ...), got {tuple(preds.shape)}")
    if not preds.is_floating_point():
        return preds.flatten().long(), 2 if preds.dtype == torch.bool else None
    if preds.ndim > 1 and preds.shape[1] > 1:
        return preds.argmax(dim=1).flatten(), preds.shape[1]
    are_probabilities = ((preds >= 0) & (preds <= 1)).all()
    threshold = are_probabilities * 0.5  # on the device, for an `if` would wait; 0 for logits
    return (preds > threshold).flatten().long(), 2


def _expected(targets: torch.Tensor, preds: torch.Tensor) -> torch.Tensor:
    """The target classes, flat int64."""
    has_columns = preds.is_floating_point() and preds.ndim == 2 and preds.shape[1] > 1
    if has_columns and targets.shape == preds.shape:
        return _hottest(targets)
    shape = _sample_shape(preds)
    allowed = [shape, (shape[0], 1, *shape[1:])]
    if tuple(targets.shape) not in allowed:
        one_hot = f", or one-hot {tuple(preds.shape)}" if has_columns else ""
        raise ValueError(
            f"for {preds.dtype} `preds` {tuple(preds.shape)}, `targets` must be classes {allowed[0]} or {allowed[1]}"
            f"{one_hot}, got {tuple(targets.shape)}; floats hold scores along dimension 1, ints hold classes"
        )
    if targets.is_floating_point() and targets.is_cpu and not bool((targets == targets.round()).all()):
        raise ValueError(f"`targets` {tuple(targets.shape)} must be classes, got floats that are not whole numbers")
    return targets.flatten().long()


def _sample_shape(preds: torch.Tensor) -> tuple[int, ...]:
    """The shape of `preds` without the dimension that is no sample's: that of the scores, or a 1 after the first."""
    has_extra = preds.ndim > 1 and (preds.is_floating_point() or preds.shape[1] == 1)
    return (preds.shape[0], *preds.shape[2:]) if has_extra else tuple(preds.shape)


def _hottest(targets: torch.Tensor) -> torch.Tensor:
    """The classes of one-hot or soft labels (N, classes)."""
    weights = targets.float()
    if weights.is_cpu and not bool(((weights.sum(dim=1) - 1).abs() <= _ONE_HOT_TOLERANCE).all()):
        raise ValueError(
            f"`targets` {tuple(targets.shape)} of the shape of `preds` must be one-hot, each row with the sum 1, got "
            "other rows; there is no metric of several labels a sample here"
        )
    return weights.argmax(dim=1)


def _class_count(num_classes: int | None, known: int | None, predicted: torch.Tensor, expected: torch.Tensor) -> int:
    if num_classes is None:
        return known or _highest(predicted, expected) + 1
    if isinstance(num_classes, bool) or not isinstance(num_classes, int):
        raise TypeError(f"`num_classes` must be an int or None, got {num_classes!r}")
    if num_classes < (known or 2):
        raise ValueError(f"`num_classes` must be at least {known or 2} for these `preds`, got {num_classes}")
    return num_classes


def _highest(predicted: torch.Tensor, expected: torch.Tensor) -> int:
    """The highest class that occurs, at least 1, as a single class is one of two; waits for the device."""
    return max(int(torch.cat([predicted, expected]).max()), 1) if predicted.numel() else 1


def _cells(predicted: torch.Tensor, expected: torch.Tensor, classes: int) -> torch.Tensor:
    """Each sample's place in the flat matrix."""
    cells = expected * classes + predicted
    if cells.is_cpu:
        _check_range("preds", predicted, classes)
        _check_range("targets", expected, classes)
        return cells
    # No look at the values here, for it would wait. A target out of range is a place outside of the matrix, at which
    # scatter_add_ stops; a prediction could be a wrong place inside, so it is sent out, too.
    is_inside = (predicted >= 0) & (predicted < classes)
    return cells.masked_fill(~is_inside, -1)


def _check_range(name: str, values: torch.Tensor, classes: int) -> None:
    if not values.numel():
        return
    lowest, highest = (int(each) for each in values.aminmax())
    if lowest < 0 or highest >= classes:
        raise ValueError(
            f"`{name}` must hold classes from 0 to {classes - 1}, got {lowest} to {highest}; "
            "leave samples that are to be ignored out before, or pass the right `num_classes`"
        )


def _matrix(preds: torch.Tensor | None, targets: torch.Tensor | None, conf_mat: torch.Tensor | None) -> torch.Tensor:
    """The confusion matrix of what a metric was given, in the device's widest float."""
    if conf_mat is None and targets is None:
        preds, conf_mat = None, preds  # alone it is the summed matrix, as ConfusionPatch passes it
    if preds is not None and targets is not None and conf_mat is None:
        matrix = confusion_matrix(preds, targets)
    elif conf_mat is not None and preds is None and targets is None:
        matrix = _checked_matrix(conf_mat)
    else:
        arguments = {"preds": preds, "targets": targets, "conf_mat": conf_mat}
        given = " and ".join(f"`{name}`" for name, value in arguments.items() if value is not None)
        raise ValueError(f"give either `conf_mat` or both `preds` and `targets`, got {given or 'none of them'}")
    return matrix.to(torch.float32 if matrix.device.type == "mps" else torch.float64)  # MPS has no float64


def _checked_matrix(conf_mat: torch.Tensor) -> torch.Tensor:
    matrix = _tensor("conf_mat", conf_mat)
    if matrix.dtype == torch.bool or matrix.is_complex():
        raise TypeError(f"`conf_mat` must hold int or float counts, got {matrix.dtype}")
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(
            f"`conf_mat` must be square, (classes, classes), got {tuple(matrix.shape)}; `preds` without `targets` are "
            "taken for it"
        )
    return matrix


def _averaged(matrix: torch.Tensor, average: str | None, *, missed: float, wrong: float) -> torch.Tensor:
    """The average of tp / (tp + missed * fn + wrong * fp) over the classes, 0-dim float32."""
    if average not in _AVERAGES:
        raise ValueError(f"`average` must be one of {_AVERAGES}, got {average!r}")
    hits, support, predicted = matrix.diagonal(), matrix.sum(dim=1), matrix.sum(dim=0)
    wholes = hits + missed * (support - hits) + wrong * (predicted - hits)
    if average is None and len(matrix) == 2:
        return _ratio(hits[1], wholes[1]).float()
    if average in (None, "micro"):
        return _ratio(hits.sum(), wholes.sum()).float()
    weights = support if average == "weighted" else (support + predicted > 0).to(matrix.dtype)
    return _ratio((_ratio(hits, wholes) * weights).sum(), weights.sum()).float()


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """part / whole, and 0 where whole is 0."""
    return (part / whole).masked_fill(whole == 0, 0.0)
