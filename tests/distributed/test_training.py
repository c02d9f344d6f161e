"""Training on several ranks (E5-E9, E12, E13, T12-T15): equal to one process on the union of the batches."""

import dataclasses
import math
from typing import Dict
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from deepepochs import Callback, EpochTask, GradClipCallback, Optimizer, Trainer, TrainerBase, set_seed
from deepepochs.engine import Engine

from ..engine.references import assert_close, big_batch_loop, flat, net, regression, windows_of
from .together import run_together

X, Y = regression(23)


@pytest.fixture(scope="module")
def ranks(request):
    """What each function of this module returned on each rank, by its name."""
    functions = [train_grid, train_unequal, read_orders]
    if request.param == 2:
        functions += [count_synchronisations, train_odd, train_structured, train_together, several_tasks]
    return run_together(request.param, *functions)


on_two_ranks = pytest.mark.parametrize("ranks", [2], indirect=True)
on_two_and_on_three = pytest.mark.parametrize("ranks", [2, 3], indirect=True)


def make(model, loss=F.mse_loss, opt=None, **options):
    options = {"device": "cpu", "show_info": False, "log_batch": False, "epochs": 2, **options}
    return Trainer(model, loss, opt or torch.optim.SGD(model.parameters(), lr=0.1), **options)


def padded(count, world_size, drop_last):
    """The order that all ranks read together."""
    order = list(range(count))
    size = count // world_size if drop_last else -(-count // world_size)
    return (order * 2)[: size * world_size]


# ---- exact updates

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


# ---- unequal weights, two optimizers, overflow on one rank


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


# ---- one synchronisation a window


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


# ---- order of the samples


