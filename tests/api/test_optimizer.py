"""Optimizers with their schedulers (T1, T13)."""

import copy

import pytest
import torch

from deepepochs import Optimizer, Optimizers
from deepepochs.optimizer import as_optimizers

from ..engine.references import net
from .helpers import sgd


def parts(scheduler=torch.optim.lr_scheduler.ExponentialLR, **options):
    opt = sgd(net(), momentum=0.9)
    extra = {"factor": 0.5} if scheduler is torch.optim.lr_scheduler.ReduceLROnPlateau else {"gamma": 0.5}
    return opt, Optimizer(opt, scheduler(opt, **extra), **options)


def test_step_moves_what_waits_for_this_moment():
    for sched_on, expected in (("step", [0.05, 0.05]), ("epoch", [0.1, 0.05])):
        opt, ours = parts(sched_on=sched_on)
        opt.step()
        found = []
        for at in ("step", "epoch"):
            ours.step(at)
            found.append(ours.get_current_lr())
        assert found == expected


def test_states_come_back_with_the_schedulers_own():
    """The scheduler gets its own state, not the optimizer's."""
    opt, ours = parts()
    opt.step()
    for _ in range(3):
        ours.step("epoch")
    state = copy.deepcopy(ours.state_dict())
    assert sorted(state) == ["opt_state", "sched_state"]
    other_opt, other = parts()
    other.load_state_dict(state)
    assert other.scheduler.state_dict() == ours.scheduler.state_dict()
    assert other_opt.param_groups[0]["lr"] == 0.1 / 8
    assert other.get_last_lr() == ours.get_last_lr() == [0.1 / 8]


def test_several_as_one():
    (_, one), (_, other) = parts(), parts()
    both = Optimizers([one, other])
    state = copy.deepcopy(both.state_dict())
    one.opt.step(), other.opt.step()
    both.step("epoch")
    assert both.get_current_lr() == [0.05, 0.05]
    assert both.get_last_lr() == [[0.05], [0.05]]
    both.load_state_dict(state)
    assert both.get_current_lr() == [0.1, 0.1]
    with pytest.raises(ValueError, match="holds 1 optimizers, the trainer has 2"):
        both.load_state_dict(state[:1])


def test_zero_grad_frees():
    opt, ours = parts()
    for group in opt.param_groups:
        for each in group["params"]:
            each.grad = torch.ones_like(each)
    Optimizers([ours]).zero_grad()
    assert all(each.grad is None for each in opt.param_groups[0]["params"])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Optimizer("sgd"), TypeError, "got str"),
        (lambda: parts(sched_on="batch"), ValueError, "got 'batch'"),
        (lambda: Optimizer(parts()[0], parts()[1].scheduler), ValueError, "another optimizer"),
        (lambda: parts()[1].step("batch"), ValueError, "got 'batch'"),
        (lambda: parts(torch.optim.lr_scheduler.ReduceLROnPlateau), ValueError, "add `sched_with_loss=True`"),
        (lambda: as_optimizers([parts()[0]] * 2, net()), ValueError, "twice"),
        (lambda: as_optimizers([parts()[1], "adam"], net()), TypeError, r"got \['Optimizer', 'str'\]"),
        (lambda: parts(sched_with_loss=True)[1].step("epoch"), ValueError, "'loss'"),
    ],
)
def test_wrong_uses_are_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
