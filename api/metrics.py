"""Classification metrics: pure functions of predictions and targets, or of their confusion matrix.

A confusion matrix is an int64 tensor (classes, classes): rows are targets, columns predictions. Where a value would
be divided by zero it is 0. Nothing here waits for the device unless it says so.
"""

from __future__ import annotations

from typing import Any

import torch

AVERAGES = (None, "micro", "macro", "weighted")


def confusion_matrix(preds: torch.Tensor, targets: torch.Tensor, num_classes: int | None = None) -> torch.Tensor:
    """Counts how often each target was predicted as each class.

    Args:
        preds: scores, logits or probabilities (N, classes, ...) float; or of two classes (N,) or (N, 1) float:
            probabilities of class 1 if all lie within 0 and 1, else logits; or predicted classes (N,) or (N, 1) int.
        targets: classes (N,), (N, 1) or (N, ...), int or whole floats; or one-hot (N, classes).
        num_classes: number of classes; None takes it from `preds`; for predicted classes from the highest class
            that occurs (a sync point).

    Returns:
        The matrix, int64 (classes, classes).

    Raises:
        ValueError: shapes do not fit, or on the CPU a class is out of range.
    """
    preds, targets = preds.detach(), targets.detach()
    predicted, found = predicted_classes(preds)
    expected = target_classes(targets, preds)
    if predicted.numel() != expected.numel():
        raise ValueError(f"`preds` {tuple(preds.shape)} and `targets` {tuple(targets.shape)} do not fit together")
    classes = num_classes or found
    if classes is None:
        highest = [int(each.max()) for each in (predicted, expected) if each.numel()]
        classes = max([*highest, 1]) + 1
    if predicted.device.type == "cpu":
        check_range(predicted, expected, classes)
    cells = expected * classes + predicted
    counts = torch.zeros(classes * classes, dtype=torch.int64, device=cells.device)
    return counts.scatter_add_(0, cells, torch.ones_like(cells)).reshape(classes, classes)


def predicted_classes(preds: torch.Tensor) -> tuple[torch.Tensor, int | None]:
    """The predicted classes, flat int64, and how many classes there are if that is known."""
    if preds.ndim > 1 and preds.shape[1] > 1:
        return preds.argmax(dim=1).flatten(), preds.shape[1]
    flat = preds.flatten()
    if not flat.is_floating_point():
        return flat.long(), 2 if flat.dtype == torch.bool else None
    are_probabilities = ((flat >= 0) & (flat <= 1)).all()
    threshold = torch.where(are_probabilities, 0.5, 0.0)
    return (flat > threshold).long(), 2


def target_classes(targets: torch.Tensor, preds: torch.Tensor) -> torch.Tensor:
    """The target classes, flat int64."""
    is_one_hot = targets.ndim > 1 and targets.shape == preds.shape and targets.shape[1] > 1
    return targets.argmax(dim=1).flatten() if is_one_hot else targets.flatten().long()


def check_range(predicted: torch.Tensor, expected: torch.Tensor, classes: int) -> None:
    """Refuses classes that the matrix has no place for."""
    for name, values in (("preds", predicted), ("targets", expected)):
        if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < classes:
            raise ValueError(
                f"`{name}` must hold classes within 0 and {classes - 1}, got {int(values.min())} to {int(values.max())}"
            )


