"""One job for several functions: a function that fails takes no other with it."""

import os

import pytest
import torch

from .together import run_together


def before():
    return int(os.environ["RANK"]), torch.rand(1).item()


def fails_on_rank_1(text):
    if os.environ["RANK"] == "1":
        raise ZeroDivisionError(text)
    return "here it does not"


def afterwards(value):
    return int(os.environ["RANK"]) + value, torch.rand(1).item()


def test_a_function_that_fails_on_a_rank_fails_alone():
    torch.manual_seed(0)
    draw = torch.rand(1).item()
    found = run_together(2, before, (fails_on_rank_1, "mine"), (afterwards, 10))
    assert found["before"] == [(0, draw), (1, draw)]
    for _ in range(2):
        with pytest.raises(AssertionError, match="fails_on_rank_1 failed on rank 1:(.|\n)*ZeroDivisionError: mine"):
            found["fails_on_rank_1"]
    assert found["afterwards"] == [(10, draw), (11, draw)]
    with pytest.raises(KeyError):
        found["nobody"]
