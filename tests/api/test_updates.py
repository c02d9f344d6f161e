"""Updates (E4, E5, E7, T1, T5): a fit equals a bare loop, whatever makes its updates."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import GradClipCallback, Optimizer

from ..engine.references import OPTIMIZERS, assert_close, flat, net, regression
from .helpers import bare, loader, quiet, sgd

X, Y = regression(22)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_plain_fit_equals_a_bare_loop_to_the_last_bit(name, shuffle):
    ours, theirs = net(), net()
    torch.manual_seed(5)
    with quiet(ours, F.mse_loss, OPTIMIZERS[name](ours.parameters()), epochs=3) as trainer:
        progress = trainer.fit(loader(X, Y, 8, shuffle=shuffle))
    torch.manual_seed(5)
    losses = bare(theirs, OPTIMIZERS[name](theirs.parameters()), loader(X, Y, 8, shuffle=shuffle), 3)
    assert torch.equal(flat(ours), flat(theirs))
    assert progress == {"train": {"loss": losses}, "val": {}}


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_accumulation_equals_the_big_batch(steps):
    """E5"""
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, sgd(ours), epochs=3, gradient_accumulation_steps=steps) as trainer:
        progress = trainer.fit(loader(X, Y, 4))
        assert trainer.global_step == 3 * math.ceil(6 / steps)
    losses = bare(theirs, sgd(theirs), list(zip(X.split(4 * steps), Y.split(4 * steps))), 3)
    assert_close(flat(ours), flat(theirs))
    assert progress["train"]["loss"] == pytest.approx(losses, rel=1e-6)


def test_a_batch_size_function_weighs_losses_and_windows():
    """T5: weights that are not samples."""
    weights = [3, 1, 6, 2]
    batches = list(zip(X[:16].split(4), Y[:16].split(4)))
    sizes = {id(x): weight for (x, _), weight in zip(batches, weights)}
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, sgd(ours), gradient_accumulation_steps=4) as trainer:
        progress = trainer.fit(batches, batch_size=lambda x, y: sizes[id(x)])
    opt = sgd(theirs)
    losses = [F.mse_loss(theirs(x), y) for x, y in batches]
    (sum(weight * loss for weight, loss in zip(weights, losses)) / 12).backward()
    opt.step()
    assert_close(flat(ours), flat(theirs))
    expected = sum(weight * loss.item() for weight, loss in zip(weights, losses)) / 12
    assert progress["train"]["loss"][0] == pytest.approx(expected, rel=1e-7)


def test_fp16_skips_only_the_overflowing_optimizer_and_its_schedule():
    """E4, E7, T13"""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.good, self.bad = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, factor):
            return (self.good * 2).sum() + (self.bad * factor).sum()

    model = Two()
    opts = [torch.optim.SGD([each], lr=0.1) for each in (model.good, model.bad)]
    wrapped = [Optimizer(each, torch.optim.lr_scheduler.ExponentialLR(each, 0.5), sched_on="step") for each in opts]
    with quiet(model, None, wrapped, precision="fp16") as trainer:
        trainer.fit([(torch.tensor(each),) for each in (1.0, float("inf"), 1.0)], batch_size=1)
    assert [each.param_groups[0]["lr"] for each in opts] == [0.1 / 8, 0.1 / 4]
    torch.testing.assert_close(model.good.detach(), torch.full((2,), 1 - 0.2 * (1 + 0.5 + 0.25)))
    torch.testing.assert_close(model.bad.detach(), torch.full((2,), 1 - 0.1 * (1 + 0.5)))


def test_bf16_equals_a_bare_autocast_loop():
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, sgd(ours), epochs=2, precision="bf16") as trainer:
        trainer.fit(loader(X, Y, 8))
    opt = sgd(theirs)
    for _ in range(2):
        for x, y in loader(X, Y, 8):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(theirs(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
    assert torch.equal(flat(ours), flat(theirs))


def test_optimizers_that_share_parameters_all_step():
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, [sgd(ours), torch.optim.Adam(ours.parameters())]) as trainer:
        trainer.fit(loader(X, Y, 8))
    first, second = sgd(theirs), torch.optim.Adam(theirs.parameters())
    for x, y in loader(X, Y, 8):
        first.zero_grad()
        F.mse_loss(theirs(x), y).backward()
        first.step(), second.step()
    assert torch.equal(flat(ours), flat(theirs))
    with pytest.raises(ValueError, match="share parameters"):
        quiet(ours, F.mse_loss, [sgd(ours), sgd(ours)], precision="fp16")


def test_clipping_acts_between_backward_and_update():
    """C9, E8"""
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, sgd(ours), callbacks=[GradClipCallback(0.01, 2)]) as trainer:
        trainer.fit(loader(X, Y, 8))
    opt = sgd(theirs)
    for x, y in loader(X, Y, 8):
        opt.zero_grad()
        F.mse_loss(theirs(x), y).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
        opt.step()
    assert torch.equal(flat(ours), flat(theirs))


def test_a_compiled_model_is_trained(monkeypatch):
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: original(model, backend="eager"))
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, sgd(ours), compile_model=True) as trainer:
        trainer.fit(loader(X, Y, 8), loader(X, Y, 8))
    bare(theirs, sgd(theirs), loader(X, Y, 8), 1)
    assert torch.equal(flat(ours), flat(theirs))


def test_loaders_of_pre_made_batches_are_read_as_they_are():
    ours, theirs = net(), net()
    data = TensorDataset(X.reshape(2, 11, 4), Y.reshape(2, 11, 1))
    with quiet(ours, F.mse_loss, sgd(ours)) as trainer:
        progress = trainer.fit(DataLoader(data, batch_size=None))
    losses = bare(theirs, sgd(theirs), [data[0], data[1]], 1)
    assert torch.equal(flat(ours), flat(theirs))
    assert progress["train"]["loss"] == losses
