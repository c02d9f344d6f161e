"""Accumulation (E5): a window of micro-batches makes the update of the big batch."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from deepepochs.engine import Engine

from .references import OPTIMIZERS, assert_close, big_batch_loop, cut, flat, net, regression, windows_of

SIZES = {"equal": [4, 4, 4, 4, 4, 4], "ragged": [5, 1, 4, 7, 2, 3, 2], "short last": [4, 4, 4, 4, 4, 4, 1]}


class Stream(IterableDataset):
    """Batches of a stream whose length nobody knows."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return iter(self.batches)


def train(batches, steps, epochs=3, name="sgd", counted=True, precision="fp32", watch=None):
    model = net()
    opt = OPTIMIZERS[name](model.parameters())
    with Engine(device="cpu", precision=precision, gradient_accumulation_steps=steps) as engine:
        engine.prepare(model, opt)
        if watch is not None:
            original = engine._window._rescale
            engine._window._rescale = lambda factor: (watch.append(factor), original(factor))
        loader = engine.prepare_loader(batches)
        changed = 0
        for _ in range(epochs):
            for x, y in loader:
                with engine.accumulate(model, n_samples=len(x) if counted else None):
                    with engine.autocast():
                        loss = F.mse_loss(model(x), y)
                    engine.backward(loss)
                    changed += engine.step(opt)
    return model, changed


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_window_equals_the_big_batch(steps, sizes, name):
    x, y = regression(sum(SIZES[sizes]))
    batches = cut(x, y, SIZES[sizes])
    windows = windows_of(batches, steps)
    ours, changed = train(batches, steps, name=name)
    theirs = net()
    big_batch_loop(theirs, OPTIMIZERS[name](theirs.parameters()), windows, 3)
    assert changed == 3 * len(windows)
    # Adam divides by gradients that are nearly 0, which lifts the last bits of their sums
    assert_close(flat(ours), flat(theirs), 1e-6 if name != "adam" else 1e-5)


@pytest.mark.parametrize("steps", [2, 3])
def test_a_stream_of_unknown_length_ends_its_last_window(steps):
    x, y = regression(17)
    batches = cut(x, y, [4, 4, 4, 4, 1])
    ours, changed = train(DataLoader(Stream(batches), batch_size=None), steps)
    theirs = net()
    windows = windows_of(batches, steps)
    big_batch_loop(theirs, OPTIMIZERS["sgd"](theirs.parameters()), windows, 3)
    assert changed == 3 * len(windows)
    assert_close(flat(ours), flat(theirs))


def test_without_counts_the_loaders_own_count_weighs():
    x, y = regression(10)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    ours, _ = train(loader, 3, counted=False)
    theirs = net()
    big_batch_loop(theirs, OPTIMIZERS["sgd"](theirs.parameters()), [list(loader)], 3)
    assert_close(flat(ours), flat(theirs))


@pytest.mark.parametrize(
    ("sizes", "steps", "expected"), [([4] * 6, 3, 0), ([4] * 7, 3, 0), ([4] * 6 + [1], 7, 1), ([4, 2, 4, 2], 2, 2)]
)
def test_equal_counts_need_no_pass_over_the_gradients(sizes, steps, expected):
    x, y = regression(sum(sizes))
    factors = []
    train(cut(x, y, sizes), steps, epochs=1, watch=factors)
    assert len(factors) == expected


