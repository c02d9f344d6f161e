"""A scheduler whose state holds functions, as torch 2.0 has some: files leave them out, and resume is exact (C7)."""

import copy
import functools
import math
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, SequentialLR

from deepepochs import CheckCallback, Optimizer
from deepepochs.engine import load_file

from ..helpers import classes, loader, quiet, sgd

X, Y = classes(12)


class Annealed(LRScheduler):
    """Keeps what is no plain value in its state, as OneCycleLR of torch 2.0 does, and reads it from there."""

    def __init__(self, optimizer, total=20):
        self.total, self.depth = total, 1.0
        self.anneal, self.plain = self.cosine, math.cos
        self.more = {
            "partial": functools.partial(max, 0.0),
            "kind": LRScheduler,
            "weak": weakref.WeakMethod(self.cosine),
        }
        self.chain = [self.cosine, 2.0, (abs, 3.0)]
        super().__init__(optimizer)

    def cosine(self, part):
        return self.depth * (1 + self.plain(math.pi * part)) / 2

    def get_lr(self):
        part = self.more["partial"](self.chain[0](self.last_epoch / self.total)) * self.chain[1] / self.chain[2][1]
        return [base * self.chain[2][0](part) for base in self.base_lrs]

    def load_state_dict(self, state):
        self.anneal = state["anneal"]  # some read it there, and do not expect it to be missing
        super().load_state_dict(state)


def lambdas(optimizer):
    """A LambdaLR has functions that it leaves out by itself, and objects whose values it keeps."""
    return LambdaLR(optimizer, lambda step: 0.9**step)


def sequence(optimizer):
    return SequentialLR(optimizer, [Annealed(optimizer), lambdas(optimizer)], milestones=[7])


def made(scheduler, folder, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    opt = sgd(model, momentum=0.9)
    check = CheckCallback("loss", "train", ckpt_dir=str(folder), save_best=False, every_n_steps=1)
    trainer = quiet(
        model,
        F.cross_entropy,
        Optimizer(opt, scheduler(opt), sched_on="step"),
        callbacks=check,
        running_id="r",
        **options,
    )
    return model, trainer


@pytest.mark.parametrize("scheduler", [Annealed, sequence, lambdas])
def test_resume_is_exact(tmp_path, scheduler):
    whole, trainer = made(scheduler, tmp_path / "whole", epochs=4)
    trainer.fit(loader(X, Y, 4))
    made(scheduler, tmp_path / "parts", epochs=2)[1].fit(loader(X, Y, 4))
    rest, again = made(scheduler, tmp_path / "parts", epochs=4, resume="r")
    again.fit(loader(X, Y, 4))
    assert again.global_step == trainer.global_step == 12
    assert again.opt.get_last_lr() == trainer.opt.get_last_lr()
    assert torch.equal(rest.weight, whole.weight)


def test_the_methods_stay_those_of_the_present_scheduler(tmp_path):
    _, first = made(Annealed, tmp_path, epochs=1)
    first.fit(loader(X, Y, 4))
    state = load_file(tmp_path / "r" / "checkpoint.ckpt")["opt_state"][0]["sched_state"]
    assert "anneal" not in state
    assert state["more"] == {}
    assert state["chain"] == [None, 2.0, (None, 3.0)]
    _, second = made(Annealed, tmp_path, epochs=1)
    own = second.opt[0].scheduler
    second.opt.load_state_dict(copy.deepcopy(first.opt.state_dict()))
    assert own.anneal.__self__ is own
    assert own.chain[0].__self__ is own
    assert own.more["weak"]() == own.cosine
    assert own.last_epoch == 3


def test_plain_states_are_as_they_were():
    model = nn.Linear(2, 2)
    opt = sgd(model)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(opt, [1, 1, 3])
    ours = Optimizer(opt, scheduler)
    before = copy.deepcopy(scheduler.state_dict())
    assert ours.state_dict()["sched_state"] == before
    ours.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert repr(scheduler.state_dict()) == repr(before)  # the milestones are still a Counter
