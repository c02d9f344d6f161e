"""What tests of training on several ranks share."""

import torch
from torch.nn import functional as F

from deepepochs import Trainer

from ..engine.references import regression

X, Y = regression(23)


def make(model, loss=F.mse_loss, opt=None, **options):
    """A Trainer on the CPU that prints nothing."""
    options = {"device": "cpu", "show_info": False, "log_batch": False, "epochs": 2, **options}
    return Trainer(model, loss, opt or torch.optim.SGD(model.parameters(), lr=0.1), **options)


def padded(count, world_size, drop_last):
    """The order that all ranks read together."""
    order = list(range(count))
    size = count // world_size if drop_last else -(-count // world_size)
    return (order * 2)[: size * world_size]