class Indexed(Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor([float(index)])


def read(engine, loader, epochs=1, train=True):
    ours = engine.prepare_loader(loader, train=train)
    return [[int(each) for batch in ours for each in batch.flatten()] for _ in range(epochs)]


class Numbers(IterableDataset):
    """A stream that shares itself among workers, as torch asks."""

    def __init__(self, count, shards_itself=False):
        self.count = count
        if shards_itself:
            self.shards_itself = True

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(torch.arange(start, self.count, step).float())


def read_orders():
    found = {}
    with Engine(device="cpu", seed=3) as engine:
        for count in (0, 1, 2, 5, 7, 12):
            for drop_last in (False, True):
                loader = DataLoader(Indexed(count), batch_size=2, drop_last=drop_last) if count else None
                if loader is not None:
                    found["train", count, drop_last] = read(engine, loader)[0]
                    found["val", count, drop_last] = read(engine, loader, train=False)[0]
        shuffled = DataLoader(Indexed(12), batch_size=2, shuffle=True)
        found["shuffled"] = read(engine, shuffled, 3)
        torch.rand(engine.rank + 1)
        found["again"] = read(engine, shuffled, 3)
        found["sampler"] = read(engine, DataLoader(Indexed(4), sampler=[3, 1], batch_size=2))[0]
        found["stream"] = read(engine, DataLoader(Numbers(11), batch_size=2), train=False)[0]
        found["workers"] = read(engine, DataLoader(Numbers(11), batch_size=2, num_workers=2), train=False)[0]
        found["itself"] = read(engine, DataLoader(Numbers(4, True), batch_size=2), train=False)[0]
        found["uneven"] = read(engine, DataLoader(Numbers(11), batch_size=2))[0]
        found["own lengths"] = read(engine, DataLoader(Indexed(9), sampler=list(range(3 + engine.rank)), batch_size=1))[
            0
        ]
        try:
            split = Engine(device="cpu", split_batches=True)
            split.prepare_loader(DataLoader(Indexed(9), batch_size=5))
        except ValueError as error:
            found["split"] = str(error)
    return found


@on_two_and_on_three
def test_every_sample_is_read_by_the_right_rank(ranks):
    results = ranks["read_orders"]
    world_size = len(results)

    def joined(*key):
        return [result[key if len(key) > 1 else key[0]] for result in results]

    for count in (1, 2, 5, 7, 12):
        for drop_last in (False, True):
            shards = joined("train", count, drop_last)
            assert len({len(shard) for shard in shards}) == 1
            size = count // world_size if drop_last else math.ceil(count / world_size)
            assert len(shards[0]) == (size // 2 * 2 if drop_last else size)
            if not drop_last:
                assert set(sum(shards, [])) == set(range(count))
            expected = list(range(count // 2 * 2 if drop_last else count))
            assert sum(joined("val", count, drop_last), []) == expected
    epochs = [sum([shards[epoch] for shards in joined("shuffled")], []) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert joined("again") == joined("shuffled")
    assert joined("sampler") == [[3, 1]] * world_size
    assert sorted(sum(joined("stream"), [])) == sorted(sum(joined("workers"), [])) == list(range(11))
    assert joined("itself") == [[0, 1, 2, 3]] * world_size
    lengths = {math.ceil(len(shard) / 2) for shard in joined("uneven")}
    assert len(lengths) == 1
    assert joined("own lengths") == [[0, 1, 2]] * world_size
    assert f"batch_size=5 and world_size={world_size}" in results[0].get(
        "split", f"batch_size=5 and world_size={world_size}"
    )
    if world_size == 2:
        assert "split" in results[0]


# ---- models of all kinds


class Odd(nn.Module):
    """Unused, frozen and tied parameters, buffers, and outputs in containers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)  # ranks begin differently
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        self.unused, self.frozen = nn.Linear(2, 2), nn.Linear(4, 1)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return {"out": (self.frozen(self.last(self.norm(self.first(x)))),)}


def train_odd():
    with Engine(device="cpu", ddp_options={"find_unused_parameters": True, "timeout": 60}) as engine:
        model = Odd()
        loss = lambda out, y: F.mse_loss(out["out"][0], y)  # noqa: E731
        opt = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
        trainer = Trainer(model, loss, opt, epochs=2, engine=engine, show_info=False)
        trainer.fit(
            DataLoader(TensorDataset(X, Y), batch_size=4), DataLoader(TensorDataset(X[:2], Y[:2]), batch_size=4)
        )
        names = list(trainer.model.state_dict())
        predictions = trainer.predict(DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True))
    with Engine(device="cpu", ddp_options={"sync_batchnorm": True}) as engine:
        try:
            engine.prepare_model(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        except ValueError as error:
            refusal = str(error)
    return flat(trainer.model), names, predictions["out"][0], refusal


@on_two_ranks
def test_models_of_all_kinds(ranks):
    """E14, T15"""
    results = ranks["train_odd"]
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == list(Odd().state_dict())
    assert torch.equal(results[0][2], results[1][2])
    assert results[0][2].shape == (23, 1)
    assert "needs CUDA devices, got cpu" in results[0][3]


@dataclasses.dataclass
class Output:
    """What a model returns; the parameters behind `mean` and `others` are reached only through it."""

    mean: torch.Tensor
    others: Dict[str, torch.Tensor]
    name: str = "output"


class Structured(nn.Module):
    def __init__(self, unused=False):
        super().__init__()
        self.body, self.head = net(1, outputs=4), net(2, inputs=4)
        if unused:
            self.unused = nn.Linear(2, 2)

    def forward(self, x):
        hidden = self.body(x)
        return Output(self.head(hidden), {"width": hidden.square().mean(1, keepdim=True)})


def structured_loss(out, y):
    return F.mse_loss(out.mean, y) + 0.1 * F.mse_loss(out.others["width"], y)


def width(out, y):
    return (out.others["width"] * y).mean()


STRUCTURED_STEPS = (1, 2)


def train_structured():
    """Trainer and bare Engine, with one and two batches a window; the last also with parameters that get nothing."""
    found = {}
    loader = DataLoader(TensorDataset(X, Y), batch_size=3)
    for steps in STRUCTURED_STEPS:
        model = Structured()
        options = {"gradient_accumulation_steps": steps, "metrics": [width]}
        with make(model, structured_loss, **options) as trainer:
            progress = trainer.fit(loader, loader)
            predicted = trainer.predict(loader)
        found["trainer", steps] = flat(model)
        found["values", steps] = progress["val"]
        found["predicted", steps] = (type(predicted) is Output, predicted.mean, predicted.others["width"])
        model = Structured(unused=True)
        options = {"ddp_options": {"find_unused_parameters": True}}
        with Engine(device="cpu", gradient_accumulation_steps=steps, **options) as engine:
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            prepared, opt, batches = engine.prepare(model, opt, loader)
            for _ in range(2):
                for x, y in batches:
                    with engine.accumulate(prepared, n_samples=len(x)):
                        engine.backward(structured_loss(prepared(x), y))
                        engine.step(opt)
        del model.unused
        found["engine", steps] = flat(model)
    return found


@on_two_ranks
def test_a_model_that_returns_a_dataclass_trains_as_in_one_process(ranks):
    results = ranks["train_structured"]
    order = padded(len(X), 2, False)
    batches = [(X[order[start : start + 6]], Y[order[start : start + 6]]) for start in range(0, len(order), 6)]
    for steps in STRUCTURED_STEPS:
        model = Structured()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        values = {"loss": [], "width": []}
        for _ in range(2):
            big_batch_loop(model, opt, windows_of(batches, steps), 1, structured_loss)
            with torch.no_grad():
                out = model(X)
                values["loss"].append(structured_loss(out, Y).item())
                values["width"].append(width(out, Y).item())
        for result in results:
            assert_close(result["trainer", steps], flat(model))
            assert_close(result["engine", steps], flat(model))
            assert result["values", steps] == {name: pytest.approx(each, rel=1e-6) for name, each in values.items()}
            is_output, mean, widths = result["predicted", steps]
            assert is_output
            torch.testing.assert_close(mean, out.mean)
            torch.testing.assert_close(widths, out.others["width"])


# ---- schedules, stops and interruptions


class Pieces(TrainerBase):
    def train_step(self, batch_x, batch_y, **step_args):
        half = len(batch_x) // 2
        with self.no_sync():
            self.loss(self.model(batch_x[:half]), batch_y[:half], loss_adjust=half / len(batch_x), do_optimize=False)
        rest = len(batch_x) - half
        self.loss(self.model(batch_x[half:]), batch_y[half:], loss_adjust=rest / len(batch_x), do_optimize=False)
        self.optimize()


class Interrupt(Callback):
    """Interrupts all ranks in the middle of the second window, once."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_after_backward(self, **others):
        self.seen += 1
        if self.seen == 3:
            raise KeyboardInterrupt


def train_together():
    found = {}
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.9)
    with make(model, opt=Optimizer(opt, plateau, sched_with_loss=True), epochs=4) as trainer:
        trainer.fit(
            DataLoader(TensorDataset(X, Y), batch_size=4), DataLoader(TensorDataset(X[:2], Y[:2]), batch_size=1)
        )
        found["lr"] = trainer.opt.get_current_lr()
    models = []
    for trainer_class in (Trainer, Pieces):
        model = net()
        options = {"device": "cpu", "show_info": False, "epochs": 2}
        with trainer_class(model, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), **options) as trainer:
            trainer.fit(DataLoader(TensorDataset(X[:16], Y[:16]), batch_size=4))
        models.append(flat(model))
    found["pieces"] = models
    model = net()
    with make(model, gradient_accumulation_steps=2, callbacks=[Interrupt()], epochs=1) as trainer:
        dl = DataLoader(TensorDataset(X[:16], Y[:16]), batch_size=2)
        found["interrupted"] = trainer.fit(dl)
        before = flat(model).clone()
        assert all(each.grad is None for each in model.parameters())
        trainer.fit(dl)
    other = net()
    nn.utils.vector_to_parameters(before, other.parameters())
    with make(other, gradient_accumulation_steps=2, epochs=1) as trainer:
        trainer.fit(dl)
    found["after"] = (flat(model), flat(other))
    return found


@on_two_ranks
def test_schedules_pieces_and_interrupted_windows(ranks):
    results = ranks["train_together"]
    assert results[0]["lr"] == results[1]["lr"]
    assert results[0]["lr"][0] < 0.1
    for result in results:
        assert_close(result["pieces"][1], result["pieces"][0])
        assert result["interrupted"] == {"train": {}, "val": {}}
        assert torch.equal(*result["after"])


# ---- tasks and seeds


def several_tasks():
    set_seed(5)
    model = net()
    tasks = [EpochTask(DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)) for _ in range(2)]
    with make(model, epochs=2) as trainer:
        progress = trainer.fit(train_tasks=tasks, val_tasks=[EpochTask(DataLoader(TensorDataset(X[:1], Y[:1])))])
    return progress, flat(model)


@on_two_ranks
def test_several_tasks_and_a_shard_without_data(ranks):
    results = ranks["several_tasks"]
    assert results[0][0] == results[1][0]
    assert list(results[0][0]["train"]) == ["loss", "loss/1"]
    assert torch.equal(results[0][1], results[1][1])
