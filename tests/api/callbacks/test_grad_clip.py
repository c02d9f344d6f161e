"""GradClipCallback (C9, E8): between the unscaling and the update, over the optimizers that are about to step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deepepochs import Callback, EpochTask, GradClipCallback, TrainerBase

from ...engine.references import assert_close, flat, net, regression
from ..helpers import loader, quiet, sgd

X, Y = regression(22)


def clipped_loop(model, opt, batches, clip, epochs=2):
    """The loop everybody writes, with clipping."""
    for _ in range(epochs):
        for x, y in batches:
            opt.zero_grad()
            F.mse_loss(model(x), y).backward()
            clip(model.parameters())
            opt.step()


CLIPS = {
    "value": ((0.01, None), lambda parameters: nn.utils.clip_grad_value_(parameters, 0.01)),
    "two": ((0.05, 2), lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.05)),
    "one": ((0.05, 1), lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.05, 1)),
    "inf": ((0.05, float("inf")), lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.05, float("inf"))),
}


@pytest.mark.parametrize("name", CLIPS)
def test_each_kind_equals_a_bare_loop_to_the_last_bit(name):
    arguments, clip = CLIPS[name]
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, sgd(ours, momentum=0.9), epochs=2, callbacks=GradClipCallback(*arguments)) as trainer:
        trainer.fit(loader(X, Y, 8))
    clipped_loop(theirs, sgd(theirs, momentum=0.9), loader(X, Y, 8), clip)
    assert torch.equal(flat(ours), flat(theirs))


def test_the_whole_windows_gradient_is_clipped_once():
    ours, theirs = net(), net()
    clip = GradClipCallback(0.05, 2)
    with quiet(ours, F.mse_loss, sgd(ours), epochs=2, callbacks=clip, gradient_accumulation_steps=2) as trainer:
        trainer.fit(loader(X, Y, 4))
    big = list(zip(X.split(8), Y.split(8)))
    clipped_loop(theirs, sgd(theirs), big, CLIPS["two"][1])
    assert_close(flat(ours), flat(theirs))


class Linear(nn.Module):
    """A model whose gradients are the inputs: (one) of its first part, (other) of its second."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

    def forward(self, one, other):
        return (self.one * one).sum() + (self.other * other).sum()


def separate(model):
    return [torch.optim.SGD([each], lr=1.0) for each in (model.one, model.other)]


def test_in_fp16_the_unscaled_gradients_are_clipped():
    """A scale of 65536 would leave nothing of gradients that were clipped before it is taken off."""
    model = Linear()
    with quiet(model, None, sgd(model, 1.0), precision="fp16", callbacks=GradClipCallback(10.0, 2)) as trainer:
        trainer.fit([(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]))], batch_size=1)  # norm 5: nothing to clip
        trainer.fit([(torch.tensor([30.0, 0.0]), torch.tensor([0.0, 40.0]))], batch_size=1, epochs=1)  # norm 50
    assert_close(model.one.detach(), torch.tensor([-3.0 - 6.0, 0.0]), 1e-5)
    assert_close(model.other.detach(), torch.tensor([0.0, -4.0 - 8.0]), 1e-5)


def test_several_optimizers_share_one_norm():
    model = Linear()
    with quiet(model, None, separate(model), callbacks=GradClipCallback(1.0, 2)) as trainer:
        trainer.fit([(torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0]))], batch_size=1)
    assert_close(torch.cat([model.one, model.other]).detach(), torch.tensor([-0.6, 0.0, 0.0, -0.8]))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_an_overflowing_optimizer_is_left_out_of_the_norm_and_skips(precision):
    model = Linear()
    with quiet(model, None, separate(model), precision=precision, callbacks=GradClipCallback(1.0, 2)) as trainer:
        trainer.fit([(torch.tensor([3.0, 4.0]), torch.tensor([float("inf"), 1.0]))], batch_size=1)
    assert_close(model.one.detach(), torch.tensor([-0.6, -0.8]), 1e-5)
    assert model.other.tolist() == [0.0, 0.0]


def test_only_the_optimizer_that_steps_is_clipped():
    seen = []

    class Own(EpochTask):
        def train_step(self, batch_x, batch_y, **step_args):
            self.loss(self.model(*batch_x), batch_y, do_optimize=False)
            self.optimize(1)
            seen.append(self.model.one.grad.tolist())
            self.optimize(0)

    model = Linear()
    options = {"device": "cpu", "show_info": False, "epochs": 1}
    with TrainerBase(model, None, separate(model), callbacks=GradClipCallback(1.0), **options) as trainer:
        trainer.fit(train_tasks=Own([(torch.tensor([3.0, 0.5]), torch.tensor([0.25, 4.0]))], batch_size=1))
    assert seen == [[3.0, 0.5]]
    assert model.one.tolist() == [-1.0, -0.5]
    assert model.other.tolist() == [-0.25, -1.0]


def test_callbacks_after_it_see_clipped_gradients():
    seen = []

    class Watch(Callback):
        def on_before_optimize(self, trainer, **others):
            seen.append(trainer.model.one.grad.tolist())

    model = Linear()
    callbacks = [Watch(priority=0.5), GradClipCallback(1.0)]
    with quiet(model, None, sgd(model), callbacks=callbacks) as trainer:
        trainer.fit([(torch.tensor([3.0, 0.5]), torch.zeros(2))], batch_size=1)
    assert seen == [[1.0, 0.5]]


@pytest.mark.parametrize("wrong", [(0,), (-1,), (float("nan"),), (1, 0), (1, -2)])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        GradClipCallback(*wrong)
