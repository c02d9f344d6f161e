"""Shards (E12, E13): which rank reads which sample."""

import math

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from deepepochs.engine import Engine

from .together import run_together


@pytest.fixture(scope="module")
def ranks(request):
    """What each function of this module returned on each rank, by its name."""
    return run_together(request.param, read_orders)


on_two_and_on_three = pytest.mark.parametrize("ranks", [2, 3], indirect=True)


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
