"""Patches (P1, T7): adding changes no operand, and the merged patch equals the whole."""

import pytest
import torch
from torch.nn import functional as F

from deepepochs import ConfusionMetrics, ConfusionPatch, MeanPatch, PatchBase, TensorPatch, ValuePatch, metrics

from ..helpers import classes


def mean_error(preds, targets):
    return (preds.argmax(1) != targets).double().mean()


def both(preds, targets):
    return {"error": mean_error(preds, targets), "size": preds.abs().mean()}


X, Y = classes(11, inputs=3)
PARTS = list(zip(X.split([5, 1, 3, 2]), Y.split([5, 1, 3, 2])))


class Range(PatchBase):
    """A custom patch that changes itself in `add` and keeps a tensor with a graph."""

    def load(self, preds, targets):
        self.low, self.high, self.seen = preds.min(), preds.max(), [len(targets)]
        return self

    def add(self, obj):
        self.low = torch.minimum(self.low, obj.low)
        self.high = torch.maximum(self.high, obj.high)
        self.seen += obj.seen
        return self

    def forward(self):
        return {"low": self.low, "high": self.high, "count": sum(self.seen)}


def make(kind, preds, targets):
    size = len(preds)
    return {
        "value": lambda: ValuePatch(size).load(mean_error(preds, targets)),
        "values": lambda: ValuePatch(size).load(both(preds, targets)),
        "mean": lambda: MeanPatch(mean_error, size).load(preds, targets),
        "means": lambda: MeanPatch(both, size).load(preds, targets),
        "tensor": lambda: TensorPatch(both).load(preds, targets),
        "confusion": lambda: ConfusionPatch(metrics.f1).load(preds, targets),
        "metrics": lambda: ConfusionMetrics(average="macro", beta=2.0).load(preds, targets),
        "custom": lambda: Range().load(preds, targets),
    }[kind]()


KINDS = ["value", "values", "mean", "means", "tensor", "confusion", "metrics", "custom"]


def numbers(patch):
    value = patch()
    plain = {
        key: float(torch.as_tensor(each).detach())
        for key, each in (value if isinstance(value, dict) else {"": value}).items()
    }
    return plain if isinstance(value, dict) else plain[""]


@pytest.mark.parametrize("kind", KINDS)
def test_sum_and_plus_equal_the_whole_and_change_no_operand(kind):
    parts = [make(kind, *part) for part in PARTS]
    before = [numbers(part) for part in parts]
    whole = pytest.approx(numbers(make(kind, X, Y)), rel=1e-6)
    assert numbers(sum(parts)) == whole
    assert numbers(parts[0] + parts[1] + parts[2] + parts[3]) == whole
    assert numbers(parts[0] + (parts[1] + (parts[2] + parts[3]))) == whole
    assert numbers(0 + parts[0]) == before[0]
    assert [numbers(part) for part in parts] == before
    assert sum(parts[:1]) is not parts[0]


def test_a_patch_with_a_graph_can_be_added():
    weight = torch.ones(3, 3, requires_grad=True)
    one, other = (Range().load(x @ weight, y) for x, y in PARTS[:2])
    total = one + other
    assert numbers(total) == numbers(Range().load((X @ weight)[:6], Y[:6]))
    assert one.low.requires_grad


def test_mean_and_value_keep_no_graph():
    """P1"""
    loss = (torch.ones(3, requires_grad=True) * 2).mean()
    assert not ValuePatch(3).load(loss)().requires_grad
    out = torch.ones(3, 2, requires_grad=True) * 2
    assert not MeanPatch(lambda preds, targets: preds.mean(), 3).load(out, Y[:3])().requires_grad
    assert not TensorPatch(lambda preds, targets: preds.mean()).load(out, Y[:3])().requires_grad


def test_a_long_sum_does_not_drift():
    total = ValuePatch(1).load(torch.tensor(0.1))
    for _ in range(20000):
        total.update(torch.tensor(0.1), 1)
    assert float(total()) == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)


def test_update_equals_load_and_add():
    for kind in ("value", "values"):
        function = mean_error if kind == "value" else both
        total = make(kind, *PARTS[0])
        for x, y in PARTS[1:]:
            total.update(function(x, y), len(x))
        assert numbers(total) == pytest.approx(numbers(make(kind, X, Y)))


