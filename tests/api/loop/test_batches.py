"""Batches (T4): how each kind reaches model and loss."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ...engine.references import flat, net, regression
from ..helpers import Keywords, bare, loader, quiet, sgd

X, Y = regression(22)


@pytest.mark.parametrize(
    "loss", [None, lambda out: out["loss"] * 1, lambda out, y: out["loss"] * 1], ids=["model", "one", "two"]
)
def test_dictionary_batches(loss):
    torch.manual_seed(1)
    ours = Keywords()
    torch.manual_seed(1)
    theirs = Keywords()
    batches = [{"x": x, "y": y} for x, y in loader(X, Y, 8)]
    with quiet(ours, loss, sgd(ours), epochs=2) as trainer:
        progress = trainer.fit(batches, batches)
    losses = bare(theirs.lin, sgd(theirs), list(loader(X, Y, 8)), 2)
    assert torch.equal(flat(ours), flat(theirs))
    assert progress["train"]["loss"] == losses


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 1)

    def forward(self, one, other):
        return self.lin(one + other["x"][0])


def test_several_inputs_and_nested_labels():
    model = Several()
    batches = [(x, {"x": [x]}, {"y": (y,)}) for x, y in loader(X, Y, 8)]

    def loss(out, label):
        return F.mse_loss(out, label["y"][0])

    def error(out, label):
        return (out - label["y"][0]).abs().mean()

    with quiet(model, loss, sgd(model, 0.0), metrics=[error]) as trainer:
        found = trainer.test(batches)
    whole = model(X, {"x": [X]})
    assert found["loss"] == pytest.approx(F.mse_loss(whole, Y).item(), rel=1e-6)
    assert found["error"] == pytest.approx((whole - Y).abs().mean().item(), rel=1e-6)


@pytest.mark.parametrize("batch", [X, (X,), "text", [], 3.0])
def test_a_batch_that_fits_nothing_is_shown(batch):
    with quiet(net(), F.mse_loss) as trainer, pytest.raises(
        ValueError, match="a batch must be a tuple or list"
    ) as caught:
        trainer.fit([batch])
    assert type(batch).__name__ in str(caught.value)
