"""Bare PyTorch loops that tests compare with."""

import torch
from torch import nn
from torch.nn import functional as F


def net(seed=1, inputs=4, outputs=1):
    """A small model with weights that depend on the seed only."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def regression(samples, seed=0, inputs=4):
    """Inputs (samples, inputs) and targets (samples, 1)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, inputs, generator=generator)
    return x, x @ torch.randn(inputs, 1, generator=generator) + 0.3 * torch.randn(samples, 1, generator=generator)


def flat(model):
    """All parameters as one vector."""
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()])


def cut(x, y, sizes):
    """Consecutive batches of the given sizes."""
    return list(zip(x.split(sizes), y.split(sizes)))


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}


def bare_loop(model, opt, batches, epochs, loss_fn=F.mse_loss):
    """The loop everybody writes; returns each step's loss."""
    losses = []
    for _ in range(epochs):
        for x, y in batches:
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
    return losses


def big_batch_loop(model, opt, windows, epochs, loss_fn=F.mse_loss):
    """One update for each window of batches, joined into one batch."""
    joined = [(torch.cat([x for x, _ in window]), torch.cat([y for _, y in window])) for window in windows]
    return bare_loop(model, opt, joined, epochs, loss_fn)


def windows_of(batches, steps):
    """The batches in windows of `steps`; the last may be shorter."""
    return [batches[start : start + steps] for start in range(0, len(batches), steps)]


def assert_close(one, other, relative=1e-6):
    """Equal within fp32's rounding: the difference's norm over the norm."""
    gap = (one - other).norm() / other.norm()
    assert gap <= relative, f"differs by {gap:.2e}, at most {relative:.0e} allowed"
