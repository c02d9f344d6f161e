"""InterpreteCallback (C10): top samples, confusion matrices, images."""

import sys

import numpy
import pytest
import sklearn.metrics
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional as F

from deepepochs import InterpreteCallback

from ...engine.references import net
from ...helpers.ranks import run_ranks
from ..helpers import classes, loader, quiet, sgd

X, Y = classes(40)


def scores(preds, targets):
    return F.cross_entropy(preds, targets, reduction="none")


def expected(model, k, largest):
    with torch.no_grad():
        out = model(X)
    values, indices = scores(out, Y).topk(k, largest=largest)
    return values.tolist(), out, indices.tolist()


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_most_extreme_samples_of_a_test(mode):
    model = net(outputs=3)
    keeper = InterpreteCallback(scores, k=7, mode=mode, stages="test")
    with quiet(model, F.cross_entropy, running_id="r", callbacks=[keeper]) as trainer:
        trainer.test(loader(X, Y, 6))
    values, out, indices = expected(model, 7, mode == "max")
    found = keeper.top_samples()
    assert [each[0] for each in found] == pytest.approx(values, rel=1e-6)
    for (_, pred, label, inputs), index in zip(found, indices):
        torch.testing.assert_close(pred, out[index])
        assert label == Y[index]
        assert torch.equal(inputs, X[index])
        for tensor in (pred, label, inputs):  # nothing but itself in its storage
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
            assert tensor.device.type == "cpu"


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net(outputs=3)

    def forward(self, one, other):
        return self.net(one + other)


class Named(Two):
    def forward(self, a, b, y):
        out = super().forward(a, b)
        return {"out": out, "loss": F.cross_entropy(out, y)}


def test_several_inputs_and_dictionaries():
    keeper = InterpreteCallback(scores, k=2, stages=["test"])
    with quiet(Two(), F.cross_entropy, callbacks=[keeper]) as trainer:
        trainer.test([(X[:5], X[:5] * 2, Y[:5]), (X[5:7], X[5:7] * 2, Y[5:7])])
    _, _, _, (one, other) = keeper.top_samples()[0]
    assert torch.equal(other, one * 2)
    assert one.shape == (4,)

    def first(preds, targets):
        return preds["out"][:, 0]

    keeper = InterpreteCallback(first, k=3, stages=["test"])
    with quiet(Named(), None, callbacks=[keeper]) as trainer:
        trainer.test([{"a": X[:5], "b": X[:5] * 3, "y": Y[:5]}])
    for value, pred, label, inputs in keeper.top_samples():
        assert pred["out"][0] == value
        assert torch.equal(label, inputs["y"])  # its name says what it is
        assert list(inputs) == ["a", "b", "y"]
        assert torch.equal(inputs["b"], inputs["a"] * 3)
        assert inputs["y"].shape == ()


def test_each_run_of_a_stage_starts_anew():
    model = net(outputs=3)
    keeper = InterpreteCallback(scores, k=100, stages=("train", "val"))
    with quiet(model, F.cross_entropy, sgd(model), epochs=2, callbacks=[keeper]) as trainer:
        trainer.fit(loader(X, Y, 6), loader(X[:9], Y[:9], 6))
    assert len(keeper.top_samples()) == 9
    assert len(keeper.top()) == 9


def test_nan_scores_are_never_kept():
    def odd(preds, targets):
        return torch.where(torch.arange(len(preds)) % 2 == 0, float("nan"), preds[:, 0])

    keeper = InterpreteCallback(odd, k=100, stages="test")
    with quiet(net(outputs=3), F.cross_entropy, callbacks=[keeper]) as trainer:
        trainer.test(loader(X, Y, 10))
    assert len(keeper.top_samples()) == 20


def test_confusion_matrices_and_images_go_to_tensorboard():
    images = torch.rand(20, 3, 4, 4)
    labels = Y[:20]
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    keeper = InterpreteCallback(scores, k=2, image_data=True, class_names=["a", "b", "c"])
    with quiet(model, F.cross_entropy, sgd(model), running_id="r", callbacks=[keeper]) as trainer:
        trainer.fit(loader(images, labels, 6), loader(images, labels, 6))
        trainer.test(loader(images, labels, 6))
    with torch.no_grad():
        matrix = sklearn.metrics.confusion_matrix(labels, model(images).argmax(1), labels=range(3))
    assert (numpy.asarray(keeper.confusion_matrix) == matrix).all()
    log = EventAccumulator("logs/r", size_guidance={"images": 0})
    log.Reload()
    tags = set(log.Tags()["images"])
    assert {f"confusion_matrix/{stage}" for stage in ("train", "val", "test")} <= tags
    assert {f"top_samples_test/{index}" for index in range(2)} <= tags
    assert (log.Images("top_samples_test/0")[0].width, log.Images("top_samples_test/0")[0].height) == (4, 4)
    assert any(tag.startswith("top_samples_test") for tag in log.Tags()["tensors"])


def test_a_reduced_metric_is_refused():
    keeper = InterpreteCallback(F.cross_entropy, stages="test")
    with quiet(net(outputs=3), F.cross_entropy, callbacks=[keeper]) as trainer:
        with pytest.raises(ValueError, match="do not reduce it"):
            trainer.test(loader(X, Y, 6))


@pytest.mark.parametrize("options", [{"mode": "high"}, {"k": 0}, {"stages": ["fit"]}])
def test_arguments_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        InterpreteCallback(**options)


def merged_samples():
    """What each of several ranks holds after a test: [(value, inputs), ...] and the confusion matrix."""
    torch.manual_seed(0)
    keeper = InterpreteCallback(scores, k=7, stages="test")
    with quiet(net(outputs=3), F.cross_entropy, running_id="r", callbacks=[keeper]) as trainer:
        trainer.test(loader(X, Y, 6))
    found = [(value, inputs.tolist()) for value, _, _, inputs in keeper.top_samples()]
    return found, keeper.confusion_matrix.tolist()


def test_ranks_agree_on_the_top_samples_of_the_whole_data_set():
    """C10, T8"""
    expected_samples, expected_matrix = merged_samples()
    assert sum(map(sum, expected_matrix)) == 40
    for samples, matrix in run_ranks(merged_samples, 2):
        assert [value for value, _ in samples] == pytest.approx([value for value, _ in expected_samples], rel=1e-6)
        assert [inputs for _, inputs in samples] == [inputs for _, inputs in expected_samples]
        assert matrix == expected_matrix


def test_without_matplotlib_there_is_a_warning_instead_of_the_figure(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    keeper = InterpreteCallback(scores, stages="test")
    with quiet(net(outputs=3), F.cross_entropy, callbacks=[keeper]) as trainer:
        with pytest.warns(UserWarning, match="confusion matrix: plotting needs matplotlib"):
            trainer.test(loader(X, Y, 6))
    assert int(keeper.confusion_matrix.sum()) == 40
