"""Splitting batches (T4, T5)."""

import collections

import numpy
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from deepepochs.loop.splitting import call_model, infer_size, sizer, splitter

Pair = collections.namedtuple("Pair", "x y")
X, Y = torch.ones(3, 2), torch.zeros(3)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ((X, Y), (X, Y)),
        ([X, Y], (X, Y)),
        (Pair(X, Y), (X, Y)),
        ((X, [X], Y), ((X, [X]), Y)),
        ({"x": X}, ({"x": X}, None)),
    ],
)
def test_with_a_loss_the_last_item_is_the_label(batch, expected):
    found = splitter(True, False)(batch)
    assert str(found) == str(expected)
    assert type(found) is tuple


@pytest.mark.parametrize(
    ("batch", "expected"), [((X,), X), ((X, Y), (X, Y)), ([X, Y], (X, Y)), (X, X), ({"x": X}, {"x": X})]
)
def test_without_a_loss_everything_goes_to_the_model(batch, expected):
    assert str(splitter(False, False)(batch)) == str((expected, None))


def test_a_packed_sequence_is_one_input():
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    assert splitter(False, False)(packed)[0] is packed
    assert splitter(True, False)((packed, Y))[0] is packed
    assert call_model(lambda x: x, packed) is packed


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="at least one input"):
        splitter(False, False)([])


def test_models_are_called_with_one_input_several_or_names():
    assert call_model(lambda x: x, X) is X
    assert call_model(lambda a, b: (b, a), (X, Y)) == (Y, X)
    assert call_model(lambda a, b: (b, a), [X, Y]) == (Y, X)
    assert call_model(lambda x, y: (y, x), {"x": X, "y": Y}) == (Y, X)
    assert call_model(lambda x: x, "graph") == "graph"


@pytest.mark.parametrize(
    ("batch_x", "size"),
    [
        (X, 3),
        (torch.tensor(1.0), 1),
        ((X[:2], Y), 2),
        ([[X]], 3),
        ({"n": 4, "x": X}, 3),
        ({"nested": {"x": X}}, 3),
        ({}, 1),
        (pack_sequence([torch.ones(3), torch.ones(1)]), 2),
        ("ab", 2),
        (None, 1),
    ],
)
def test_sizes_are_inferred(batch_x, size):
    assert infer_size(batch_x) == size
    assert sizer(None)(batch_x, None) == size


def test_sizes_can_be_given():
    assert sizer(7)(X, Y) == 7
    assert sizer(lambda x, y: len(y) + 1)(X, Y) == 4
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"got {wrong}"):
            sizer(wrong)
    with pytest.raises(TypeError, match="got '3'"):
        sizer("3")


def test_what_a_size_function_gives_is_checked():
    """T5: any weight will do: whole numbers, tokens counted as a tensor, nothing at all."""
    for right in (0, 2.5, torch.tensor(3), numpy.int64(4)):
        assert sizer(lambda x, y, right=right: right)(X, Y) is right
    for wrong in (None, "3", -1, float("nan")):
        with pytest.raises(ValueError, match=f"must return a number of at least 0, got {wrong!r}"):
            sizer(lambda x, y, wrong=wrong: wrong)(X, Y)
