"""Data: a loader as one rank reads it: its share of the samples, on the device, with the end in sight."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Sequence

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from .accumulation import Window
from .device import move
from .processes.group import Processes
from .samplers import (
    DrawnShard,
    IterableShard,
    ShardSampler,
    counts_samples,
    is_drawn,
    is_plain,
    is_stream,
    rank_batch_size,
    rebuild,
    remaining,
    set_epoch,
)
from .seeding import mix_seed


class Loader:
    """Iterates a loader's batches for this rank; each pass is an epoch.

    Args:
        loader: a DataLoader, or any iterable of batches that can be iterated again.
        processes: the ranks.
        window: the accumulation window that training passes drive; None for evaluation.
        device: where the batches go; None leaves them where they are.
        split_batches: whether the loader's batch size is the global one.
        seed: the run's seed; None leaves the order of a single process to torch.

    Attributes:
        loader: what is iterated: the user's loader, or one like it over this rank's share.
        counts_samples: the ranks' batches hold equally many samples by construction.
    """

    def __init__(
        self,
        loader: Any,
        processes: Processes,
        window: Window | None,
        device: torch.device | None,
        split_batches: bool = False,
        seed: int | None = None,
    ) -> None:
        if not hasattr(loader, "__iter__") or iter_is_self(loader):
            raise TypeError(
                f"a loader must be an iterable that can be iterated anew each epoch, got {type(loader).__name__}; "
                "put a generator's batches into a list or a DataLoader"
            )
        self._processes, self._window, self._device = processes, window, device
        self._generator: torch.Generator | None = None
        self._seed = seed
        self.epoch = 0
        is_shared = is_plain(loader) or (is_drawn(loader) and processes.world_size > 1)
        self.counts_samples = is_shared and counts_samples(loader)
        self._is_managed = is_shared or processes.world_size == 1
        self._given, self._split_batches = loader, split_batches
        self.loader = self._share(loader, split_batches)
        self._is_stateful = callable(getattr(loader, "state_dict", None)) and hasattr(loader, "load_state_dict")
        self._state_before: Any = None

    def _share(self, loader: Any, split_batches: bool) -> Any:
        world_size, train = self._processes.world_size, self._window is not None
        if is_stream(loader) and world_size > 1:
            size = rank_batch_size(loader, world_size, split_batches)
            dataset = IterableShard(loader.dataset, self._processes.rank, world_size)
            return rebuild(loader, dataset, None, size, loader.drop_last, self._seeds(loader))
        is_shared = is_drawn(loader) and world_size > 1
        if not is_shared and not is_plain(loader):
            return loader
        shuffled = type(loader.sampler) is RandomSampler
        if world_size == 1 and not (shuffled and (not train or self._seed is not None)):
            return loader
        size = rank_batch_size(loader, world_size, split_batches)
        length, drop_last = len(loader.sampler), loader.drop_last
        if not train and drop_last and loader.batch_size:
            length, drop_last = length // loader.batch_size * loader.batch_size, False
        place = (length, self._processes.rank, world_size, train)
        if is_shared:
            sampler: ShardSampler = DrawnShard(loader.sampler, *place, loader.drop_last, self._seed or 0)
        else:
            sampler = ShardSampler(*place, shuffled, loader.drop_last, self._seed or 0)
        return rebuild(loader, loader.dataset, sampler, size, drop_last, self._seeds(loader))

    def _seeds(self, loader: Any) -> torch.Generator | None:
        """The generator of the workers' seeds: the user's, else one that differs between ranks."""
        if loader.generator is None and self._seed is not None:
            self._generator = torch.Generator()
            return self._generator
        generator: torch.Generator | None = loader.generator
        return generator

    def reseed(self, seed: int | None) -> None:
        """Gives the order of the next passes another seed, as a resumed run needs it."""
        if seed != self._seed:
            self._seed = seed
            self.loader = self._share(self._given, self._split_batches)

    def set_epoch(self, epoch: int) -> None:
        """Chooses the epoch of the next pass; each pass moves on by one itself."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self._begin_epoch()
        return self._choose_pass(self.loader, 0)

    def state(self) -> Any:
        """Where the present pass stands, if the loader keeps that by itself as torchdata's StatefulDataLoader does."""
        if not self._is_stateful:
            return None
        return self.loader.state_dict() if self._state_before is None else self._state_before

    def resumed(
        self,
        skip: int,
        when_drawn: Callable[[], None],
        state: Any = None,
        noted: Sequence[tuple[torch.Generator, torch.Tensor]] = (),
    ) -> Iterator[Any]:
        """One pass that begins later, without reading what it leaves out where the loader's indices are known.

        Args:
            skip: how many batches to leave out.
            when_drawn: called when everything that decides the order has been drawn.
            state: from `state`, for a loader that goes on by itself.
            noted: the loader's own generators with the states they had when the pass was left.
        """
        self._begin_epoch()
        if state is None:
            source = remaining(self.loader, skip, noted)
        else:
            self.loader.load_state_dict(state)
            source = iter(self.loader)
            for generator, noted_state in noted:
                generator.set_state(noted_state)
        when_drawn()
        return self._choose_pass(source, skip)

    def _begin_epoch(self) -> None:
        set_epoch(self.loader, self.epoch)
        if self._generator is not None and self._seed is not None:
            self._generator.manual_seed(mix_seed(self._seed, self.epoch, self._processes.rank))
        self.epoch += 1

    def _choose_pass(self, loader: Iterable[Any], begin: int) -> Iterator[Any]:
        place = placer(self._device)
        if self._window is None or (self._window.steps == 1 and self._is_managed):
            return self._pass(loader, place)
        return self._watched_pass(loader, begin, self._window, place)

    def _pass(self, loader: Iterable[Any], place: Callable[[Any], Any]) -> Iterator[Any]:
        for batch in loader:
            yield place(batch)

    def _watched_pass(
        self, loader: Iterable[Any], begin: int, window: Window, place: Callable[[Any], Any]
    ) -> Iterator[Any]:
        """Reads one batch ahead, so that the window knows the last one.

        Where the ranks' loaders may differ in length, all stop after the last batch that all have.
        """
        length = sized(self.loader) if self._is_managed else self._common_length()
        limit = None if self._is_managed else length
        drives = window.begin_pass(self, None if length is None else max(length - begin, 1))
        source = iter(loader)
        batch = next(source, _END)
        goes_on = self._agree(batch is not _END, length)
        index = begin
        try:
            while goes_on():
                self._look_ahead()
                following = next(source, _END) if limit is None or index + 1 < limit else _END
                goes_on = self._agree(following is not _END, length)
                if drives:
                    remaining = None if length is None else max(length - index, 1)
                    window.look_ahead(not goes_on(), remaining, self._count(index))
                yield place(batch)
                batch = following
                index += 1
        except Exception:
            window.abandon(self)
            raise
        finally:
            window.end_pass(self)

    def _look_ahead(self) -> None:
        """Notes where a stateful loader stands, before a batch is read that the loop does not have yet."""
        if self._is_stateful:
            self._state_before = self.loader.state_dict()

    def _common_length(self) -> int | None:
        """The number of batches that every rank has, where all know theirs."""
        lengths = self._processes.gather_object(sized(self.loader))
        return None if None in lengths else min(lengths)

    def _agree(self, has_batch: bool, length: int | None) -> Callable[[], bool]:
        """Whether all ranks have a batch; asked of them only where a stream's length is unknown."""
        if length is not None or self._is_managed:
            return lambda: has_batch
        wait = self._processes.sum_later(float(has_batch))
        answers: list[bool] = []

        def ask() -> bool:
            if not answers:
                answers.append(wait() == self._processes.world_size)
            return answers[0]

        return ask

    def _count(self, index: int) -> int | None:
        if not self.counts_samples:
            return None
        size: int = self.loader.batch_size
        return min(size, len(self.loader.sampler) - index * size)


_END: Any = object()


def sized(loader: Any) -> int | None:
    """A loader's number of batches, None where it does not know."""
    if isinstance(loader, DataLoader) and isinstance(loader.dataset, IterableDataset):
        return None  # a stream's length is an estimate
    try:
        return len(loader)
    except TypeError:
        return None


def iter_is_self(loader: Iterable[Any]) -> bool:
    """Whether an iterable can be read only once."""
    return hasattr(loader, "__next__")


def placer(device: torch.device | None) -> Callable[[Any], Any]:
    """The function that puts a batch on a device, chosen once for a pass.

    Args:
        device: where to; None leaves batches alone.
    """
    if device is None:
        return lambda batch: batch
    if device.type != "cpu":
        return lambda batch: move(batch, device)

    def keep(batch: Any) -> Any:
        if type(batch) is list or type(batch) is tuple:
            for item in batch:
                if type(item) is not torch.Tensor or not item.is_cpu:
                    return move(batch, device)
            return batch
        return move(batch, device)

    return keep
