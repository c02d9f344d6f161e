"""Loaders in one process (E12, E3): batches on the device, options kept, the user's samplers untouched."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset, WeightedRandomSampler

from deepepochs.engine import Engine, Loader

DATA = TensorDataset(torch.arange(10.0))


def values(loader):
    return [batch[0].tolist() for batch in loader]


@pytest.fixture
def engine():
    with Engine(device="cpu") as engine:
        yield engine


def test_a_plain_loader_is_read_as_it_is(engine):
    loader = DataLoader(DATA, batch_size=4)
    ours = engine.prepare_loader(loader)
    assert isinstance(ours, Loader)
    assert ours.loader is loader
    assert len(ours) == 3
    assert values(ours) == values(loader)


def test_evaluation_reads_a_shuffled_loader_in_the_data_sets_order(engine):
    ours = engine.prepare_loader(DataLoader(DATA, batch_size=4, shuffle=True), train=False)
    assert values(ours) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_evaluation_with_drop_last_drops_as_the_loader_does(engine):
    ours = engine.prepare_loader(DataLoader(DATA, batch_size=4, shuffle=True, drop_last=True), train=False)
    assert values(ours) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_users_sampler_is_used(engine):
    sampler = WeightedRandomSampler([0.0] * 9 + [1.0], 3)
    assert values(engine.prepare_loader(DataLoader(DATA, batch_size=3, sampler=sampler), train=False)) == [[9, 9, 9]]
    sampler = RandomSampler(DATA, replacement=True, num_samples=5)
    assert len(values(engine.prepare_loader(DataLoader(DATA, batch_size=5, sampler=sampler), train=False))[0]) == 5


class Told(WeightedRandomSampler):
    """A sampler that wants to know the epoch."""

    def __init__(self):
        super().__init__([1.0] * 4, 4)
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)


def test_a_sampler_is_told_each_epoch_once(engine):
    sampler = Told()
    ours = engine.prepare_loader(DataLoader(TensorDataset(torch.arange(4.0)), sampler=sampler))
    for _ in range(3):
        list(ours)
    ours.set_epoch(7)
    list(ours)
    assert sampler.epochs == [0, 1, 2, 7]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(5.0))


def test_a_stream_is_read_as_torch_does(engine):
    ours = engine.prepare_loader(DataLoader(Stream(), batch_size=2))
    assert [batch.tolist() for batch in ours] == [[0, 1], [2, 3], [4]]


def test_options_survive_a_rebuild():
    options = {
        "batch_size": 3, "num_workers": 1, "prefetch_factor": 3, "persistent_workers": True, "timeout": 20,
        "multiprocessing_context": "fork", "collate_fn": lambda items: torch.stack([item[0] for item in items]),
        "generator": torch.Generator(), "worker_init_fn": print, "drop_last": True,
    }  # fmt: skip
    with Engine(device="cpu", seed=1) as engine:
        rebuilt = engine.prepare_loader(DataLoader(DATA, shuffle=True, **options)).loader
    for name, value in options.items():
        found = getattr(rebuilt, name)
        assert (found.get_start_method() if name == "multiprocessing_context" else found) == value, name


def test_batches_can_stay_where_they_are():
    with Engine(device="meta") as engine:
        loader = DataLoader(DATA, batch_size=5)
        assert next(iter(engine.prepare_loader(loader)))[0].device.type == "meta"
        assert next(iter(engine.prepare_loader(loader, move_batches=False)))[0].device.type == "cpu"


def test_what_can_be_read_only_once_is_refused(engine):
    with pytest.raises(TypeError, match="iterated anew each epoch, got generator"):
        engine.prepare_loader(batch for batch in [1])
    with pytest.raises(TypeError, match="got int"):
        engine.prepare_loader(3)


def test_lists_of_batches_are_loaders(engine):
    ours = engine.prepare_loader([[torch.ones(2)], [torch.zeros(1)]])
    assert [values(ours) for _ in range(2)] == [[[1, 1], [0]]] * 2
