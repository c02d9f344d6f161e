"""Plotting: confusion matrices, and the curves of a training, with matplotlib."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import numpy

from .history import epochs_of


def figure_of(width: float, height: float) -> Any:
    """A figure that belongs to nobody's window.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plotting needs matplotlib: pip install 'deepepochs[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def plot_confusion(
    c_matrix: Any,
    class_num: int | None = None,
    class_names: Sequence[str] | None = None,
    norm_dec: int = 2,
    cmap: str = "Blues",
    info: str = "",
) -> Any:
    """Draws a confusion matrix.

    Args:
        c_matrix: counts (classes, classes), rows are targets; a tensor or array.
        class_num: number of classes; None takes it from the matrix.
        class_names: a name for each class.
        norm_dec: decimals of the accuracy in the title.
        cmap: matplotlib's colour map.
        info: a further line of the title.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: the matrix is not square, or the names do not fit.
        ImportError: matplotlib is not installed.
    """
    matrix = numpy.asarray(c_matrix.detach().cpu() if hasattr(c_matrix, "detach") else c_matrix)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or class_num not in (None, len(matrix)):
        raise ValueError(f"`c_matrix` must be (classes, classes), got {matrix.shape} for class_num={class_num}")
    count = len(matrix)
    if class_names is not None and len(class_names) != count:
        raise ValueError(f"`class_names` must name {count} classes, got {len(class_names)}")
    size = min(max(4.0, 0.45 * count + 1.5), 16.0)
    figure = figure_of(size + 0.8, size)
    axes = figure.add_subplot()
    rows = matrix / numpy.maximum(matrix.sum(1, keepdims=True), 1)
    image = axes.imshow(rows, cmap=cmap, vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, label="part of the target's samples")
    names = list(class_names) if class_names is not None else [str(index) for index in range(count)]
    small = 9 if count <= 20 else 7
    axes.set_xticks(range(count), names, rotation=90 if max(map(len, names)) > 2 else 0, fontsize=small)
    axes.set_yticks(range(count), names, fontsize=small)
    axes.set_xlabel("Prediction")
    axes.set_ylabel("Target")
    accuracy = matrix.trace() / max(matrix.sum(), 1)
    title = f"{int(matrix.sum())} samples, accuracy {accuracy:.{norm_dec}%}"
    axes.set_title(f"{title}\n{info}" if info else title)
    for row, column in zip(*numpy.nonzero(matrix)):
        colour = "white" if rows[row, column] > 0.5 else "black"
        text = str(int(matrix[row, column]))
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=small if count <= 20 else 7)
    return figure


def plot_history(progress: Mapping[str, Mapping[str, Sequence[Any]]]) -> Any:
    """Draws the curves of a training: one plot a metric, training and validation in it.

    Args:
        progress: what `fit` returned, or `trainer.history`.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: there is nothing to draw.
        ImportError: matplotlib is not installed.
    """
    scalars = {
        (stage, name): values
        for stage, metrics in progress.items()
        for name, values in metrics.items()
        if len(values) and numpy.ndim(values[0]) == 0
    }
    names = list(dict.fromkeys(name for _, name in scalars))
    if not names:
        raise ValueError("there is nothing to draw: the progress holds no epochs")
    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    figure = figure_of(5 * columns, 3.5 * rows)
    for index, name in enumerate(names):
        axes = figure.add_subplot(rows, columns, index + 1)
        for stage in progress:
            if (stage, name) in scalars:
                values = scalars[stage, name]
                axes.plot(epochs_of(progress, stage, len(values)), values, marker=".", label=stage)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
        axes.legend()
    return figure
