"""Which samples a rank reads (E12, R1): together all that one process would read, in an order of (seed, epoch)."""

import itertools

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from deepepochs.engine.data import Loader
from deepepochs.engine.samplers import CHUNK, ShardSampler, mix_seed


class Ranks:
    """What a loader asks of the processes."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size


DATA = TensorDataset(torch.arange(23))
SAMPLERS = {
    "subset": lambda: SubsetRandomSampler([2, 3, 5, 7, 11, 13, 17]),
    "weighted": lambda: WeightedRandomSampler([1.0] * 22 + [50.0], 30),
    "replacement": lambda: RandomSampler(DATA, replacement=True, num_samples=40),
    "few": lambda: RandomSampler(DATA, num_samples=10),
    "many": lambda: RandomSampler(DATA, num_samples=50),
}


def read(name, rank, world_size, epoch, seed=3, train=True, size=2, drop_last=False):
    loader = DataLoader(DATA, size, sampler=SAMPLERS[name](), drop_last=drop_last)
    ours = Loader(loader, Ranks(rank, world_size), None, None, seed=seed)
    if train:
        ours._window = object()
        ours.loader = ours._share(loader, False)
    ours.set_epoch(epoch)
    ours._begin_epoch()
    return [index for (batch,) in ours.loader for index in batch.tolist()]


def drawn(name, epoch, seed=3):
    sampler = SAMPLERS[name]()
    sampler.generator = torch.Generator().manual_seed(mix_seed(seed, epoch))
    return list(sampler)


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("name", SAMPLERS)
def test_torchs_other_samplers_are_shared_out_in_training(name, world_size):
    for epoch in (0, 1):
        shards = [read(name, rank, world_size, epoch) for rank in range(world_size)]
        order = drawn(name, epoch)
        assert len({len(shard) for shard in shards}) == 1
        woven = list(itertools.chain(*zip(*shards)))
        assert woven[: len(order)] == order
        assert woven[len(order) :] == (order * 2)[: len(woven) - len(order)]
    assert read(name, 0, world_size, 0) != read(name, 0, world_size, 1)


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("name", SAMPLERS)
def test_torchs_other_samplers_are_shared_out_in_evaluation(name, world_size):
    shards = [read(name, rank, world_size, 0, train=False) for rank in range(world_size)]
    assert list(itertools.chain(*shards)) == drawn(name, 0)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", SAMPLERS)
def test_an_evaluation_that_drops_its_last_batch_reads_what_one_process_reads(name, world_size):
    shards = [read(name, rank, world_size, 0, train=False, size=4, drop_last=True) for rank in range(world_size)]
    order = drawn(name, 0)
    assert list(itertools.chain(*shards)) == order[: len(order) // 4 * 4]


def reference(length, rank, world_size, shuffle, drop_last, seed, epoch):
    """Lists, as long as they need to be."""
    order = list(range(length))
    if shuffle:
        order = torch.randperm(length, generator=torch.Generator().manual_seed(mix_seed(seed, epoch))).tolist()
    total = (length // world_size if drop_last else -(-length // world_size)) * world_size
    return list(itertools.islice(itertools.cycle(order), total))[rank::world_size] if order else []


@pytest.mark.parametrize("length", [0, 1, 2, 7, 23, 2 * CHUNK + 5])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_an_epochs_order_is_that_of_plain_lists(length, world_size):
    for shuffle, drop_last, epoch in itertools.product((True, False), (True, False), (0, 4)):
        for rank in range(world_size):
            sampler = ShardSampler(length, rank, world_size, True, shuffle, drop_last, 9)
            sampler.set_epoch(epoch)
            assert list(sampler) == reference(length, rank, world_size, shuffle, drop_last, 9, epoch)
            assert len(sampler) == len(list(sampler))


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_prepared_loader_follows_a_restored_seed(world_size):
    loader = DataLoader(DATA, 4, shuffle=True)
    one, other = Loader(loader, Ranks(0, world_size), None, None, seed=1), None
    one._window = object()
    one.reseed(2)
    other = Loader(loader, Ranks(0, world_size), None, None, seed=2)
    other._window = object()
    other.loader = other._share(loader, False)
    for each in (one, other):
        each.set_epoch(3)
        each._begin_epoch()
    read_by = [[batch[0].tolist() for batch in each.loader] for each in (one, other)]
    assert read_by[0] == read_by[1]
