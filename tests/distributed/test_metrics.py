"""Metrics on several ranks (T3, T8, P2): every sample once, the same on all ranks, equal to one process's."""

from unittest import mock

import pytest
import torch
import torchmetrics
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import ConfusionMetrics, PatchBase, TensorPatch, Trainer, TrainerBase, ValuePatch, metrics, rename
from deepepochs.engine import Engine

from ..engine.references import net
from .together import run_together

COUNTS = (1, 2, 3, 5, 7, 23)


def data(count):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def mean_hits(preds, targets):
    return {"hits": (preds.argmax(1) == targets).double().mean(), "size": preds.abs().double().mean()}


class Range(PatchBase):
    """Merges through `add` alone, and needs its metric, a function that cannot be pickled."""

    def __init__(self, metric, batch_size, name=None):
        super().__init__(name)
        self.metric = metric

    def load(self, preds, targets):
        self.values = [preds.amin(), preds.amax()]
        return self

    def add(self, obj):
        self.values = [torch.minimum(self.values[0], obj.values[0]), torch.maximum(self.values[1], obj.values[1])]
        return self

    def forward(self):
        return self.metric(*self.values)


class Own(TrainerBase):
    def evaluate_step(self, batch_x, batch_y, **step_args):
        out = self.model(batch_x)
        self.loss(out, batch_y)
        return {
            "value": ValuePatch(len(batch_x)).load(out.mean()),
            "f1": TensorPatch(metrics.f1).load(out, batch_y),
            "matrix": ConfusionMetrics(["accuracy", "recall"], average="macro").load(out, batch_y),
        }


def evaluate():
    """All kinds of metrics on data sets of several sizes."""
    found = {}
    span = rename("span")(lambda low, high: high - low)
    setups = {
        "tensor": {"metrics": [metrics.accuracy, metrics.f1, mean_hits], "metric_patch": "tensor"},
        "mean": {"metrics": [mean_hits], "metric_patch": "mean"},
        "confusion": {"metrics": [metrics.accuracy, metrics.f1], "metric_patch": "confusion"},
        "custom": {"metrics": [span], "metric_patch": Range},
    }
    with Engine(device="cpu") as engine:
        for count in COUNTS:
            x, y = data(count)
            dl = DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True)
            for name, options in setups.items():
                with mock.patch.object(
                    engine.processes, "gather_object", wraps=engine.processes.gather_object
                ) as exchange:
                    with Trainer(net(outputs=3), F.cross_entropy, engine=engine, show_info=False, **options) as trainer:
                        found[count, name] = trainer.test(dl)
                assert (
                    exchange.call_count <= (2 if name == "tensor" else 1) * (engine.world_size > 1)
                    or engine.world_size == 1
                )
            found[count, "predict"] = trainer.predict(dl).tolist()
            if count >= engine.world_size:
                with Own(net(outputs=3), F.cross_entropy, engine=engine, show_info=False) as trainer:
                    found[count, "own"] = trainer.test(dl)
                own = torchmetrics.classification.MulticlassF1Score(3)
                options = {"engine": engine, "show_info": False, "metrics": [own]}
                with Trainer(net(outputs=3), F.cross_entropy, **options) as trainer:
                    found[count, "torchmetrics"] = trainer.test(dl)
    return found


@pytest.fixture(scope="module")
def alone():
    """What one process finds."""
    return evaluate()


@pytest.fixture(scope="module")
def ranks(request):
    """What each function of this module returned on each rank, by its name."""
    return run_together(request.param, evaluate, *[train_metrics] * (request.param == 2))


@pytest.mark.parametrize("ranks", [2, 3], indirect=True)
def test_metrics_and_predictions_equal_one_processs(ranks, alone):
    results = ranks["evaluate"]
    for key, values in results[0].items():
        if key[1] == "predict":
            torch.testing.assert_close(torch.tensor(values), torch.tensor(alone[key]))
        else:
            assert list(values) == list(alone[key]), key
            assert values == pytest.approx(alone[key], rel=1e-6), key
        for other in results[1:]:
            assert other[key] == values, key


def train_metrics():
    x, y = data(7)
    options = {"device": "cpu", "show_info": False, "epochs": 1, "metrics": [metrics.accuracy]}
    model = net(outputs=3)
    with Trainer(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.0), **options) as trainer:
        return trainer.fit(DataLoader(TensorDataset(x, y), batch_size=2))


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_training_metrics_cover_what_was_processed(ranks):
    """T8: two ranks read 8 of 7 samples, the first one twice."""
    results = ranks["train_metrics"]
    x, y = data(7)
    x, y = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
    with torch.no_grad():
        out = net(outputs=3)(x)
    expected = {"loss": [F.cross_entropy(out, y).item()], "accuracy": [metrics.accuracy(out, y).item()]}
    for result in results:
        assert result["train"]["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        assert result["train"]["accuracy"] == expected["accuracy"]
