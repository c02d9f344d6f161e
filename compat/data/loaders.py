"""Loaders: where a stage's data come from, how ranks share them, and how many batches of them a pass reads."""

from __future__ import annotations

import copy
import os
import warnings
from typing import Any, Iterator, Sequence

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)

from deepepochs.engine import tell_epoch

from ..overrides import MisconfigurationException, is_a, overrides
from .combined import Combined


class Source:
    """Where the loaders of a stage come from: given to the trainer, or a method of module or data module.

    Args:
        hook: the method's name.
    """

    def __init__(self, hook: str) -> None:
        self.hook = hook
        self.owner: Any = None
        self.given: Any = None

    def is_module(self) -> bool:
        """Whether a method gives them."""
        return self.given is None

    def is_defined(self) -> bool:
        """Whether there are any."""
        if self.given is not None:
            return True
        base = "LightningDataModule" if is_a(self.owner, "LightningDataModule") else "LightningModule"
        return self.owner is not None and overrides(self.owner, self.hook, base)

    def request(self, calls: Any) -> Any:
        """The loaders.

        Raises:
            MisconfigurationException: there are none.
        """
        if self.given is not None:
            return self.given
        if not self.is_defined():
            raise MisconfigurationException(
                f"there is no {self.hook.replace('_', ' ')}: pass loaders, or define `{self.hook}` in the module or "
                "data module"
            )
        if is_a(self.owner, "LightningDataModule"):
            return calls.datamodule(self.hook)
        return calls.module(self.hook)


class IndexSampler(DistributedSampler):  # type: ignore[type-arg]
    """Shares the order of any sampler among the ranks.

    Args:
        sampler: whose order it is, read anew for each pass.
        options: those of DistributedSampler.
        repeats: whether short shards are filled up.
    """

    def __init__(self, sampler: Any, repeats: bool = True, **options: Any) -> None:
        order: Any = Order(sampler)
        super().__init__(order, **options)
        self._order = order
        self._repeats = repeats
        if not repeats:
            self.num_samples = len(range(self.rank, len(order), self.num_replicas))
            self.total_size = len(order)

    def __iter__(self) -> Iterator[Any]:
        self._order.renew()
        rest = range(self.rank, self.total_size, self.num_replicas)
        return (self._order[index] for index in (super().__iter__() if self._repeats else rest))


