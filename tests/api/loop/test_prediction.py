"""predict (T3): every output, in the data set's order."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ...engine.references import net, regression
from ..helpers import Keywords, loader, quiet

X, Y = regression(22)


def test_predictions_come_in_the_data_sets_order():
    model = net()
    with quiet(model, F.mse_loss) as trainer:
        found = trainer.predict(loader(X, Y, 8, shuffle=True))
        inputs = trainer.predict(DataLoader(X, batch_size=5))
        assert model.training
    with torch.no_grad():
        assert torch.equal(found, torch.cat([model(x) for x in X.split(8)]))
        assert torch.equal(inputs, torch.cat([model(x) for x in X.split(5)]))
    assert not found.requires_grad


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 1)

    def forward(self, x):
        return self.lin(x), {"twice": x * 2}


def test_predictions_may_be_tuples_and_inputs_may_come_alone():
    model = Pair()
    with quiet(model, None) as trainer:
        out, named = trainer.predict(DataLoader(X, batch_size=5, shuffle=True))
        assert trainer.predict([]) is None
    with torch.no_grad():
        assert torch.equal(out, torch.cat([model.lin(x) for x in X.split(5)]))
    assert torch.equal(named["twice"], X * 2)


def test_nested_predictions():
    with quiet(Keywords(), None) as trainer:
        found = trainer.predict([{"x": x, "y": y} for x, y in loader(X, Y, 8)])
    assert found["out"].shape == (22, 1)
    assert found["loss"].shape == (3,)