def accuracy(
    preds: torch.Tensor | None = None, targets: torch.Tensor | None = None, conf_mat: torch.Tensor | None = None
) -> torch.Tensor:
    """The part of samples whose class was predicted.

    Args:
        preds: see `confusion_matrix`; or alone, without `targets`, a confusion matrix.
        targets: see `confusion_matrix`.
        conf_mat: a confusion matrix, instead of both.

    Returns:
        0-dim float.

    Raises:
        ValueError: not just one of (preds, targets) and conf_mat is given.
    """
    matrix = matrix_of(preds, targets, conf_mat)
    return ratio(matrix.diagonal().sum(), matrix.sum())


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
        average: 'micro' over all samples, 'macro' over the classes that occur, 'weighted' by their targets;
            None takes class 1 as positive where there are two classes, else 'micro'.

    Returns:
        0-dim float.

    Raises:
        ValueError: as `accuracy`, or the average is unknown.
    """
    return averaged(matrix_of(preds, targets, conf_mat), average, 0.0, 1.0)


def recall(
    preds: torch.Tensor | None = None,
    targets: torch.Tensor | None = None,
    conf_mat: torch.Tensor | None = None,
    average: str | None = None,
) -> torch.Tensor:
    """Of the samples of a class, the part predicted as it: tp / (tp + fn); arguments as for `precision`."""
    return averaged(matrix_of(preds, targets, conf_mat), average, 1.0, 0.0)


def fbeta(
    preds: torch.Tensor | None = None,
    targets: torch.Tensor | None = None,
    conf_mat: torch.Tensor | None = None,
    beta: float = 1.0,
    average: str | None = None,
) -> torch.Tensor:
    """The weighted harmonic mean of precision and recall: (1 + b^2) tp / ((1 + b^2) tp + b^2 fn + fp).

    Args:
        preds: see `accuracy`.
        targets: see `accuracy`.
        conf_mat: see `accuracy`.
        beta: how much more recall counts than precision; positive.
        average: see `precision`.

    Returns:
        0-dim float. The formula is van Rijsbergen's (Information Retrieval, 1979, chapter 7).

    Raises:
        ValueError: as `precision`, or beta is not positive.
    """
    if not beta > 0:
        raise ValueError(f"`beta` must be positive, got {beta!r}")
    share = beta * beta / (1 + beta * beta)
    return averaged(matrix_of(preds, targets, conf_mat), average, share, 1 - share)


def f1(
    preds: torch.Tensor | None = None,
    targets: torch.Tensor | None = None,
    conf_mat: torch.Tensor | None = None,
    average: str | None = None,
) -> torch.Tensor:
    """The harmonic mean of precision and recall; arguments as for `precision`."""
    return fbeta(preds, targets, conf_mat, 1.0, average)


def matrix_of(preds: Any, targets: Any, conf_mat: Any) -> torch.Tensor:
    """The confusion matrix of whatever a metric was given."""
    if conf_mat is None and preds is not None and targets is None:
        preds, conf_mat = None, preds  # the summed matrix, as a ConfusionPatch passes it
    given = [
        name for name, value in (("preds", preds), ("targets", targets), ("conf_mat", conf_mat)) if value is not None
    ]
    if given == ["preds", "targets"]:
        return confusion_matrix(preds, targets)
    if given != ["conf_mat"]:
        raise ValueError(f"a metric takes either `preds` and `targets` or `conf_mat`, got {given or 'nothing'}")
    if not isinstance(conf_mat, torch.Tensor) or conf_mat.ndim != 2 or conf_mat.shape[0] != conf_mat.shape[1]:
        shape = tuple(getattr(conf_mat, "shape", ()))
        raise ValueError(f"a confusion matrix must be a square tensor (classes, classes), got {shape}")
    return conf_mat


def averaged(matrix: torch.Tensor, average: str | None, missed: float, wrong: float) -> torch.Tensor:
    """tp / (tp + missed * fn + wrong * fp), averaged over the classes."""
    if average not in AVERAGES:
        raise ValueError(f"`average` must be one of {AVERAGES}, got {average!r}")
    matrix = matrix.double() if matrix.device.type != "mps" else matrix.float()
    hits, support, predicted = matrix.diagonal(), matrix.sum(1), matrix.sum(0)
    parts = hits + missed * (support - hits) + wrong * (predicted - hits)
    if average is None and len(matrix) == 2:
        return ratio(hits[1], parts[1])
    if average in (None, "micro"):
        return ratio(hits.sum(), parts.sum())
    scores = ratio(hits, parts)
    if average == "weighted":
        return ratio((scores * support).sum(), support.sum())
    occurs = (support + predicted) > 0
    return ratio((scores * occurs).sum(), occurs.sum())


def ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """part / whole as float32, 0 where whole is 0."""
    return torch.where(whole == 0, 0.0, part / whole.clamp(min=1e-300 if whole.dtype == torch.float64 else 0)).float()
