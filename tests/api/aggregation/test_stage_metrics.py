"""Metrics of a stage (T6, T7, T9): of all its data at once, under their names, computed for who reads them."""

import numpy
import pytest
import torch
import torchmetrics
from torch.nn import functional as F

import deepepochs as de
from deepepochs import Callback, EpochTask, metrics

from ...engine.references import net, regression
from ..helpers import classes, error, loader, quiet, sgd

X, Y = regression(22)


@pytest.mark.parametrize("patch", ["tensor", "mean"])
def test_metrics_of_unequal_batches_are_those_of_the_whole(patch):
    model = net()
    with quiet(model, F.mse_loss, metrics=[error], metric_patch=patch) as trainer:
        found = trainer.test(loader(X, Y, 8))
    with torch.no_grad():
        whole = model(X)
    assert found["error"] == pytest.approx(error(whole, Y).item(), rel=1e-6)
    assert found["loss"] == pytest.approx(F.mse_loss(whole, Y).item(), rel=1e-6)


@pytest.mark.parametrize("patch", ["tensor", "confusion"])
def test_classification_metrics_of_the_whole(patch):
    x, y = classes(23)
    model = net(outputs=3)
    with quiet(model, F.cross_entropy, metrics=[metrics.f1, metrics.accuracy], metric_patch=patch) as trainer:
        found = trainer.test(loader(x, y, 5))
    with torch.no_grad():
        assert found["f1"] == metrics.f1(model(x), y).item()
        assert found["accuracy"] == metrics.accuracy(model(x), y).item()


def test_torchmetrics_objects_are_reset_for_each_stage():
    x, y = classes(23)
    model = net(outputs=3)
    own = torchmetrics.classification.MulticlassF1Score(3)
    several = torchmetrics.MetricCollection({"acc": torchmetrics.classification.MulticlassAccuracy(3, average="micro")})
    with quiet(model, F.cross_entropy, sgd(model, 0.0), epochs=2, metrics=[own, several]) as trainer:
        progress = trainer.fit(loader(x, y, 5), loader(x[:7], y[:7], 3))
    with torch.no_grad():
        out = model(x)
    expected = torchmetrics.functional.classification.multiclass_f1_score(out, y, 3).item()
    assert progress["train"]["MulticlassF1Score"] == pytest.approx([expected] * 2)
    assert progress["train"]["acc"] == pytest.approx([(out.argmax(1) == y).float().mean().item()] * 2)
    assert progress["val"]["acc"] == pytest.approx([(out.argmax(1) == y)[:7].float().mean().item()] * 2)


def test_vector_metrics_come_as_arrays_and_others_as_floats():
    def spread(preds, targets):
        return {"vector": preds.mean(0).repeat(3), "number": preds.mean()}

    with quiet(net(), F.mse_loss, metrics=[de.rename("s.")(spread)]) as trainer:
        found = trainer.test(loader(X, Y, 8))
        progress = trainer.fit(loader(X, Y, 8))
    assert type(found["loss"]) is type(found["s.number"]) is float
    assert isinstance(found["s.vector"], numpy.ndarray)
    assert found["s.vector"].shape == (3,)
    assert isinstance(progress["train"]["s.vector"][0], numpy.ndarray)


def test_several_tasks_number_the_names_that_are_taken():
    """T6"""
    tasks = [
        EpochTask(loader(X, Y, 8)),
        EpochTask(loader(X[:3], Y[:3], 8), metrics=[error]),
        EpochTask(loader(X, Y, 8), metrics=[error]),
    ]
    with quiet(net(), F.mse_loss) as trainer:
        found = trainer.test(loader(X, Y, 4), tasks=tasks)
    assert list(found) == ["loss", "loss/1", "loss/2", "error", "loss/3", "error/3"]
    assert found["loss"] == pytest.approx(found["loss/1"])


def test_a_metric_is_not_called_in_the_loop_unless_somebody_reads_it():
    """T9"""
    calls = []

    def counted(preds, targets):
        calls.append(len(preds))
        return preds.mean()

    class Reader(Callback):
        def on_after_train_batch(self, metrics, batch_idx, **others):
            if batch_idx == 1:
                assert metrics["counted"] == pytest.approx(float(outs[-1].mean()))
                assert set(metrics) == {"loss", "counted"}
            outs.clear()

        def on_after_train_forward(self, model_out, **others):
            assert not model_out.requires_grad
            outs.append(model_out)

    outs = []
    for callbacks, expected in (([], [22]), ([Reader()], [8, 22])):
        calls.clear()
        with quiet(net(), F.mse_loss, metrics=[counted], callbacks=callbacks, log_batch=True) as trainer:
            trainer.fit(loader(X, Y, 8))
        assert calls == expected


@pytest.mark.parametrize("wrong", [None, "a", (1.0, 2.0), [1.0]])
def test_a_metric_that_gives_no_number_is_named(wrong):
    with quiet(net(), F.mse_loss, metrics=[de.rename("odd")(lambda p, t: wrong)]) as trainer:
        with pytest.raises(TypeError, match=f"the metric 'odd' must return .* got {type(wrong).__name__}"):
            trainer.test([(X, Y)])


@pytest.mark.parametrize("wrong", [None, "a"])
def test_a_mean_of_no_numbers_is_refused(wrong):
    with quiet(net(), F.mse_loss, metrics=[lambda p, t: wrong], metric_patch="mean") as trainer:
        with pytest.raises(TypeError, match="must be a number or a tensor"):
            trainer.test([(X, Y)])