class Order:
    """A sampler's indices as a sequence."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._indices: list[Any] | None = None

    def renew(self) -> None:
        """Asks the sampler for a new order."""
        self._indices = list(self._sampler)

    def __getitem__(self, index: int) -> Any:
        if self._indices is None:
            self.renew()
        assert self._indices is not None
        return self._indices[index]

    def __len__(self) -> int:
        return len(self._sampler)


def with_sampler(loader: Any, sampler: Any) -> Any:
    """A loader like another one that reads its data in another order.

    Args:
        loader: a DataLoader or a subclass of it; it stays as it is.
        sampler: gives the indices.

    Raises:
        TypeError: its batch sampler cannot be made anew.
    """
    clone = copy.copy(loader)
    own = loader.batch_sampler
    state = clone.__dict__  # a loader refuses to be changed by assignment
    state["_iterator"] = None
    state["sampler"] = sampler
    if own is None:
        return clone
    if type(own) is BatchSampler:
        state["batch_sampler"] = BatchSampler(sampler, own.batch_size, own.drop_last)
        return clone
    try:
        state["batch_sampler"] = type(own)(sampler, batch_size=own.batch_size, drop_last=own.drop_last)
    except (TypeError, AttributeError) as error:
        raise TypeError(
            f"the batch sampler {type(own).__name__} cannot be shared among ranks: it must take "
            "(sampler, batch_size, drop_last); or share the data yourself and pass `use_distributed_sampler=False`"
        ) from error
    return clone


def process(loader: Any, stage: str, trainer: Any) -> Any:
    """A loader as this rank reads it.

    Args:
        loader: the user's.
        stage: 'train', 'val', 'test' or 'predict'.
        trainer: who reads it.
    """
    if not isinstance(loader, DataLoader):
        check_iterable(loader, stage)
        return loader
    is_shuffled = isinstance(loader.sampler, RandomSampler)
    if stage != "train" and is_shuffled:
        warnings.warn(f"the {stage} loader shuffles; evaluation should not", stacklevel=2)
    is_shared = isinstance(loader.sampler, DistributedSampler) or isinstance(loader.dataset, IterableDataset)
    if trainer.world_size == 1 or not trainer.use_distributed_sampler or is_shared:
        return loader
    options: dict[str, Any] = {
        "num_replicas": trainer.world_size,
        "rank": trainer.global_rank,
        "seed": int(os.environ.get("PL_GLOBAL_SEED", 0)),
        "shuffle": (stage == "train" or is_shuffled) and not trainer.overfit_batches,
    }
    if stage == "predict":
        return with_sampler(loader, IndexSampler(loader.sampler, repeats=False, **{**options, "shuffle": False}))
    sampler: Sampler[Any] = (
        DistributedSampler(loader.dataset, **options)
        if isinstance(loader.sampler, (RandomSampler, SequentialSampler))
        else IndexSampler(loader.sampler, **options)
    )
    return with_sampler(loader, sampler)


def check_iterable(loader: Any, stage: str) -> None:
    """Refuses what no batches can be read from."""
    try:
        iter(loader)
    except TypeError as error:
        raise TypeError(f"the {stage} loader must be iterable, got {type(loader).__name__}") from error


def gather(source: Source, stage: str, trainer: Any) -> Combined:
    """The loaders of a stage, ready to be read.

    Args:
        source: where they come from.
        stage: 'train', 'val', 'test' or 'predict'.
        trainer: who reads them.
    """
    found = source.request(trainer.calls)
    trainer.strategy.barrier(f"{stage}_dataloader()")
    combined = Combined.of(found, "max_size_cycle" if stage == "train" else "sequential")
    loaders = combined.flattened
    if trainer.overfit_batches > 0 and trainer.state.fn == "fit":
        loaders = in_order(loaders, stage)
    combined.flattened = [process(each, stage, trainer) for each in loaders]
    return combined


def in_order(loaders: list[Any], stage: str) -> list[Any]:
    """The loaders without shuffling, for overfitting on the same batches in each epoch."""
    samplers = [each.sampler for each in loaders if hasattr(each, "sampler")]
    if all(isinstance(each, SequentialSampler) for each in samplers):
        return list(loaders)
    warnings.warn(f"`overfit_batches` turns off the shuffling of the {stage} loader", stacklevel=2)
    return [unshuffled(each) if isinstance(each, DataLoader) else each for each in loaders]


def unshuffled(loader: Any) -> Any:
    """A loader like another one, in the data set's own order."""
    return with_sampler(loader, SequentialSampler(loader.dataset))


def set_epoch(loaders: Sequence[Any], epoch: int) -> None:
    """Tells the loaders' samplers the epoch; unlike the Trainer, Lightning tells nobody else."""
    for loader in loaders:
        batch_sampler = getattr(loader, "batch_sampler", None)
        tell_epoch([getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)], epoch)


def limited(stage: str, batches: int | float, limit: int | float) -> int | float:
    """How many batches of a loader are read.

    Args:
        stage: for the error.
        batches: what it has.
        limit: a whole number of them, or a share.

    Raises:
        MisconfigurationException: a share of an unknown number, or one that is less than a batch.
    """
    if batches == 0:
        return 0
    if isinstance(limit, int):
        return min(batches, limit)
    if batches == float("inf"):
        if limit in (0.0, 1.0):
            return batches if limit else 0
        raise MisconfigurationException(
            f"`limit_{stage}_batches` must be 1.0 or a whole number for loaders of unknown length, got {limit}"
        )
    found = int(batches * limit)
    if found == 0 and limit > 0.0:
        raise MisconfigurationException(
            f"`limit_{stage}_batches={limit}` of {batches} batches is less than one; give at least {1.0 / batches}"
        )
    return found


def record_indices(loader: Any) -> list[list[Any]]:
    """Makes a loader note its batches' indices, for those who write predictions.

    Returns:
        The list that they go to.
    """
    noted: list[list[Any]] = []
    sampler = getattr(loader, "batch_sampler", None)
    if sampler is not None:
        loader.__dict__["batch_sampler"] = Recorded(sampler, noted)
    return noted


class Recorded:
    """A batch sampler that notes what it gives."""

    def __init__(self, sampler: Any, noted: list[list[Any]]) -> None:
        self._sampler, self._noted = sampler, noted

    def __iter__(self) -> Iterator[list[Any]]:
        self._noted.clear()
        for indices in self._sampler:
            self._noted.append(list(indices))
            yield indices

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_sampler"], name)
