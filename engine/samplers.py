"""Sharding: which samples of a loader this rank reads, in which order, with every option of the loader kept."""

from __future__ import annotations

import copy
import itertools
from typing import Any, Iterable, Iterator, Sequence

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from .seeding import mix_seed

CHUNK = 8192  # indices that become Python numbers at a time


class ShardSampler(Sampler):  # type: ignore[type-arg]
    """The indices of one rank for one epoch.

    Training shards are equally long: every world_size-th element of the epoch's order, which is filled up from its
    start, or cut with `drop_last`. Evaluation shards are the ranks' contiguous parts of the data set, neither filled
    up nor shuffled.

    Args:
        length: samples in the data set.
        rank: this rank.
        world_size: number of ranks.
        train: training or evaluation.
        shuffle: whether an epoch's order is random; it depends on (seed, epoch) only.
        drop_last: cut rather than fill up.
        seed: the run's seed, the same on all ranks.
    """

    def __init__(
        self, length: int, rank: int, world_size: int, train: bool, shuffle: bool, drop_last: bool, seed: int
    ) -> None:
        self.length, self.rank, self.world_size = length, rank, world_size
        self.train, self.shuffle, self.drop_last, self.seed = train, shuffle and train, drop_last, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch whose order the next pass follows."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if not self.train:
            return iter(range(*self._bounds()))
        total = len(self) * self.world_size
        if not self.shuffle:
            return (index % self.length for index in range(self.rank, total, self.world_size))
        generator = torch.Generator()
        generator.manual_seed(mix_seed(self.seed, self.epoch))
        return own_part(torch.randperm(self.length, generator=generator), total, self.rank, self.world_size)

    def _bounds(self) -> tuple[int, int]:
        return self.rank * self.length // self.world_size, (self.rank + 1) * self.length // self.world_size

    def __len__(self) -> int:
        if not self.train:
            start, stop = self._bounds()
            return stop - start
        return self.length // self.world_size if self.drop_last else -(-self.length // self.world_size)


class DrawnShard(ShardSampler):
    """One rank's part of what a sampler of torch's own draws in an epoch, shared out like a data set of that order.

    Args:
        sampler: the user's; what it draws depends on (seed, epoch) only.
        length: how many of its indices are read.
        others: those of `ShardSampler`.
    """

    def __init__(
        self, sampler: Any, length: int, rank: int, world_size: int, train: bool, drop_last: bool, seed: int
    ) -> None:
        super().__init__(length, rank, world_size, train, False, drop_last, seed)
        self.sampler = copy.copy(sampler)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator()
        generator.manual_seed(mix_seed(self.seed, self.epoch))
        self.sampler.generator = generator
        order = torch.tensor(list(self.sampler), dtype=torch.int64)
        if self.train:
            return own_part(order, len(self) * self.world_size, self.rank, self.world_size)
        start, stop = self._bounds()
        return own_part(order[start:stop], stop - start, 0, 1)


def own_part(order: torch.Tensor, total: int, rank: int, world_size: int) -> Iterator[int]:
    """Every world_size-th index of an order that is repeated or cut to a total, a chunk at a time: lists cost memory.

    Args:
        order: (samples,) int64.
        total: how many indices all ranks read together.
        rank: this rank.
        world_size: number of ranks.
    """
    if 0 < len(order) < total:
        order = order.repeat(-(-total // len(order)))
    own = order[rank : min(total, len(order)) : world_size].clone()
    del order
    for chunk in torch.split(own, CHUNK):
        yield from chunk.tolist()


class IterableShard(IterableDataset):  # type: ignore[type-arg]
    """Every world_size-th element of what a worker would read of an iterable data set.

    Args:
        dataset: the stream; it shares its elements among the workers of a loader by itself, as torch asks of it.
        rank: this rank.
        world_size: number of ranks.
    """

    def __init__(self, dataset: Any, rank: int, world_size: int) -> None:
        self.dataset, self.rank, self.world_size = dataset, rank, world_size

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.dataset), self.rank, None, self.world_size)


def is_rebuildable(loader: Any) -> bool:
    """Whether a loader's class and batching are torch's own, over a data set with indices."""
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return False
    return type(loader.batch_sampler) in (BatchSampler, type(None))


def is_plain(loader: Any) -> bool:
    """Whether a loader's order and batching are torch's own, so that it may be rebuilt for a rank."""
    if not is_rebuildable(loader):
        return False
    sampler = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler._num_samples is None
    return type(sampler) is SequentialSampler


def is_drawn(loader: Any) -> bool:
    """Whether a loader's indices are drawn by another sampler of torch's own, which would draw all for each rank."""
    samplers = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    return is_rebuildable(loader) and type(loader.sampler) in samplers and not is_plain(loader)


def is_stream(loader: Any) -> bool:
    """Whether a loader reads an iterable data set that must be shared among the ranks."""
    return (
        type(loader) is DataLoader
        and isinstance(loader.dataset, IterableDataset)
        and not getattr(loader.dataset, "shards_itself", False)
    )


