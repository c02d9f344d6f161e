"""Combined loaders (L1): the batches and random draws of Lightning's CombinedLoader."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from deepepochs.compat import CombinedLoader
from deepepochs.compat.data.combined import Fetcher

from ..parity import assert_same


class Stream(IterableDataset):
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length))


def loaders():
    return {"a": DataLoader(range(5), batch_size=2, shuffle=True), "b": [DataLoader(range(10, 17), batch_size=2)]}


def read(combined):
    """Two passes, each with a random number after it."""
    found = []
    for _ in range(2):
        found += [list(iter(combined)), torch.rand(())]
    return found


@pytest.mark.filterwarnings("ignore")  # Lightning's
@pytest.mark.parametrize("limits", [None, [1, 3], [2, 1], [0, 2], [5, float("inf")]])
@pytest.mark.parametrize("mode", ["sequential", "min_size", "max_size", "max_size_cycle"])
def test_batches_and_draws_are_lightnings(mode, limits):
    utilities = pytest.importorskip("lightning.pytorch.utilities.combined_loader", reason="compares with Lightning")
    found = []
    for kind in (utilities.CombinedLoader, CombinedLoader):
        torch.manual_seed(0)
        combined = kind(loaders(), mode)
        combined.limits = limits
        found.append(read(combined))
    assert_same(found[1], found[0])


@pytest.mark.parametrize(
    ("mode", "length"), [("sequential", 7), ("min_size", 3), ("max_size", 4), ("max_size_cycle", 4)]
)
def test_lengths(mode, length):
    assert CombinedLoader(loaders(), mode).length() == length
    assert CombinedLoader([loaders(), DataLoader(Stream(3))], mode).length() == (3 if mode == "min_size" else None)


@pytest.mark.parametrize("length", [0, 1, 4])
def test_the_last_batch_is_known_also_of_a_stream(length):
    for data in (range(length), Stream(length)):
        if length or isinstance(data, Stream):
            fetcher, found = Fetcher(CombinedLoader([DataLoader(data)], "max_size_cycle")), []
            assert fetcher.done == (length == 0)
            for _ in range(length):
                next(fetcher)
                found.append(fetcher.done)
            assert found == [False] * (length - 1) + [True] * (length > 0)
            with pytest.raises(StopIteration):
                next(fetcher)


def test_an_unknown_mode_is_an_error():
    with pytest.raises(ValueError, match="max_size_cycle.*'zip'"):
        CombinedLoader([], "zip")