def test_weights_may_be_tokens():
    """The mean loss over tokens of the window, whatever the batches' shares of it are."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 5, 4, generator=generator)
    mask = torch.rand(6, 5, generator=generator) < 0.5
    mask[:, 0] = True
    y = torch.randn(6, 5, 1, generator=generator)

    def mean_loss(model, rows):
        errors = (model(x[rows]) - y[rows]).squeeze(-1) ** 2
        return (errors * mask[rows]).sum() / mask[rows].sum()

    ours, theirs = net(), net()
    opt = OPTIMIZERS["sgd"](ours.parameters())
    rows = [slice(0, 1), slice(1, 4), slice(4, 6)]
    with Engine(device="cpu", gradient_accumulation_steps=3) as engine:
        engine.prepare(ours, opt)
        for _ in range(3):
            for part in rows:
                with engine.accumulate(ours, n_samples=int(mask[part].sum())):
                    engine.backward(mean_loss(ours, part))
                    engine.step(opt)
    opt = OPTIMIZERS["sgd"](theirs.parameters())
    for _ in range(3):
        opt.zero_grad()
        mean_loss(theirs, slice(0, 6)).backward()
        opt.step()
    assert_close(flat(ours), flat(theirs))


def test_fractional_and_zero_weights():
    x, y = regression(6)
    parts = [(x[:2], y[:2], 0.0), (x[2:4], y[2:4], 0.25), (x[4:], y[4:], 1.75)]
    ours, theirs = net(), net()
    opt = OPTIMIZERS["sgd"](ours.parameters())
    with Engine(device="cpu", gradient_accumulation_steps=3) as engine:
        engine.prepare(ours, opt)
        for a, b, weight in parts:
            with engine.accumulate(n_samples=weight):
                engine.backward(F.mse_loss(ours(a), b))
                engine.step(opt)
    opt = OPTIMIZERS["sgd"](theirs.parameters())
    (sum(weight * F.mse_loss(theirs(a), b) for a, b, weight in parts) / 2).backward()
    opt.step()
    assert_close(flat(ours), flat(theirs))


def test_a_negative_weight_is_refused():
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        with pytest.raises(ValueError, match="`n_samples` must not be negative, got -1"):
            engine.accumulate(n_samples=-1)


def test_fp16_windows_equal_the_big_batch_of_the_same_scale():
    x, y = regression(24)
    batches = cut(x, y, [5, 1, 4, 7, 2, 5])
    ours, _ = train(batches, 3, precision="fp16")
    theirs = net()
    opt = OPTIMIZERS["sgd"](theirs.parameters())

    def half_loss(out, target):
        return F.mse_loss(out, target)

    for _ in range(3):
        for window in windows_of(batches, 3):
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = half_loss(theirs(torch.cat([a for a, _ in window])), torch.cat([b for _, b in window]))
            loss.backward()
            opt.step()
    assert_close(flat(ours), flat(theirs), relative=2e-3)


def test_a_window_that_was_broken_off_does_not_reach_into_the_next_pass():
    """E5, E9"""
    x, y = regression(16)
    batches = cut(x, y, [4, 4, 4, 4])
    ours, theirs = net(), net()
    opt = OPTIMIZERS["sgd"](ours.parameters())
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        engine.prepare(ours, opt)
        loader = engine.prepare_loader(batches)

        def one_pass(stops_early):
            for a, b in loader:
                with engine.accumulate(n_samples=len(a)):
                    engine.backward(F.mse_loss(ours(a), b))
                    engine.step(opt)
                if stops_early:
                    break

        one_pass(True)
        with pytest.warns(UserWarning, match="gradients of its last 1 micro-batches are dropped"):
            one_pass(False)
    big_batch_loop(theirs, OPTIMIZERS["sgd"](theirs.parameters()), windows_of(batches, 2), 1)
    assert_close(flat(ours), flat(theirs))


def test_an_evaluation_inside_a_window_does_not_disturb_it():
    x, y = regression(16)
    batches = cut(x, y, [4, 4, 4, 4])
    ours, theirs = net(), net()
    opt = OPTIMIZERS["sgd"](ours.parameters())
    with Engine(device="cpu", gradient_accumulation_steps=3) as engine:
        engine.prepare(ours, opt)
        loader, val = engine.prepare_loader(batches), engine.prepare_loader(batches[:2], train=False)
        for a, b in loader:
            with engine.accumulate(n_samples=len(a)):
                engine.backward(F.mse_loss(ours(a), b))
                engine.step(opt)
            assert len(list(val)) == 2
    big_batch_loop(theirs, OPTIMIZERS["sgd"](theirs.parameters()), windows_of(batches, 3), 1)
    assert_close(flat(ours), flat(theirs))


def test_loops_without_a_prepared_loader_say_which_batch_is_the_last():
    x, y = regression(10)
    batches = cut(x, y, [4, 4, 2])
    ours, theirs = net(), net()
    opt = OPTIMIZERS["sgd"](ours.parameters())
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        engine.prepare(ours, opt)
        for _ in range(2):
            for index, (a, b) in enumerate(batches):
                with engine.accumulate(n_samples=len(a), last=index == 2 or None):
                    engine.backward(F.mse_loss(ours(a), b))
                    assert engine.closes_window is (index > 0)
                    assert engine.step(opt) is (index > 0)
    big_batch_loop(theirs, OPTIMIZERS["sgd"](theirs.parameters()), windows_of(batches, 2), 2)
    assert_close(flat(ours), flat(theirs))


def test_backward_outside_a_micro_batch_is_refused():
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        with pytest.raises(RuntimeError, match="engine.accumulate"):
            engine.backward(net()(torch.ones(1, 4)).sum())


def test_sparse_gradients_are_weighted_too():
    def parts():
        torch.manual_seed(0)
        table = torch.nn.Embedding(5, 1, sparse=True)
        return table, torch.optim.SGD(table.parameters(), lr=0.1)

    ids = torch.tensor([0, 1, 2, 2, 3])
    ours, opt = parts()
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        engine.prepare(ours, opt)
        for part in (ids[:4], ids[4:]):
            with engine.accumulate(n_samples=len(part)):
                engine.backward(ours(part).mean())
                engine.step(opt)
    theirs, opt = parts()
    theirs(ids).mean().backward()
    opt.step()
    assert_close(ours.weight.detach(), theirs.weight.detach())


def test_a_parameter_of_two_optimizers_is_weighted_once():
    shared = torch.nn.Parameter(torch.zeros(1))
    optimizers = [torch.optim.SGD([shared], lr=1.0), torch.optim.SGD([shared], lr=1.0)]
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        engine.prepare(*optimizers)
        for count, slope in ((1, 3.0), (3, 5.0)):
            with engine.accumulate(n_samples=count):
                engine.backward((shared * slope).sum())
                changed = engine.step_all(optimizers)
    assert changed == [True, True]
    assert shared.item() == -2 * (1 * 3.0 + 3 * 5.0) / 4


def test_an_optimizer_that_is_not_prepared_is_refused():
    """Its gradients would not be weighted: silently another update."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    opt = torch.optim.SGD([parameter], lr=1.0)
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        with pytest.raises(RuntimeError, match="SGD is not prepared"):
            engine.step(opt)
        with pytest.raises(RuntimeError, match="SGD is not prepared"):
            engine.step_all([opt])