def test_values_may_be_plain_numbers_and_vectors():
    assert float((ValuePatch(1).load(1.0) + ValuePatch(3).load(5))()) == 4.0
    vector = ValuePatch(1).load(torch.tensor([1.0, 2.0])) + ValuePatch(1).load(torch.tensor([3.0, 6.0]))
    assert vector().tolist() == [2.0, 4.0]


def test_tensor_patches_share_the_predictions():
    """T7: detached, without copies."""
    out = (torch.ones(4, 2, requires_grad=True) * 2).detach()
    patch = TensorPatch(mean_error).load(out, Y[:4])
    total = patch + TensorPatch(mean_error).load(out, Y[:4])
    assert {each.data_ptr() for each in total.batch_preds} == {out.data_ptr()}


def test_tensor_patches_join_nested_outputs():
    def metric(preds, targets):
        return preds["a"].sum() + preds["b"][0].sum() + targets[1].sum()

    parts = [TensorPatch(metric).load({"a": x, "b": (x,)}, (y, y)) for x, y in PARTS]
    assert float(sum(parts)()) == pytest.approx(float(2 * X.sum() + Y.sum()), rel=1e-6)


def test_shapes_that_cannot_be_joined_are_refused_with_advice():
    one, other = (
        TensorPatch(mean_error).load(torch.ones(2, 3), Y[:2]),
        TensorPatch(mean_error).load(torch.ones(2, 4), Y[:2]),
    )
    one.metric = other.metric = mean_error
    with pytest.raises(ValueError, match="metric_patch='mean'"):
        (one + other)()


def test_matrices_grow_with_the_classes_that_are_seen():
    small = ConfusionPatch(metrics.accuracy).load(torch.tensor([0, 1]), torch.tensor([0, 1]))
    large = ConfusionPatch(metrics.accuracy).load(torch.tensor([3, 1]), torch.tensor([3, 0]))
    assert (small + large).confusion_matrix.shape == (4, 4)
    assert float((small + large)()) == float((large + small)()) == 0.75


def test_confusion_metrics_are_named_and_averaged():
    found = ConfusionMetrics(["accuracy", "recall", "precision", "f1", "fbeta"], average="macro", beta=0.5).load(X, Y)
    assert found.name == "C."
    assert list(found()) == ["acc", "r", "p", "f1", "fb"]
    assert float(found()["r"]) == float(metrics.recall(X, Y, average="macro"))
    assert float(found()["fb"]) == float(metrics.fbeta(X, Y, beta=0.5, average="macro"))
    assert list(ConfusionMetrics("f1").load(X, Y)()) == ["f1"]


class Forgets(ValuePatch):
    def add(self, obj):
        self.batch_value = self.batch_value + obj.batch_value


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: TensorPatch(both).load(X, Y) + ValuePatch(1).load(1.0), TypeError, "TensorPatch and ValuePatch"),
        (lambda: ValuePatch(1).load(1.0) + 3, TypeError, "ValuePatch and int"),
        (lambda: 3 + ValuePatch(1).load(1.0), TypeError, "unsupported operand"),
        (lambda: Forgets(1).load(1.0) + Forgets(1).load(1.0), TypeError, "Forgets.add must return the merged patch"),
        (lambda: TensorPatch(both).load(X, Y) + TensorPatch(mean_error).load(X, Y), ValueError, "one metric"),
        (lambda: ValuePatch(1).load({"a": 1.0}) + ValuePatch(1).load({"b": 1.0}), ValueError, "same names"),
        (lambda: ValuePatch(1).load({"a": 1.0}) + ValuePatch(1).load(1.0), ValueError, "same names"),
        (lambda: MeanPatch("accuracy", 1), TypeError, "got str"),
        (lambda: TensorPatch(None), TypeError, "got NoneType"),
        (lambda: ConfusionPatch(3), TypeError, "got int"),
        (lambda: ConfusionMetrics(["accuracy", "auc"]), ValueError, r"got \['auc'\]"),
        (lambda: ConfusionMetrics(average="mean"), ValueError, "got 'mean'"),
        (lambda: ConfusionMetrics(beta=0), ValueError, "must be positive"),
    ],
)  # fmt: skip
def test_wrong_uses_are_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_the_loss_of_batches_is_the_loss_of_the_whole():
    parts = [ValuePatch(len(x)).load(F.cross_entropy(x, y)) for x, y in PARTS]
    assert float(sum(parts)()) == pytest.approx(F.cross_entropy(X.double(), Y).item(), rel=1e-6)