def counts_samples(loader: Any) -> bool:
    """Whether a plain loader's batches hold just as many samples as its batch size says."""
    return loader.batch_size is not None and loader.collate_fn is default_collate


def rank_batch_size(loader: Any, world_size: int, split_batches: bool) -> int | None:
    """The batch size of one process.

    Raises:
        ValueError: the batch size is global and cannot be divided among the ranks.
    """
    if loader.batch_size is None or not split_batches:
        size: int | None = loader.batch_size
        return size
    if loader.batch_size % world_size:
        raise ValueError(
            f"with `split_batches=True` the loader's batch size must be divisible by the number of processes, "
            f"got batch_size={loader.batch_size} and world_size={world_size}"
        )
    return int(loader.batch_size // world_size)


def rebuild(loader: Any, dataset: Any, sampler: Any, batch_size: int | None, drop_last: bool, generator: Any) -> Any:
    """A loader like another one over other indices.

    Args:
        loader: the user's; all its options are kept.
        dataset: what to read.
        sampler: the indices, None for a stream.
        batch_size: samples a batch, None where the data set's elements are batches.
        drop_last: whether a short last batch is left out.
        generator: draws the workers' seeds.
    """
    options = kept_options(loader)
    if sampler is not None:
        options["sampler"] = sampler
    return DataLoader(
        dataset, batch_size=batch_size, drop_last=drop_last and batch_size is not None, generator=generator, **options
    )


def remaining(loader: Any, skip: int, noted: Sequence[tuple[torch.Generator, torch.Tensor]] = ()) -> Iterator[Any]:
    """Iterates a loader from a later batch on.

    Where the loader's indices are known, those of the skipped batches are drawn, so that the order is the same, and
    their data are not read. Everything that decides the order has been drawn when this returns; an order of (seed,
    epoch) or of the data set alone is not held as a list.

    Args:
        loader: any loader.
        skip: how many batches to leave out.
        noted: generators with the states they had when the pass was left. One that only the loader draws from stays
            where the pass's end leaves it (a RandomSampler draws after its last index, too); any other gets its state.
    """
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        source: Iterator[Any] = iter(loader)
        for _ in range(skip):
            next(source, None)
        _set_states(noted)
        return source
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)  # the workers' seed comes before the order
    batched = loader.batch_sampler is not None
    drawn: Any = loader.batch_sampler if batched else loader.sampler
    indices = iter(drawn)
    for _ in range(skip):
        next(indices, None)
    rest: Any = indices
    strangers = _elsewhere(noted)
    if not draws_nothing(loader):
        rest = []
        for batch in indices:
            rest.append(batch)
            strangers = _elsewhere(strangers)
        strangers = _elsewhere(strangers)
    own = [(generator, generator.get_state()) for generator, _ in noted]
    options: dict[str, Any] = {"batch_sampler": rest} if batched else {"sampler": rest, "batch_size": None}
    source = iter(DataLoader(loader.dataset, generator=loader.generator, **options, **kept_options(loader)))
    _set_states([*own, *strangers])
    return source


def draws_nothing(loader: Any) -> bool:
    """Whether a DataLoader's order is no matter of generators that others draw from, so that it may be made later."""
    return is_rebuildable(loader) and type(loader.sampler) in (ShardSampler, DrawnShard, SequentialSampler)


def _elsewhere(
    states: Sequence[tuple[torch.Generator, torch.Tensor]],
) -> list[tuple[torch.Generator, torch.Tensor]]:
    """Those of the generators that are in another state."""
    return [(generator, state) for generator, state in states if not torch.equal(generator.get_state(), state)]


def _set_states(states: Iterable[tuple[torch.Generator, torch.Tensor]]) -> None:
    for generator, state in states:
        generator.set_state(state)


def kept_options(loader: Any) -> dict[str, Any]:
    """The options of a loader that do not say what it reads."""
    names = (
        "num_workers",
        "collate_fn",
        "pin_memory",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
        "persistent_workers",
        "pin_memory_device",
        "in_order",
    )
    options: dict[str, Any] = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
    if loader.num_workers > 0:
        options["prefetch_factor"] = loader.prefetch_factor
    return options


def set_epoch(loader: Any, epoch: int) -> None:
    """Tells the epoch to whatever of a loader asks for it: itself, its samplers, its data set."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = [loader, batch_sampler, getattr(loader, "sampler", None), getattr(batch_sampler, "sampler", None)]
    tell_epoch([*parts, getattr(loader, "dataset", None)], epoch)


def tell_epoch(parts: Sequence[Any], epoch: int) -> None:
    """Calls `set_epoch` of those that have it, once of each."""
    told: list[Any] = []
    for part in parts:
        if callable(getattr(part, "set_epoch", None)) and not any(part is each for each in told):
            part.set_epoch(epoch)
            told.append(part)
