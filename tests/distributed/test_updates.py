"""Updates on several ranks (E5, E6, E8): those of one process on all batches, synchronised once a window."""

from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import GradClipCallback, Trainer
from deepepochs.engine import Engine

from ..engine.references import assert_close, flat, net
from .references import X, Y, make, padded
from .together import run_together


@pytest.fixture(scope="module")
def ranks(request):
    """What each function of this module returned on each rank, by its name."""
    return run_together(request.param, train_grid, train_unequal, *[count_synchronisations] * (request.param == 2))


on_two_ranks = pytest.mark.parametrize("ranks", [2], indirect=True)
on_two_and_on_three = pytest.mark.parametrize("ranks", [2, 3], indirect=True)


GRID = [
    (steps, drop_last, split) for steps in (1, 2, 3, 4) for drop_last in (False, True) for split in (False, True)
]  # fmt: skip


def train_grid():
    found = {}
    world_size = dist_world()
    for steps, drop_last, split in GRID:
        model = net()
        options = {
            "gradient_accumulation_steps": steps,
            "split_batches": split,
            "callbacks": [GradClipCallback(0.5, 2)],
        }
        with make(model, **options) as trainer:
            batch_size = 3 * world_size if split else 3
            dl = DataLoader(TensorDataset(X, Y), batch_size=batch_size, drop_last=drop_last)
            progress = trainer.fit(dl, DataLoader(TensorDataset(X, Y), batch_size=6))
            found[steps, drop_last, split] = (flat(model), progress, trainer.global_step)
    return found


def dist_world():
    with Engine(device="cpu") as engine:
        return engine.world_size


def reference(steps, drop_last, world_size):
    """One process, one batch for each window of all ranks."""
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    order, size = padded(len(X), world_size, drop_last), 3 * world_size
    train, val = [], []
    updates = 0
    for _ in range(2):
        rows = [order[start : start + size] for start in range(0, len(order), size)]
        rows = [each for each in rows if len(each) == size] if drop_last else rows
        total = 0.0
        for start in range(0, len(rows), steps):
            window = sum(rows[start : start + steps], [])
            opt.zero_grad()
            loss = F.mse_loss(model(X[window]), Y[window])
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            opt.step()
            updates += 1
            total += loss.item() * len(window)
        train.append(total / sum(map(len, rows)))
        with torch.no_grad():
            val.append(F.mse_loss(model(X), Y).item())
    return flat(model), train, val, updates


@on_two_and_on_three
def test_updates_equal_the_big_batch_of_all_ranks(ranks):
    results = ranks["train_grid"]
    world_size = len(results)
    for (steps, drop_last, split), (weights, progress, updates) in results[0].items():
        expected, train, val, count = reference(steps, drop_last, world_size)
        place = (steps, drop_last, split)
        assert_close(weights, expected)
        assert progress["train"]["loss"] == pytest.approx(train, rel=1e-6), place
        assert progress["val"]["loss"] == pytest.approx(val, rel=1e-6), place
        assert updates == count, place
        for other in results[1:]:
            assert torch.equal(other[place][0], weights)
            assert other[place][1] == progress


def token_windows(rank, world_size):
    """Three micro-batches of each rank; their weights differ between ranks."""
    generator = torch.Generator().manual_seed(100 + rank)
    sizes = [2 + rank, 1, 3 + 2 * rank]
    return [(torch.randn(size, 4, generator=generator), torch.randn(size, 1, generator=generator)) for size in sizes]


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = net(1), net(2)

    def forward(self, x):
        return self.one(x), self.other(x)


def train_unequal():
    found = {}
    for steps in (1, 2, 3):
        with Engine(device="cpu", gradient_accumulation_steps=steps) as engine:
            module = net()
            opt = torch.optim.SGD(module.parameters(), lr=0.1)
            model, opt = engine.prepare(module, opt)
            windows = token_windows(engine.rank, engine.world_size)
            for _ in range(2):
                for index, (x, y) in enumerate(windows):
                    with engine.accumulate(model, n_samples=len(x), last=index == 2 or None):
                        engine.backward(F.mse_loss(model(x), y))
                        engine.step(opt)
            found["tokens", steps] = flat(module)
    with Engine(device="cpu", precision="fp16") as engine:
        module = Halves()
        opts = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (module.one, module.other)]
        model, *opts = engine.prepare(module, *opts)
        steps = []
        for bad in (False, True, False):
            x, y = X[engine.rank :: engine.world_size][:4], Y[engine.rank :: engine.world_size][:4]
            with engine.accumulate(model):
                with engine.autocast():
                    one, other = model(x)
                    factor = float("inf") if bad and engine.rank == 1 else 0.01
                    loss = F.mse_loss(one, y) * 0.01 + F.mse_loss(other, y) * factor
                engine.backward(loss)
                engine.clip_grad_norm(opts, 10.0)
                steps.append([engine.step(each) for each in opts])
        found["overflow"] = (steps, flat(module), engine.state_dict()["scaler"]["scale"])
    return found


@on_two_and_on_three
def test_weights_that_differ_between_ranks_and_an_overflow_on_one(ranks):
    results = ranks["train_unequal"]
    world_size = len(results)
    for steps in (1, 2, 3):
        model = net()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        all_windows = [token_windows(rank, world_size) for rank in range(world_size)]
        for _ in range(2):
            for start in range(0, 3, steps):
                parts = [part for windows in all_windows for part in windows[start : start + steps]]
                opt.zero_grad()
                F.mse_loss(model(torch.cat([x for x, _ in parts])), torch.cat([y for _, y in parts])).backward()
                opt.step()
        for result in results:
            assert_close(result["tokens", steps], flat(model))
    steps, weights, scale = results[0]["overflow"]
    assert steps == [[True, True], [True, False], [True, True]]
    assert scale == 2.0**15
    for result in results[1:]:
        assert result["overflow"][0] == steps
        assert torch.equal(result["overflow"][1], weights)


def count_synchronisations():
    found = {}
    for steps in (1, 3):
        calls = []
        with Engine(device="cpu", gradient_accumulation_steps=steps) as engine:
            model = net()
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            trainer = Trainer(model, F.mse_loss, opt, epochs=1, engine=engine, show_info=False)

            def hook(state, bucket, calls=calls):
                calls.append(bucket.index())
                work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
                return work.get_future().then(lambda done: done.value()[0])

            trainer.model.register_comm_hook(None, hook)
            with mock.patch.object(dist, "all_reduce", wraps=dist.all_reduce) as all_reduce:
                trainer.fit(DataLoader(TensorDataset(X[:18], Y[:18]), batch_size=3))
        found[steps] = (len(calls), all_reduce.call_count - len(calls))
    return found


@on_two_ranks
def test_gradients_are_exchanged_once_a_window_and_counts_never_where_shards_are_equal(ranks):
    """E6: three batches a rank."""
    for found in ranks["count_synchronisations"]:
        assert found[1][0] == 3
        assert found[3][0] == 1
        # what is left is the agreement on a stop, which grows rarer, and the epoch's end
        assert found[1][1] <= 5
        assert found[3][1] <= 5
