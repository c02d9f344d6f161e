"""Schedules (T13): when they move, and which loss they get."""

import pytest
import torch
from torch.nn import functional as F

from deepepochs import Optimizer

from ..engine.references import flat, net, regression
from .helpers import bare, loader, quiet, sgd

X, Y = regression(22)


def test_a_step_schedule_moves_with_each_update():
    model, other = net(), net()
    opt, reference = sgd(model), sgd(other)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=6)
    with quiet(model, F.mse_loss, Optimizer(opt, schedule, sched_on="step"), epochs=2) as trainer:
        trainer.fit(loader(X, Y, 8))
    moves = torch.optim.lr_scheduler.OneCycleLR(reference, 0.2, total_steps=6)
    count = iter(range(6))
    bare(other, reference, loader(X, Y, 8), 2, after_step=lambda: next(count) < 6 and moves.step())
    assert torch.equal(flat(model), flat(other))
    assert schedule.last_epoch == 6


@pytest.mark.parametrize("has_val", [True, False])
def test_an_epoch_schedule_gets_the_validation_loss_else_the_training_loss(has_val):
    seen = []

    class Watch:
        """A scheduler that only takes notes."""

        def step(self, loss):
            seen.append(loss)

    model = net()
    opt = Optimizer(sgd(model), Watch(), sched_with_loss=True)
    with quiet(model, F.mse_loss, opt, epochs=3) as trainer:
        progress = trainer.fit(loader(X, Y, 8), loader(X[:5], Y[:5], 5) if has_val else None)
    assert seen == progress["val" if has_val else "train"]["loss"]


def test_a_step_schedule_with_loss_gets_the_windows_mean():
    seen = []

    class Watch:
        def step(self, loss):
            seen.append(loss)

    model, other = net(), net()
    opt = Optimizer(sgd(model), Watch(), sched_on="step", sched_with_loss=True)
    with quiet(model, F.mse_loss, opt, gradient_accumulation_steps=2) as trainer:
        trainer.fit(loader(X, Y, 5))
    big = zip(X.split(10), Y.split(10))
    expected = []
    reference = sgd(other)
    for x, y in big:
        expected += bare(other, reference, [(x, y)], 1)
    assert seen == pytest.approx(expected, rel=1e-6)
