"""Collector (T6, T7, T9): totals of a stage, against the same metric of all data at once."""

import gc
import tracemalloc
import weakref

import pytest
import torch
import torchmetrics

from deepepochs import ConfusionPatch, MeanPatch, PatchBase, TensorPatch, ValuePatch, metrics, rename
from deepepochs.aggregation.collector import Collector, batch_loss, check_loaded, check_returned, patch_class
from deepepochs.engine import Engine

from ..helpers import classes

X, Y = classes(23, inputs=3)
SIZES = [5, 5, 5, 5, 3]
PARTS = list(zip(X.split(SIZES), Y.split(SIZES), SIZES))
CPU = torch.device("cpu")


def hits(preds, targets):
    """The share of right predictions: a mean over samples, right in every mode but 'confusion'."""
    return (preds.argmax(1) == targets).double().mean()


def spread(preds, targets):
    return {"low": preds.double().amin(1).mean(), "high": preds.double().amax(1).mean()}


class Own(PatchBase):
    """A user's patch: keeps what it is given, graph and all."""

    def __init__(self, metric, batch_size, name=None):
        super().__init__(name)
        self.metric = metric

    def load(self, preds, targets):
        self.total, self.count = preds.sum(), preds.numel()
        return self

    def add(self, obj):
        self.total, self.count = self.total + obj.total, self.count + obj.count
        return self

    def forward(self):
        return self.total / self.count


@pytest.fixture
def engine():
    with Engine(device="cpu") as made:
        yield made


def collect(chosen, patch, parts=PARTS):
    collector = Collector(chosen, patch_class(patch), CPU)
    for x, y, size in parts:
        collector.add_output(x, y, size)
    return collector


@pytest.mark.parametrize("patch", ["tensor", "mean", TensorPatch, MeanPatch])
def test_functions_in_every_mode_equal_the_whole(engine, patch):
    found = collect([hits, rename("s.")(spread)], patch).values(engine)
    whole = {"hits": hits(X, Y), **{f"s.{name}": value for name, value in spread(X, Y).items()}}
    assert found == pytest.approx({name: value.item() for name, value in whole.items()}, rel=1e-12)
    assert list(found) == list(whole)


@pytest.mark.parametrize("patch", ["confusion", ConfusionPatch])
def test_confusion_equals_the_whole(engine, patch):
    found = collect([metrics.precision, metrics.accuracy], patch).values(engine)
    matrix = torch.zeros(3, 3, dtype=torch.int64)
    for target, guess in zip(Y, X.argmax(1)):
        matrix[target, guess] += 1
    assert found == {
        "precision": metrics.precision(conf_mat=matrix),
        "accuracy": matrix.diag().sum() / matrix.sum(),
    }


def test_a_users_patch_class_equals_the_whole_and_keeps_no_graph(engine):
    """P1: a graph that a patch kept would hold every batch of the epoch."""
    weight = torch.ones(3, 3, requires_grad=True)
    parts = [(x @ weight, y, size) for x, y, size in PARTS]
    collector = collect([hits], Own, parts)
    value = collector.values(engine)["hits"]
    assert not value.requires_grad
    assert value.item() == pytest.approx((X @ weight).mean().item(), rel=1e-5)


def test_returned_patches_keep_no_graph(engine):
    weight = torch.ones(3, 3, requires_grad=True)
    collector = Collector([], TensorPatch, CPU)
    for x, y, size in PARTS:
        collector.add_returned({"own": Own(None, size).load(x @ weight, y)}, check_loaded)
    value = collector.values(engine)["own"]
    assert not value.requires_grad
    assert value.item() == pytest.approx((X @ weight).mean().item(), rel=1e-5)


def test_torchmetrics_objects_are_given_outputs_without_graph(engine):
    seen = []

    class Watch(torchmetrics.MeanMetric):
        def update(self, preds, targets):
            seen.append(preds.requires_grad)
            super().update(preds)

    found = collect([Watch()], "tensor", [(X.clone().requires_grad_(), Y, 23)]).values(engine)
    assert seen == [False]
    assert found["Watch"].item() == pytest.approx(X.mean().item(), rel=1e-6)


