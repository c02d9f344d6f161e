"""LRFindCallback (C8): the range test, its suggestion, and what it gives back."""

import random

import pytest
import torch
from torch.nn import functional as F

from deepepochs import CallbackException, LRFindCallback, Optimizer

from ...engine.references import flat, net, regression
from ..helpers import loader, quiet, sgd

X, Y = regression(64)


def run(finder, model=None, opt=None, epochs=12, batch_size=4, **options):
    model = net() if model is None else model
    with quiet(model, F.mse_loss, opt or sgd(model), epochs=epochs, callbacks=[finder], **options) as trainer:
        progress = trainer.fit(loader(X, Y, batch_size, shuffle=True))
    return trainer, progress


def test_rates_rise_exponentially_and_a_rate_is_suggested():
    finder = LRFindCallback(max_batch=40, min_lr=1e-5, max_lr=1.0)
    run(finder, batch_size=16)
    expected = torch.logspace(-5, 0, 40, dtype=torch.float64).tolist()
    assert finder.lrs == pytest.approx(expected[: len(finder.lrs)])
    assert len(finder.losses) == len(finder.lrs) > 16  # beyond one epoch
    assert 1e-3 < finder.suggestion < 1.0
    axes = finder.figure.axes[0]
    assert (axes.get_xlabel(), axes.get_xscale()) == ("learning rate", "log")


def test_it_stops_when_the_loss_diverges():
    finder = LRFindCallback(max_batch=200, min_lr=1e-3, max_lr=1e6)
    run(finder, epochs=50)
    assert len(finder.lrs) < 200
    assert finder.losses[-1] > 4 * min(finder.losses) or not torch.isfinite(torch.tensor(finder.losses[-1]))
    assert finder.suggestion < 1e3


@pytest.mark.parametrize("steps", [1, 2])
def test_everything_is_given_back(steps):
    model = net()
    opt = sgd(model, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)
    before = flat(model).clone(), schedule.state_dict()
    torch.manual_seed(3), random.seed(3)
    expected = torch.rand(1), random.random()
    torch.manual_seed(3), random.seed(3)
    finder = LRFindCallback(max_batch=10)
    options = {"gradient_accumulation_steps": steps}
    trainer, progress = run(finder, model, Optimizer(opt, schedule, sched_on="step"), **options)
    assert (torch.rand(1), random.random()) == expected
    assert torch.equal(flat(model), before[0])
    assert schedule.state_dict() == before[1]
    assert opt.param_groups[0]["lr"] == 0.1
    assert not opt.state_dict()["state"]
    assert (trainer.global_step, trainer.init_epoch, trainer.history) == (0, 0, {"train": {}, "val": {}})
    assert len(finder.lrs) == len(finder.losses) == 10


def test_one_of_several_optimizers():
    model = net()
    opts = [sgd(model[0], 0.5), sgd(model[2], 0.25)]
    with pytest.raises(CallbackException, match="2 optimizers: say which one with `opt_id`"):
        run(LRFindCallback(), model, opts)
    seen = []
    finder = LRFindCallback(max_batch=3, min_lr=1e-3, max_lr=1e-1, opt_id=1)
    finder.on_after_optimize = lambda **others: seen.append([opt.param_groups[0]["lr"] for opt in opts])
    run(finder, model, opts)
    assert seen == [[0.5, pytest.approx(rate)] for rate in (1e-3, 1e-2, 1e-1)]


@pytest.mark.parametrize("options", [{"max_batch": 1}, {"min_lr": 0}, {"min_lr": 1.0, "max_lr": 0.1}])
def test_arguments_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        LRFindCallback(**options)
