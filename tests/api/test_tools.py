"""Tools for scripts (S6)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepepochs import batches, concat, groupby_apply, make_runningid, rename


def test_running_ids_hold_what_they_are_given():
    first, *rest = make_runningid("digits", seed=0, other_info="x", time_precision=100).split("-")
    assert first.isdigit()
    assert rest == ["digits", "0", "x"]
    assert make_runningid().isdigit()


def test_rename_changes_the_name_and_returns_the_function():
    def metric():
        return 1

    assert rename("other")(metric) is metric
    assert metric.__name__ == "other"


@given(st.integers(0, 20), st.integers(1, 7))
@settings(deadline=None)
def test_pieces_join_to_the_whole(length, size):
    x, y = torch.arange(length), torch.arange(2 * length).reshape(length, 2)
    pieces = list(batches(x, size))
    assert [len(piece) for piece in pieces] == [size] * (length // size) + [length % size] * (length % size > 0)
    if length:
        assert torch.equal(concat(pieces), x)
        one, other = concat(list(batches((x, y), size)))
        assert torch.equal(one, x)
        assert torch.equal(other, y)


def test_concat_stacks_scalars_and_keeps_names():
    assert concat([torch.tensor(1.0), torch.tensor(2.0)]).tolist() == [1.0, 2.0]
    found = concat([{"a": torch.ones(1, 2)}, {"a": torch.zeros(2, 2)}])
    assert found["a"].tolist() == [[1, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_groups_need_not_be_sorted(reduction):
    values = torch.randn(9, 3, dtype=torch.float64)
    keys = torch.tensor([5, 1, 5, 2, 1, 1, 5, 9, 2])
    expected = torch.stack([getattr(values[keys == key], reduction)(0) for key in (1, 2, 5, 9)])
    torch.testing.assert_close(groupby_apply(values, keys, reduction), expected)
    torch.testing.assert_close(groupby_apply(values[:, 0], keys, reduction), expected[:, 0])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: list(batches(torch.ones(2), 0)), "got 0"),
        (lambda: list(batches((torch.ones(2), torch.ones(3)), 1)), r"\[2, 3\]"),
        (lambda: concat([]), "empty list"),
        (lambda: groupby_apply(torch.ones(2), torch.ones(2), "max"), "got 'max'"),
        (lambda: groupby_apply(torch.ones(2), torch.ones(3)), "2 and 3"),
    ],
)
def test_wrong_arguments_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
