"""Micro-batches without a backward, and passes side by side (E5, R1): a window holds what was trained, no more."""

import pytest
import torch
from torch.nn import functional as F

from deepepochs import Trainer, TrainerBase
from deepepochs.engine import Engine

from .references import flat, net, regression

SIZES = [4, 3, 5, 2, 4, 4, 1]


def batches():
    x, y = regression(sum(SIZES))
    return list(zip(x.split(SIZES), y.split(SIZES)))


def reference(steps, skipped):
    """The mean over the trained samples of each window, in a bare loop."""
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = batches()
    for start in range(0, len(data), steps):
        kept = [data[index] for index in range(start, min(start + steps, len(data))) if index not in skipped]
        if kept:
            opt.zero_grad()
            F.mse_loss(model(torch.cat([x for x, _ in kept])), torch.cat([y for _, y in kept])).backward()
            opt.step()
    return flat(model)


SKIPS = [{1}, {0}, {2}, {0, 1}, {0, 1, 2}, {6}, {5, 6}, {1, 2, 4}, {3, 4, 5, 6}, set(range(7))]


class Skips(TrainerBase):
    skipped = frozenset()
    seen = -1

    def train_step(self, x, y, **step_args):
        self.seen += 1
        if self.seen not in self.skipped:
            self.loss(self.model(x), y)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("skipped", SKIPS, ids=str)
def test_a_step_that_skips_batches_trains_on_the_others(steps, skipped):
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    options = {"gradient_accumulation_steps": steps, "show_info": False, "log_batch": False}
    with Skips(model, F.mse_loss, opt, epochs=1, device="cpu", **options) as trainer:
        trainer.skipped = skipped
        trainer.fit(batches())
        windows = range(0, len(SIZES), steps)
        trained = [w for w in windows if set(range(w, min(w + steps, len(SIZES)))) - skipped]
        assert trainer.global_step == len(trained)
    torch.testing.assert_close(flat(model), reference(steps, skipped), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("skipped", [{0}, {0, 1}, {3}, {3, 4, 5}], ids=str)
def test_a_loop_that_goes_on_before_backward_keeps_the_weights(skipped):
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with Engine(device="cpu", gradient_accumulation_steps=3) as engine:
        model, opt = engine.prepare(model, opt)
        for index, (x, y) in enumerate(engine.prepare_loader(batches())):
            with engine.accumulate(model, n_samples=len(x)):
                if index in skipped:
                    continue
                engine.backward(F.mse_loss(model(x), y))
                engine.step(opt)
    torch.testing.assert_close(flat(model), reference(3, skipped), rtol=1e-5, atol=1e-6)


def test_a_closing_batch_that_steps_without_a_backward_updates_with_the_others():
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with Engine(device="cpu", gradient_accumulation_steps=3) as engine:
        model, opt = engine.prepare(model, opt)
        for index, (x, y) in enumerate(engine.prepare_loader(batches())):
            with engine.accumulate(model, n_samples=len(x)):
                if index != 2:
                    engine.backward(F.mse_loss(model(x), y))
                engine.step(opt)
    torch.testing.assert_close(flat(model), reference(3, {2}), rtol=1e-5, atol=1e-6)


def test_a_closing_batch_without_backward_and_step_is_an_error_that_drops_the_window():
    model = net()
    before = flat(model)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        model, opt = engine.prepare(model, opt)

        def one_pass():
            for index, (x, y) in enumerate(engine.prepare_loader(batches())):
                with engine.accumulate(model, n_samples=len(x)):
                    if index == 1:
                        continue
                    engine.backward(F.mse_loss(model(x), y))
                    engine.step(opt)

        with pytest.raises(RuntimeError, match=r"gradients of 1 earlier ones wait: call engine\.step\(\)"):
            one_pass()
        assert engine.is_between_windows
    assert torch.equal(flat(model), before)
    assert all(each.grad is None for each in model.parameters())


def test_a_pass_over_another_loader_within_a_window_leaves_it_alone():
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with Engine(device="cpu", gradient_accumulation_steps=3) as engine:
        model, opt = engine.prepare(model, opt)
        other = engine.prepare_loader(batches())
        for index, (x, y) in enumerate(engine.prepare_loader(batches())):
            with engine.accumulate(model, n_samples=len(x)):
                engine.backward(F.mse_loss(model(x), y))
                engine.step(opt)
            if index % 2 == 0:
                assert len(list(other)) == len(SIZES)
    torch.testing.assert_close(flat(model), reference(3, set()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first_is_longer", [True, False])
def test_loaders_side_by_side_close_their_windows_by_the_first(first_is_longer):
    model = net()
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        model, opt = engine.prepare(model, opt)
        short, long = engine.prepare_loader(batches()[:5]), engine.prepare_loader(batches())
        pair = (long, short) if first_is_longer else (short, long)
        stepped = []
        for (x, y), _ in zip(*pair):
            with engine.accumulate(model, n_samples=len(x)):
                engine.backward(F.mse_loss(model(x), y))
                stepped.append(engine.step(opt))
        if first_is_longer:  # the fifth batch does not know that it is the last
            assert stepped == [False, True, False, True, False]
            with pytest.warns(UserWarning, match="left within a window: the gradients of its last 1 micro-batches"):
                next(iter(short))
            assert all(each.grad is None for each in model.parameters())
        else:
            assert stepped == [False, True, False, True, True]


def test_an_ordinary_fit_is_what_it_was():
    """The last bit of a plain fit with accumulation does not depend on the look-out for batches left out."""
    model, theirs = net(), net()
    x, y = regression(16)
    with Trainer(model, F.mse_loss, torch.optim.SGD(model.parameters(), 0.1), epochs=1, device="cpu", show_info=False,
                 log_batch=False, gradient_accumulation_steps=2) as trainer:  # fmt: skip
        trainer.fit(list(zip(x.split(4), y.split(4))))
    opt = torch.optim.SGD(theirs.parameters(), 0.1)
    for one, other in ((0, 4), (8, 12)):
        opt.zero_grad()
        for start in (one, other):
            (F.mse_loss(theirs(x[start : start + 4]), y[start : start + 4]) * 0.5).backward()
        opt.step()
    assert torch.equal(flat(model), flat(theirs))
