"""What the api's tests share."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import Trainer

from ..engine.references import net


def quiet(model=None, loss=None, opt=None, **options):
    """A Trainer on the CPU that prints nothing of its own accord."""
    model = net() if model is None else model
    options = {"device": "cpu", "show_info": False, "log_batch": False, "epochs": 1, **options}
    return Trainer(model, loss, opt, **options)


def sgd(model, lr=0.1, **options):
    """Plain gradient descent on a model."""
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def loader(x, y, batch_size, **options):
    """A loader of (x, y)."""
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, **options)


def classes(samples, inputs=4, count=3, seed=0):
    """Inputs (samples, inputs) and classes (samples,)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, inputs, generator=generator), torch.randint(0, count, (samples,), generator=generator)


def bare(model, opt, batches, epochs, loss_fn=F.mse_loss, after_step=None):
    """The loop everybody writes; returns each epoch's sample-weighted loss in double precision."""
    found = []
    for _ in range(epochs):
        total = samples = 0
        for x, y in batches:
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()
            if after_step:
                after_step()
            total += loss.item() * len(x)
            samples += len(x)
        found.append(total / samples)
    return found


def error(preds, targets):
    """A metric: the mean absolute error."""
    return (preds - targets).abs().mean()


class Keywords(nn.Module):
    """Takes a dictionary batch by keyword, and computes its own loss."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 1)

    def forward(self, x, y=None):
        out = self.lin(x)
        return {"out": out, "loss": F.mse_loss(out, y)}
