"""Precision (E4): names, scaler state, and what is refused."""

import pytest
import torch
from torch import nn

from deepepochs.engine import Engine

from .references import flat, net, regression


def test_autocast_covers_the_forward_only():
    model = nn.Linear(2, 2)
    seen = []
    with Engine(device="cpu", precision="bf16") as engine:
        engine.prepare(model)
        model.weight.register_hook(lambda grad: seen.append(torch.is_autocast_enabled("cpu")))
        with engine.accumulate():
            with engine.autocast():
                out = model(torch.ones(1, 2))
                engine.backward(out.float().sum())
    assert out.dtype is torch.bfloat16
    assert model.weight.grad.dtype is torch.float32
    assert seen == [False]


def test_fp32_computes_in_fp32():
    with Engine(device="cpu") as engine, engine.autocast():
        assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype is torch.float32


def test_the_scale_is_saved_and_restored():
    parameter = nn.Parameter(torch.ones(1))
    opt = torch.optim.SGD([parameter], lr=0.1)
    with Engine(device="cpu", precision="fp16") as engine:
        for factor in (float("inf"), 1.0):
            with engine.accumulate():
                engine.backward((parameter * factor).sum())
                engine.step(opt)
        state = engine.state_dict()
    with Engine(device="cpu", precision="fp16") as other:
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert state["scaler"]["scale"] == 2.0**15
        assert state["scaler"]["_growth_tracker"] == 1
    with Engine(device="cpu") as plain:
        plain.load_state_dict(state)  # another precision has no use for it
        assert plain.state_dict()["scaler"] == {}


def test_an_optimizer_without_gradients_does_not_step_and_breaks_nothing():
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    one, other = torch.optim.SGD([used], lr=0.1), torch.optim.SGD([unused], lr=0.1)
    with Engine(device="cpu", precision="fp16") as engine:
        with engine.accumulate():
            engine.backward(used.sum())
            assert (engine.step(one), engine.step(other)) == (True, False)
    assert unused.item() == 1.0


def test_fp16_needs_a_scaler(monkeypatch):
    monkeypatch.delattr(torch.amp, "GradScaler")
    with pytest.raises(ValueError, match="torch >= 2.3"):
        Engine(device="cpu", precision="fp16")


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_every_implementation_of_an_optimizer_skips_an_overflow_and_equals_the_bare_loop(options):
    """E4, E7"""

    def parts():
        parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
        return parameter, torch.optim.Adam([parameter], lr=0.1, **options)

    ours, opt = parts()
    with Engine(device="cpu", precision="fp16") as engine:
        engine.prepare(opt)
        steps = []
        for factor in (2.0, float("inf"), 3.0):
            with engine.accumulate():
                engine.backward((ours * factor).sum())
                steps.append(engine.step(opt))
    theirs, opt = parts()
    for factor in (2.0, 3.0):
        opt.zero_grad()
        (theirs * factor).sum().backward()
        opt.step()
    assert steps == [True, False, True]
    assert torch.equal(ours, theirs)


def test_a_scheduler_moves_only_with_its_optimizer():
    """E7"""
    good, bad = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizers = [torch.optim.SGD([each], lr=1.0) for each in (good, bad)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(each, 0.5) for each in optimizers]
    with Engine(device="cpu", precision="fp16") as engine:
        engine.prepare(*optimizers, *schedulers)
        for factor in (1.0, float("inf"), 1.0):
            with engine.accumulate():
                engine.backward((good + bad * factor).sum())
                for opt, scheduler in zip(optimizers, schedulers):
                    if engine.step(opt):
                        scheduler.step()
    assert [each.param_groups[0]["lr"] for each in optimizers] == [0.125, 0.25]


def test_unscaled_gradients_that_wait_follow_the_scale_too():
    """A joint clip, one step, another backward: what was unscaled joins the new scale, and is unscaled again."""
    one, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    first, second = torch.optim.SGD([one], lr=1.0), torch.optim.SGD([other], lr=1.0)
    with Engine(device="cpu", precision="fp16") as engine:
        engine.prepare(first, second)
        with engine.accumulate():
            engine.backward((one * 2 + other * 3).sum())
            engine.clip_grad_norm([first, second], 1e6)
            assert engine.step(first)
            engine.backward((one * 4 + other * 5).sum())
            assert engine.step(first)
            assert engine.step(second)
    assert torch.equal(one.detach(), torch.full((2,), -6.0))
    assert torch.equal(other.detach(), torch.full((2,), -8.0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_mixed_precision_on_cuda_equals_a_bare_loop_to_the_last_bit(precision):
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    x, y = (each.cuda() for each in regression(16))

    ours = net()
    with Engine("cuda", precision=precision) as engine:
        engine.prepare(ours)
        opt = engine.prepare(torch.optim.SGD(ours.parameters(), lr=0.1))
        for _ in range(5):
            with engine.accumulate():
                with engine.autocast():
                    loss = nn.functional.mse_loss(ours(x), y)
                engine.backward(loss)
                engine.step(opt)
    theirs = net().cuda()
    opt = torch.optim.SGD(theirs.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16")
    for _ in range(5):
        opt.zero_grad()
        with torch.autocast("cuda", dtype=dtype):
            loss = nn.functional.mse_loss(theirs(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    assert torch.equal(flat(ours), flat(theirs))
