"""Precision (E4): names, scaler state, and what is refused."""

import pytest
import torch
from torch import nn

from deepepochs.engine import Engine


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
