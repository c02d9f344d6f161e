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


def test_one_optimizer_recovers_from_an_overflow_that_was_clipped():
    """E4, E8: the scale goes down though the clip kept the optimizer from stepping."""
    parameter = nn.Parameter(torch.zeros(2))
    opt = torch.optim.SGD([parameter], lr=1.0)
    steps = []
    with Engine(device="cpu", precision="fp16") as engine:
        engine.prepare(opt)
        before = engine.state_dict()["scaler"]["scale"]
        for factor in (float("inf"), 3.0):
            with engine.accumulate():
                engine.backward((parameter * factor).sum())
                engine.clip_grad_norm(opt, 100.0)
                steps.append(engine.step(opt))
        assert engine.state_dict()["scaler"]["scale"] == before / 2
    assert steps == [False, True]
    assert torch.equal(parameter.detach(), torch.full((2,), -3.0))


def test_a_clip_without_a_step_does_not_reach_into_the_next_window():
    """E4: some loops drop an update whose norm is too large."""
    parameter = nn.Parameter(torch.zeros(2))
    opt = torch.optim.SGD([parameter], lr=1.0)
    norms = []
    with Engine(device="cpu", precision="fp16") as engine:
        engine.prepare(opt)
        for _ in range(2):
            with engine.accumulate():
                engine.backward((parameter * torch.tensor([3.0, 4.0])).sum())
                norms.append(engine.clip_grad_norm(opt, 100.0).item())
                opt.zero_grad()
    assert norms == [5.0, 5.0]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_skip_that_was_not_asked_for_is_forgotten_at_the_next_clip(precision):
    parameters, optimizers = parts()
    with Engine(device="cpu", precision=precision) as engine:
        engine.prepare(*optimizers)
        with engine.accumulate():
            engine.backward(parameters[0].sum() + (parameters[1] * float("nan")).sum())
            engine.clip_grad_norm(optimizers, 100.0)
            for each in optimizers:
                each.zero_grad()
        with engine.accumulate():
            engine.backward(sum(each.sum() for each in parameters))
            engine.clip_grad_norm(optimizers, 100.0)
            assert [engine.step(each) for each in optimizers] == [True, True]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("kind", ["value", "norm"])
def test_sparse_gradients_are_clipped_like_dense_ones(kind, precision):
    def parts(sparse):
        torch.manual_seed(0)
        table = nn.Embedding(5, 2, sparse=sparse)
        return table, torch.optim.SGD(table.parameters(), lr=1.0)

    ids = torch.tensor([1, 1, 2])
    ours, opt = parts(True)
    with Engine(device="cpu", precision=precision) as engine:
        engine.prepare(ours, opt)
        with engine.accumulate():
            engine.backward((ours(ids) * 5).sum())
            found = engine.clip_grad_value(opt, 6.0) if kind == "value" else engine.clip_grad_norm(opt, 1.5)
            engine.step(opt)
    theirs, opt = parts(False)
    (theirs(ids) * 5).sum().backward()
    clip = nn.utils.clip_grad_value_ if kind == "value" else nn.utils.clip_grad_norm_
    expected = clip(theirs.parameters(), 6.0 if kind == "value" else 1.5)
    opt.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-6, atol=1e-7)
    assert (found is None) == (expected is None)
    if kind == "norm":
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("clip", ["clip_grad_norm", "clip_grad_value"])
def test_parameters_without_a_gradient_are_passed_over(clip):
    used, unused = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))
    opt = torch.optim.SGD([used, unused], lr=1.0, weight_decay=0.5)
    with Engine(device="cpu", precision="fp16", gradient_accumulation_steps=2) as engine:
        engine.prepare(opt)
        for count, slope in ((1, 3.0), (3, 5.0)):
            with engine.accumulate(n_samples=count):
                engine.backward((used * slope).sum())
                getattr(engine, clip)(opt, 4.0)
                engine.step(opt)
    torch.testing.assert_close(used.detach(), torch.tensor([-4.0]), rtol=1e-6, atol=0)
    assert unused.item() == 1.0
