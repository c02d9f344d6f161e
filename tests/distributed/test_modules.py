"""What ranks share besides gradients of the model (R2, T8): a loss module, and rank 0's buffers in evaluation."""

import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import CheckCallback, Trainer
from deepepochs.engine import load_file

from ..engine.references import flat, regression
from .together import run_together

X, Y = regression(24)


class Learnt(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, output, target):
        return ((output * self.scale - target) ** 2).mean()


def train_a_loss():
    """Ranks that were seeded differently, two optimizers: one for the model, one for the loss."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    rank = int(os.environ.get("RANK", 0))
    found = []
    for steps in (1, 2):
        torch.manual_seed(rank)
        model, loss = nn.Linear(X.shape[1], Y.shape[1]), Learnt()
        with torch.no_grad():
            loss.scale.add_(rank)
        opts = [torch.optim.SGD(each.parameters(), 0.05, momentum=0.9) for each in (model, loss)]
        options = {"device": "cpu", "show_info": False, "log_batch": False, "gradient_accumulation_steps": steps}
        with Trainer(model, loss, opts, epochs=3, **options) as trainer:
            trainer.fit(DataLoader(TensorDataset(X, Y), 8 // world))
            result = trainer.test(DataLoader(TensorDataset(X, Y), 5))["loss"]
        found.append((flat(model).tolist(), loss.scale.item(), result))
    return found


def evaluate_with_batch_norm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(X.shape[1], 4), nn.BatchNorm1d(4), nn.Linear(4, Y.shape[1]))
    monitor = CheckCallback("loss", save_best=False)
    options = {"device": "cpu", "show_info": False, "log_batch": False, "running_id": "buffers", "callbacks": [monitor]}
    with Trainer(model, F.mse_loss, torch.optim.SGD(model.parameters(), 0.05), epochs=2, **options) as trainer:
        data = DataLoader(TensorDataset(X, Y), 4)
        loss = trainer.fit(data, data)["val"]["loss"][-1]
        predicted = trainer.predict(DataLoader(X, 4))
        saved = load_file("logs/buffers/checkpoint.ckpt")["model_state"]
    return loss, predicted.tolist(), {name: value.tolist() for name, value in saved.items()}


@pytest.fixture(scope="module")
def ranks():
    return run_together(2, train_a_loss, evaluate_with_batch_norm)


def test_a_losss_parameters_are_synchronised_like_the_models(ranks):
    one, other = ranks["train_a_loss"]
    assert one == other
    for (weights, scale, loss), (theirs, their_scale, their_loss) in zip(one, train_a_loss()):
        torch.testing.assert_close(torch.tensor(weights), torch.tensor(theirs), rtol=1e-5, atol=1e-6)
        assert scale == pytest.approx(their_scale, rel=1e-5)
        assert loss == pytest.approx(their_loss, rel=1e-5)


def test_evaluation_and_prediction_use_the_buffers_that_are_saved(ranks):
    (loss, predicted, saved), (other_loss, other_predicted, _) = ranks["evaluate_with_batch_norm"]
    model = nn.Sequential(nn.Linear(X.shape[1], 4), nn.BatchNorm1d(4), nn.Linear(4, Y.shape[1]))
    model.load_state_dict({name: torch.tensor(value) for name, value in saved.items()})
    with torch.no_grad():
        output = model.eval()(X)
    assert loss == other_loss == pytest.approx(F.mse_loss(output, Y).item(), rel=1e-5)
    assert predicted == other_predicted
    torch.testing.assert_close(torch.tensor(predicted), output, rtol=1e-5, atol=1e-6)
