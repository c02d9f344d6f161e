"""Going on in the middle of a pass (T9): the rest of the same order, made as it is read where it is our own."""

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler, SubsetRandomSampler, TensorDataset

from deepepochs.engine import samplers
from deepepochs.engine.samplers import DrawnShard, ShardSampler, remaining

DATA = TensorDataset(torch.arange(41))
OURS = {
    "shuffled": lambda: ShardSampler(41, 1, 2, True, True, False, 5),
    "in order": lambda: ShardSampler(41, 1, 2, True, False, True, 5),
    "evaluation": lambda: ShardSampler(41, 1, 2, False, False, False, 5),
    "drawn": lambda: DrawnShard(SubsetRandomSampler(range(30)), 30, 0, 2, True, False, 5),
    "torch's": lambda: SequentialSampler(DATA),
}


def read(source):
    return [batch[0].tolist() for batch in source]


@pytest.mark.parametrize("skip", [0, 1, 4, 5, 6, 100])
@pytest.mark.parametrize("options", [{"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}])
@pytest.mark.parametrize("name", OURS)
def test_the_rest_of_a_pass_is_the_rest_of_its_order(name, options, skip):
    own, theirs = (torch.Generator().manual_seed(3) for _ in range(2))
    sampler = OURS[name]()
    whole = DataLoader(DATA, sampler=sampler, generator=own, **options)
    expected = read(whole)[skip:]
    again = DataLoader(DATA, sampler=sampler, generator=theirs, **options)
    stranger, state = torch.Generator(), torch.Generator().manual_seed(11).get_state()
    found = remaining(again, skip, [(stranger, state), (theirs, own.get_state())])
    assert read(found) == expected
    assert torch.equal(stranger.get_state(), state)
    assert torch.equal(own.get_state(), theirs.get_state())


@pytest.mark.parametrize("name", ["shuffled", "drawn"])
def test_an_order_of_our_own_is_not_read_before_it_is_needed(name, monkeypatch):
    drawn = []
    original = samplers.own_part

    def counted(*args):
        for index in original(*args):
            drawn.append(index)
            yield index

    monkeypatch.setattr(samplers, "own_part", counted)
    found = remaining(DataLoader(DATA, 2, sampler=OURS[name]()), 3)
    assert len(drawn) == 6
    next(found)
    assert len(drawn) == 8


def test_workers_read_the_rest_too():
    loader = DataLoader(DATA, 4, sampler=OURS["shuffled"](), num_workers=1)
    assert read(remaining(loader, 3)) == read(loader)[3:]
