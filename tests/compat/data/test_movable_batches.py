"""Batches that are objects with a method `to`, which may give nothing: as under Lightning (L1)."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from deepepochs.compat import LightningTrainer

from ..parity import QUIET, assert_same, light, lightning

pytestmark = pytest.mark.filterwarnings("ignore")


class InPlace:
    """Moves itself and gives nothing."""

    def __init__(self, x):
        self.x, self.went_to = x, []

    def to(self, device):
        self.x = self.x.to(device)
        self.went_to.append(str(device))


class Chained(InPlace):
    """Moves itself and gives itself."""

    def to(self, device):
        super().to(device)
        return self


NESTINGS = {
    "alone": (lambda one: one, lambda batch: batch),
    "in a tuple": (lambda one: (one, 1), lambda batch: batch[0]),
    "in a dictionary": (lambda one: {"of": [one, None]}, lambda batch: batch["of"][0]),
}


def net(bases, take):
    class Net(bases.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.seen = []

        def training_step(self, batch, batch_idx):
            one = take(batch)
            self.seen.append((type(one).__name__, one.went_to, one.x.clone()))
            return self.layer(one.x).pow(2).mean()

        def validation_step(self, batch, batch_idx):
            self.seen.append(take(batch).went_to)

        def predict_step(self, batch, batch_idx):
            return self.layer(take(batch).x)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    torch.manual_seed(4)
    return Net()


@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("kind", [InPlace, Chained])
def test_the_object_is_the_batch_when_its_to_gives_nothing(kind, nesting):
    pytest.importorskip("lightning", reason="compares with Lightning")
    wrap, take = NESTINGS[nesting]

    def data():
        values = torch.arange(24.0).reshape(6, 4) / 24
        return DataLoader(values, batch_size=2, collate_fn=lambda rows: wrap(kind(torch.stack(rows))))

    found = []
    bases = lightning()
    for trains, of in ((bases.Trainer, bases), (LightningTrainer, bases), (LightningTrainer, light())):
        module = net(of, take)
        trainer = trains(**QUIET, logger=False, max_epochs=2)
        trainer.fit(module, data(), data())
        predicted = trainer.predict(module, data())
        found.append([trainer.global_step, module.seen, dict(module.state_dict()), predicted])
    assert found[0][0] == 6
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])
