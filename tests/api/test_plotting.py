"""Plots: what is written on them."""

import builtins

import numpy
import pytest
import torch

from deepepochs import plot_confusion
from deepepochs.plotting import plot_history


@pytest.mark.parametrize("count", [2, 10, 30])
def test_a_confusion_matrix_names_axes_and_counts(count, tmp_path):
    matrix = torch.randint(0, 9, (count, count)) + torch.eye(count).long() * 50
    names = [f"class {index}" for index in range(count)]
    figure = plot_confusion(matrix, count, names, info="validation")
    axes = figure.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Prediction", "Target")
    assert [text.get_text() for text in axes.get_xticklabels()] == names
    accuracy = float(matrix.trace() / matrix.sum())
    assert axes.get_title() == f"{int(matrix.sum())} samples, accuracy {accuracy:.2%}\nvalidation"
    shown = {(round(t.get_position()[1]), round(t.get_position()[0])): int(t.get_text()) for t in axes.texts}
    assert shown == {(r, c): int(matrix[r, c]) for r in range(count) for c in range(count) if matrix[r, c]}
    figure.savefig(tmp_path / "figure.png")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((numpy.ones((2, 3)),), r"\(2, 3\)"),
        ((numpy.ones((2, 2)), 3), "class_num=3"),
        ((numpy.ones((2, 2)), 2, ["a"]), "got 1"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        plot_confusion(*arguments)


def test_curves_of_a_training():
    progress = {
        "train": {"loss": [3.0, 2.0], "acc": [0.1, 0.2], "vector": [numpy.ones(2)] * 2},
        "val": {"loss": [4.0, 3.0]},
    }
    figure = plot_history(progress)
    loss, acc = figure.axes
    assert (loss.get_xlabel(), loss.get_ylabel(), acc.get_ylabel()) == ("epoch", "loss", "acc")
    assert [line.get_label() for line in loss.lines] == ["train", "val"]
    assert list(loss.lines[1].get_ydata()) == [4.0, 3.0]
    assert len(acc.lines) == 1
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_history({"train": {}, "val": {}})


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    original = builtins.__import__

    def missing(name, *arguments, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"deepepochs\[plot\]"):
        plot_confusion(numpy.ones((2, 2)))
