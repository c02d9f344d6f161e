"""What an engine is told (E1, E5): what cannot be right is an error at once, in one process as in several."""

import math

import pytest
import torch
from torch.nn import functional as F

from deepepochs.engine import Engine

from .references import net, regression

OPTIONS = {
    "broadcast_buffers": False, "bucket_cap_mb": 5, "find_unused_parameters": True, "gradient_as_bucket_view": True,
    "static_graph": False, "sync_batchnorm": False, "timeout": 60.5,
}  # fmt: skip


@pytest.mark.parametrize("name", ["find_unused_parameter", "Timeout", "self", "module", 3, None])
def test_an_unknown_option_of_data_parallel_is_an_error_in_one_process(name):
    with pytest.raises(TypeError, match=f"`ddp_options` must be some of .*'timeout'.*, got {name!r}$"):
        Engine(device="cpu", ddp_options={"static_graph": True, name: 1})


@pytest.mark.parametrize("options", [["static_graph"], "static_graph", 60, [("static_graph", True)]])
def test_options_are_a_dictionary(options):
    with pytest.raises(TypeError, match="`ddp_options` must be a dictionary of options, got"):
        Engine(device="cpu", ddp_options=options)


@pytest.mark.parametrize("timeout", [math.nan, math.inf, 1e300, -1, 0, True, "60", None])
def test_a_timeout_is_a_finite_number_of_seconds(timeout):
    with pytest.raises(ValueError, match="`timeout` in `ddp_options` must be a finite number of seconds above 0, got"):
        Engine(device="cpu", ddp_options={"timeout": timeout})


@pytest.mark.parametrize("options", [None, {}, OPTIONS])
def test_options_that_torch_knows_pass(options):
    with Engine(device="cpu", ddp_options=options) as engine:
        assert engine.world_size == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, torch.tensor(math.nan), -1, -0.5])
@pytest.mark.parametrize("at", [0, 1])
def test_a_weight_is_finite_and_not_negative(bad, at):
    """An infinite or undefined weight would make each weight of the window 0 or NaN; before it, nothing has changed."""
    model = net()
    x, y = regression(4)
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        engine.prepare(torch.optim.SGD(model.parameters(), 0.1))
        for _ in range(at):
            with engine.accumulate(n_samples=2):
                engine.backward(F.mse_loss(model(x[:2]), y[:2]))
        kept = [None if each.grad is None else each.grad.clone() for each in model.parameters()]
        with pytest.raises(ValueError, match=r"`n_samples` must (be finite|not be negative), got"):
            engine.accumulate(n_samples=bad)
        for each, before in zip(model.parameters(), kept):
            assert each.grad is None if before is None else torch.equal(each.grad, before)
