"""What the api's tests share."""

import torch
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