def test_tensors_are_kept_without_copies():
    """T7"""
    collector = collect([hits], "tensor")
    kept = collector._totals["metric "]
    assert [each.data_ptr() for each in kept.batch_preds] == [x.data_ptr() for x, _, _ in PARTS]


def test_the_loss_comes_first_and_is_weighed_by_samples(engine):
    collector = Collector([hits], TensorPatch, CPU)
    losses = torch.rand(5)
    total = collector.start_loss(losses[0], SIZES[0])
    for loss, size in zip(losses[1:], SIZES[1:]):
        total.update(loss, size)
    for part in PARTS:
        collector.add_output(*part)
    found = collector.values(engine)
    assert list(found) == ["loss", "hits"]
    expected = sum(loss.item() * size for loss, size in zip(losses, SIZES)) / 23
    assert found["loss"].item() == pytest.approx(expected, rel=1e-12)


def test_a_batchs_values_are_those_of_the_batch_alone():
    """T9"""
    own = torchmetrics.classification.MulticlassAccuracy(3, average="micro")
    collector = collect([hits, own], "tensor", PARTS[:4])
    x, y, size = PARTS[4]
    records = [(torch.tensor(2.0), x[:1], y[:1], 1), (torch.tensor(5.0), x[1:], y[1:], 2)]
    returned = {"n": ValuePatch(size, name="named").load(7.0)}
    found = collector.batch_values(records, returned)
    assert found == {"loss": 4.0, "hits": hits(x, y), "MulticlassAccuracy": hits(x, y).float(), "named": 7.0}
    assert own._update_count == 4  # reading a batch's value adds nothing to the epoch's
    assert collector.batch_values([], {}) == {}


def test_the_loss_of_a_batch_may_be_missing():
    assert batch_loss([(None, X, Y, 3)]) == {}
    assert batch_loss([(None, X, Y, 3), (2.0, X, Y, 1)]) == {"loss": 2.0}


def test_a_returned_dictionary_must_hold_patches():
    check_returned({}, collect)
    check_returned({"a": ValuePatch(1).load(1.0)}, collect)
    for wrong in (3, {"a": 1.0}, [ValuePatch(1)]):
        with pytest.raises(TypeError, match="collect must return None or a dictionary of patches"):
            check_returned(wrong, collect)


def test_a_load_that_returns_nothing_is_named(engine):
    class Forgetful(Own):
        def load(self, preds, targets):
            self.total = 0

    with pytest.raises(TypeError, match=r"Forgetful.load must return the patch itself, got NoneType"):
        collect([hits], Forgetful)


def test_an_add_that_returns_nothing_is_named():
    class Forgetful(Own):
        def add(self, obj):
            self.total = 0

    with pytest.raises(TypeError, match=r"Forgetful.add must return the merged patch, got NoneType"):
        collect([hits], Forgetful)


@pytest.mark.parametrize("wrong", ["sum", 3, None, dict, object])
def test_other_patches_are_refused(wrong):
    with pytest.raises(ValueError, match="`metric_patch` must be one of"):
        patch_class(wrong)


@pytest.mark.parametrize("patch", ["mean", "confusion"])
def test_many_batches_hold_no_more_memory(patch):
    """F2, T7"""
    collector = Collector([metrics.accuracy], patch_class(patch), CPU)
    loss = torch.tensor(1.0)
    total = collector.start_loss(loss, 5)
    x, y, size = PARTS[0]

    def run(batches):
        for _ in range(batches):
            collector.add_output(x, y, size)
            total.update(loss, size)
            collector.add_returned({"own": ValuePatch(size).load(loss)}, run)

    run(10)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    run(1000)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 20_000


def test_what_a_batch_gave_is_released():
    collector = Collector([hits], MeanPatch, CPU)
    x = X[:5].clone()
    watch = weakref.ref(x)
    collector.add_output(x, Y[:5], 5)
    del x
    gc.collect()
    assert watch() is None
