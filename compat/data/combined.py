"""Combined: several loaders read as one, and the reader that knows which batch is the last."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

from torch.utils._pytree import tree_flatten, tree_unflatten

from ..overrides import is_a


class Combined:
    """Loaders in any nesting of lists, tuples and dictionaries.

    Args:
        iterables: the loaders.
        mode: 'sequential' reads one after the other; the others read one batch of each at once: 'max_size_cycle'
            begins short ones anew, 'min_size' ends with the shortest, 'max_size' gives None for those at their end.
    """

    def __init__(self, iterables: Any, mode: str = "min_size") -> None:
        if mode not in READERS:
            raise ValueError(f"`mode` must be one of {sorted(READERS)}, got {mode!r}")
        self.mode = mode
        self._loaders, self._spec = tree_flatten(iterables)
        self.limits: list[int | float] | None = None
        self._reader: Any = None

    @classmethod
    def of(cls, loaders: Any, mode: str) -> Combined:
        """What a stage's loaders are read as; a CombinedLoader keeps its own mode."""
        if isinstance(loaders, Combined):
            return loaders
        if is_a(loaders, "CombinedLoader"):
            return cls(loaders.iterables, loaders._mode)
        return cls(loaders, mode)

    @property
    def iterables(self) -> Any:
        """The loaders in their nesting."""
        return tree_unflatten(self._loaders, self._spec)

    @property
    def flattened(self) -> list[Any]:
        """The loaders in a row."""
        return self._loaders

    @flattened.setter
    def flattened(self, loaders: list[Any]) -> None:
        self._loaders = loaders

    def __iter__(self) -> Combined:
        self._reader = READERS[self.mode](self._loaders, self.limits or [float("inf")] * len(self._loaders))
        return self

    def __next__(self) -> Any:
        batch, index, loader_index = next(self._reader)
        if self.mode != "sequential":
            batch = tree_unflatten(batch, self._spec)
        return batch, index, loader_index

    def length(self) -> int | None:
        """The number of batches, None where it is unknown."""
        limits = self.limits or [float("inf")] * len(self._loaders)
        lengths = [min(known_length(each), limit) for each, limit in zip(self._loaders, limits)]
        if self.mode == "min_size" and self.limits is not None:
            lengths = lengths + list(self.limits)
        found = LENGTHS[self.mode](lengths) if lengths else 0
        return None if found == float("inf") else int(found)

    def reset(self) -> None:
        """Lets go of the iterators, with their workers."""
        self._reader = None
        for loader in self._loaders:
            iterator: Any = getattr(loader, "_iterator", None)
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()
                loader._iterator = None


def known_length(loader: Any) -> int | float:
    """A loader's number of batches, infinite where it does not know."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return float("inf")


class Sequential:
    """One loader after the other; the next one's iterator is made only when it is its turn."""

    def __init__(self, loaders: Sequence[Any], limits: Sequence[int | float]) -> None:
        self._loaders, self._limits = loaders, limits
        self._loader_index = self._index = 0
        self._open()

    def _open(self) -> None:
        if self._loader_index < len(self._loaders):
            self._iterator: Iterator[Any] = iter(self._loaders[self._loader_index])

    def _advance(self) -> None:
        self._loader_index += 1
        self._index = 0
        self._open()

    def __next__(self) -> Any:
        while self._loader_index < len(self._loaders):
            if self._limits[self._loader_index] <= self._index:
                self._advance()
                continue
            try:
                batch = next(self._iterator)
            except StopIteration:
                self._advance()
                continue
            self._index += 1
            return batch, self._index - 1, self._loader_index
        raise StopIteration


class Parallel:
    """A batch of each loader at once; subclasses say what happens at a loader's end."""

    def __init__(self, loaders: Sequence[Any], limits: Sequence[int | float]) -> None:
        self._loaders = loaders
        self._iterators = [iter(each) for each in loaders]
        self._ended = [False] * len(loaders)
        self._index = 0

    def __next__(self) -> Any:
        batches = self._read()
        self._index += 1
        return batches, self._index - 1, 0

    def _read(self) -> list[Any]:
        raise NotImplementedError


class MinSize(Parallel):
    """Ends with the shortest loader."""

    def _read(self) -> list[Any]:
        return [next(each) for each in self._iterators]


class MaxSize(Parallel):
    """Gives None for loaders that have ended."""

    def _read(self) -> list[Any]:
        batches: list[Any] = []
        for position, iterator in enumerate(self._iterators):
            try:
                batches.append(next(iterator))
            except StopIteration:
                self._ended[position] = True
                batches.append(None)
        if all(self._ended):
            raise StopIteration
        return batches


class MaxSizeCycle(Parallel):
    """Begins short loaders anew until the longest has ended."""

    def _read(self) -> list[Any]:
        return [self._next(position) for position in range(len(self._iterators))]

    def _next(self, position: int) -> Any:
        try:
            return next(self._iterators[position])
        except StopIteration:
            self._ended[position] = True
            if all(self._ended):
                raise
            self._iterators[position] = iter(self._loaders[position])
            return next(self._iterators[position])


READERS: dict[str, Any] = {
    "sequential": Sequential,
    "min_size": MinSize,
    "max_size": MaxSize,
    "max_size_cycle": MaxSizeCycle,
}
LENGTHS: dict[str, Callable[[list[int | float]], int | float]] = {
    "sequential": sum,
    "min_size": min,
    "max_size": max,
    "max_size_cycle": max,
}


class Fetcher:
    """Reads a pass; where the length is unknown it reads one batch ahead, to know the last one.

    Args:
        combined: what it reads.
    """

    def __init__(self, combined: Combined) -> None:
        self.combined = combined
        self.begin()

    def begin(self) -> None:
        """Begins a pass: iterators are made now, their random draws with them."""
        iter(self.combined)
        self.fetched = 0
        self.length = self.combined.length()
        self.done = self.length == 0
        self._ahead: list[Any] = []
        if self.length is None:
            self._read_ahead()

    def _read_ahead(self) -> None:
        try:
            self._ahead.append(next(self.combined))
        except StopIteration:
            self.done = True

    def __next__(self) -> Any:
        if self.length is None:
            if not self._ahead:
                raise StopIteration
            item = self._ahead.pop()
            self.fetched += 1
            self._read_ahead()
            return item
        if self.done:
            raise StopIteration
        item = next(self.combined)
        self.fetched += 1
        self.done = self.fetched >= self.length
        return item

    def teardown(self) -> None:
        """Lets go of the iterators."""
        self.combined.reset()
