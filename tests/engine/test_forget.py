"""Letting go (E7): what an engine has forgotten is nobody's any more, and may be prepared again."""

import gc
import weakref

import pytest
import torch
from torch.nn import functional as F

from deepepochs.engine import Engine

from .references import flat, net, regression


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_forgotten_model_and_its_optimizer_are_freed(precision, steps):
    x, y = regression(4)
    with Engine(device="cpu", precision=precision, gradient_accumulation_steps=steps) as engine:

        def train():
            model = net()
            model, opt = engine.prepare(model, torch.optim.Adam(model.parameters()))
            for _ in range(3):  # with 2 steps a window is open at the end
                with engine.accumulate(model, n_samples=4):
                    with engine.autocast():
                        loss = F.mse_loss(model(x), y)
                    engine.backward(loss)
                    engine.clip_grad_norm(opt, 1.0)
                    engine.step(opt)
            engine.forget(model)
            return [weakref.ref(each) for each in (model, opt, *model.parameters())]

        kept = train()
        gc.collect()
        assert [each() for each in kept] == [None] * len(kept)
        assert (engine.models, engine.optimizers) == ([], [])


def test_a_forgotten_models_gradients_are_left_alone():
    first, second = net(), net()
    opts = [torch.optim.SGD(each.parameters(), 0.1) for each in (first, second)]
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        engine.prepare(first, second, *opts)
        for model in (first, second):
            model(torch.ones(1, 4)).sum().backward()
        engine.forget(first)
        engine.drop_window()
        assert all(each.grad is not None for each in first.parameters())
        assert all(each.grad is None for each in second.parameters())
        assert engine.optimizers == [opts[1]]


def test_an_optimizer_goes_with_the_last_of_its_models():
    first, second, loose = net(), net(), torch.nn.Parameter(torch.zeros(1))
    joint = torch.optim.SGD([*first.parameters(), *second.parameters(), loose], 0.1)
    other = torch.optim.SGD([loose], 0.1)
    with Engine(device="cpu") as engine:
        engine.prepare(first, second, joint, other)
        engine.forget(first)
        assert engine.optimizers == [joint, other]
        engine.forget(first)  # unknown by now
        engine.forget(second)
        assert engine.optimizers == [other]


def test_a_forgotten_model_may_be_prepared_again():
    x, y = regression(8)
    ours, theirs = net(), net()

    def loop(model, opt, backward, step):
        for _ in range(2):
            opt.zero_grad()
            backward(F.mse_loss(model(x), y))
            step(opt)

    with Engine(device="cpu", precision="fp32") as engine:
        for _ in range(2):
            model, opt = engine.prepare(ours, torch.optim.SGD(ours.parameters(), 0.1))
            loop(model, opt, engine.backward, engine.step)
            engine.forget(model)
    for _ in range(2):
        loop(theirs, torch.optim.SGD(theirs.parameters(), 0.1), torch.Tensor.backward, torch.optim.SGD.step)
    assert torch.equal(flat(ours), flat(theirs))
