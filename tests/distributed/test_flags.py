"""Flags of all ranks, and streams that give nothing (E11, E12, R1)."""

import contextlib
import io

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from deepepochs import Trainer
from deepepochs.engine import Engine

from .together import run_together


def flags():
    with Engine(device="cpu") as engine, contextlib.redirect_stdout(io.StringIO()) as text:
        engine.print("once", 1, sep="-")
        pairs = [(False, False), (True, False), (True, True)]
        found = [(engine.any(pair[engine.rank]), engine.all(pair[engine.rank])) for pair in pairs]
    return found, text.getvalue()


class Stream(IterableDataset):
    def __init__(self, count):
        self.rest = iter(range(count))

    def __iter__(self):
        return ((torch.ones(1) * each, torch.ones(1)) for each in self.rest)


def streams():
    """A stream that gives nothing at once, one that is used up by the first epoch, one too short for both ranks."""
    found = []
    for count in (0, 8, 1):
        with Trainer(
            torch.nn.Linear(1, 1), F.mse_loss, epochs=2, device="cpu", show_info=False, log_batch=False
        ) as trainer:
            try:
                trainer.fit(DataLoader(Stream(count), 2))
            except ValueError as error:
                found.append((str(error), trainer.init_epoch))
    return found


@pytest.fixture(scope="module")
def ranks():
    return run_together(2, flags, streams)


def test_ranks_agree_on_flags_and_print_once(ranks):
    for rank, (found, text) in enumerate(ranks["flags"]):
        assert found == [(False, False), (True, False), (True, True)]
        assert text == ("once-1\n" if rank == 0 else "")


def test_a_stream_that_trains_nothing_is_the_error_of_one_process(ranks):
    for found in ranks["streams"]:
        assert [finished for _, finished in found] == [0, 1, 0]
        assert all("the train loader gave no batch" in text for text, _ in found)