class Breaks(IterableDataset):
    """A stream that fails in its first pass, after one batch of a window."""

    def __init__(self, batches):
        self.batches, self.passes = batches, 0

    def __iter__(self):
        self.passes += 1
        for index, batch in enumerate(self.batches):
            if self.passes == 1 and index == 2:
                raise OSError("the disk is gone")
            yield batch


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_loader_that_fails_within_a_window_does_not_reach_into_the_next_pass(precision):
    """E9"""
    x, y = regression(16)
    batches = cut(x, y, [4, 4, 4, 4])
    ours, theirs = net(), net()

    def one_pass(engine, loader, model, opt):
        for a, b in loader:
            with engine.accumulate(n_samples=len(a)):
                engine.backward(F.mse_loss(model(a), b))
                engine.step(opt)

    with Engine(device="cpu", precision=precision, gradient_accumulation_steps=3) as engine:
        opt = engine.prepare(OPTIMIZERS["sgd"](ours.parameters()))
        loader = engine.prepare_loader(DataLoader(Breaks(batches), batch_size=None))
        with pytest.raises(OSError, match="disk"):
            one_pass(engine, loader, ours, opt)
        one_pass(engine, loader, ours, opt)
    with Engine(device="cpu", precision=precision, gradient_accumulation_steps=3) as engine:
        opt = engine.prepare(OPTIMIZERS["sgd"](theirs.parameters()))
        one_pass(engine, engine.prepare_loader(batches), theirs, opt)
    assert torch.equal(flat(ours), flat(theirs))
