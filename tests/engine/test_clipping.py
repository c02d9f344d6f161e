"""Clipping (E8): on unscaled gradients, jointly over the optimizers whose gradients are finite."""

import pytest
import torch
from torch import nn

from deepepochs.engine import Engine

GRADIENTS = torch.tensor([3.0, -4.0]), torch.tensor([12.0, 0.5])


def parts(device="cpu"):
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))]
    return parameters, [torch.optim.SGD([each], lr=1.0) for each in parameters]


def run(precision, clip, gradients=GRADIENTS):
    """One window with the given gradients; returns the parameters, the clip's result and whether each stepped."""
    parameters, optimizers = parts()
    with Engine(device="cpu", precision=precision) as engine:
        engine.prepare(*optimizers)
        with engine.accumulate():
            engine.backward(sum((p * g).sum() for p, g in zip(parameters, gradients)))
            found = clip(engine, optimizers)
            steps = [engine.step(each) for each in optimizers]
    return [each.detach() for each in parameters], found, steps


def reference(clip):
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    for parameter, gradient in zip(parameters, GRADIENTS):
        parameter.grad = gradient.clone()
    norm = clip(parameters)
    return [-each.grad for each in parameters], norm


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, float("inf")])
def test_the_norm_is_joint_over_all_optimizers(precision, norm_type):
    found, norm, steps = run(precision, lambda engine, opts: engine.clip_grad_norm(opts, 2.0, norm_type))
    expected, reference_norm = reference(lambda each: nn.utils.clip_grad_norm_(each, 2.0, norm_type))
    assert torch.equal(norm, reference_norm)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert steps == [True, True]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_values_are_clipped_after_unscaling(precision):
    found, _, _ = run(precision, lambda engine, opts: engine.clip_grad_value(opts, 1.0))
    expected, _ = reference(lambda each: nn.utils.clip_grad_value_(each, 1.0))
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_group_that_is_not_finite_is_left_out_and_its_optimizer_skips(precision, bad):
    gradients = GRADIENTS[0], torch.tensor([bad, 1.0])
    found, norm, steps = run(precision, lambda engine, opts: engine.clip_grad_norm(opts, 1.0), gradients)
    assert norm.item() == 5.0
    torch.testing.assert_close(found[0], -GRADIENTS[0] / 5, rtol=1e-6, atol=0)
    assert torch.equal(found[1], torch.zeros(2))
    assert steps == [True, False]


def test_a_skipped_optimizer_steps_again_in_the_next_window():
    parameters, optimizers = parts()
    with Engine(device="cpu") as engine:
        engine.prepare(*optimizers)
        steps = []
        for bad in (float("nan"), 1.0):
            with engine.accumulate():
                engine.backward(parameters[0].sum() + (parameters[1] * bad).sum())
                engine.clip_grad_norm(optimizers, 100.0)
                steps.append([engine.step(each) for each in optimizers])
    assert steps == [[True, False], [True, True]]


def test_one_optimizer_alone_is_clipped_as_torch_does_it():
    parameter = nn.Parameter(torch.zeros(2))
    opt = torch.optim.SGD([parameter], lr=1.0)
    with Engine(device="cpu") as engine:
        engine.prepare(opt)
        with engine.accumulate():
            engine.backward((parameter * float("nan")).sum())
            assert engine.clip_grad_norm(opt, 1.0).isnan()
            engine.step(opt)
    assert parameter.isnan().all()


def test_nothing_is_clipped_before_the_windows_end():
    parameter = nn.Parameter(torch.zeros(2))
    opt = torch.optim.SGD([parameter], lr=1.0)
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        engine.prepare(opt)
        norms = []
        for _ in range(2):
            with engine.accumulate():
                engine.backward((parameter * torch.tensor([3.0, 4.0])).sum())
                norms.append(engine.clip_grad_norm(opt, 1.0))
                engine.clip_grad_value(opt, 10.0)
                engine.step(opt)
    assert norms[0] is None
    assert norms[1].item() == 5.0
    torch.testing.assert_close(parameter.detach(), torch.tensor([-0.6, -0.8]), rtol=1e-6, atol=0)
