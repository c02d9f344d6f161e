"""Reduced precision and odd shapes in results (R1, T5, T7): bfloat16, outputs of one sample, dictionaries of logits."""

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import LogCallback, Trainer, metrics

X = torch.linspace(-2, 2, 9).reshape(9, 1)
Y = X[:, 0] ** 2


class Squeezed(nn.Module):
    """Its output of one sample has no dimension."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 1)

    def forward(self, x):
        return self.net(x).squeeze()


def mae(preds, targets):
    return (preds.reshape(-1) - targets.reshape(-1)).abs().mean()


def loss(preds, targets):
    return F.mse_loss(preds.reshape(-1), targets)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 9])
@pytest.mark.parametrize("patch", ["tensor", "mean"])
def test_a_last_batch_of_one_sample_counts_as_one(patch, size):
    model = Squeezed()
    data = DataLoader(TensorDataset(X, Y), size)
    with Trainer(model, loss, metrics=[mae], metric_patch=patch, device="cpu", show_info=False) as trainer:
        result = trainer.test(data)
        predicted = trainer.predict(data)
    with torch.no_grad():
        output = model.net(X)[:, 0]
    assert result["mae"] == pytest.approx((output - Y).abs().mean().item(), rel=1e-6)
    assert torch.equal(predicted, output)


def test_predictions_and_vector_metrics_in_bf16_are_what_numpy_can_take():
    model = nn.Linear(1, 3)

    def spread(preds, targets):
        return preds.amax(0)

    options = {"device": "cpu", "precision": "bf16", "show_info": False, "log_batch": False}
    callbacks = [LogCallback("logs")]
    with Trainer(model, F.mse_loss, metrics=[spread], epochs=1, callbacks=callbacks, **options) as trainer:
        data = DataLoader(TensorDataset(X, torch.zeros(9, 3)), 4)
        result = trainer.test(data)
        predicted = trainer.predict(data)
        trainer.fit(data)
    assert predicted.dtype is torch.float32
    assert numpy.array_equal(result["spread"], predicted.numpy().max(0))


class WithLoss(nn.Module):
    """Computes its loss, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.net = nn.Linear(1, 2)

    def forward(self, x, **fields):
        output = self.net(x)
        (target,) = fields.values()
        return {"loss": F.cross_entropy(output, target), "logits": output}


@pytest.mark.parametrize("name", ["labels", "label", "targets", "target", "y"])
def test_metrics_get_the_label_of_a_dictionary(name):
    def accuracy(outputs, targets):
        return metrics.accuracy(outputs["logits"], targets)

    model, classes = WithLoss(), (X[:, 0] > 0).long()
    data = DataLoader([{"x": x, name: y} for x, y in zip(X, classes)], 4)
    with Trainer(model, metrics=[accuracy], device="cpu", show_info=False) as trainer:
        result = trainer.test(data)
    with torch.no_grad():
        output = model.net(X)
    assert result["accuracy"] == pytest.approx((output.argmax(1) == classes).float().mean().item())
    assert result["loss"] == pytest.approx(F.cross_entropy(output, classes).item(), rel=1e-6)
