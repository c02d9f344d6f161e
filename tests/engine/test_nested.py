"""Nested data (E3): every container kind keeps its type, whatever it holds."""

import collections
import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from deepepochs.engine import concatenate, describe, leaves, map_nested

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Plain:
    value: Any
    note: str = "kept"


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


@dataclasses.dataclass
class Derived:
    value: Any
    twice: Any = dataclasses.field(init=False, default=None)


class Listed(list):
    pass


class Pairs(tuple):
    pass


class View(collections.abc.Mapping):
    """A mapping that cannot be changed."""

    def __init__(self, items):
        self._items = dict(items)

    def __getitem__(self, key):
        return self._items[key]

    def __iter__(self):
        return iter(self._items)

    def __len__(self):
        return len(self._items)


def containers(children):
    return st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.lists(children, max_size=3).map(Listed),
        st.lists(children, max_size=3).map(Pairs),
        st.dictionaries(st.sampled_from("abc"), children, max_size=3),
        st.dictionaries(st.sampled_from("abc"), children, max_size=3).map(collections.OrderedDict),
        st.dictionaries(st.sampled_from("abc"), children, max_size=3).map(collections.UserDict),
        st.dictionaries(st.sampled_from("abc"), children, max_size=3).map(View),
        st.tuples(children, children).map(lambda two: Pair(*two)),
        children.map(Plain),
        children.map(Frozen),
    )


nested = st.recursive(st.one_of(st.integers(-5, 5), st.none(), st.text(max_size=2)), containers, max_leaves=12)


def same(one, other, change):
    """Whether `other` is `one` with `change` applied to its integers, in containers of the same types."""
    if isinstance(one, bool) or not isinstance(one, int):
        pass
    else:
        return other == change(one)
    if type(one) is not type(other):
        return False
    if isinstance(one, collections.abc.Mapping):
        return list(one) == list(other) and all(same(one[key], other[key], change) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b, change) for a, b in zip(one, other))
    if dataclasses.is_dataclass(one):
        return same(one.value, other.value, change)
    return one == other


@given(nested)
@settings(max_examples=150, deadline=None)
def test_every_container_keeps_its_type_and_the_input_is_unchanged(data):
    before = describe(data)

    def add(leaf):
        return leaf + 1 if isinstance(leaf, int) else leaf

    assert same(data, map_nested(add, data), lambda number: number + 1)
    assert same(data, map_nested(lambda leaf: leaf, data), lambda number: number)
    assert describe(data) == before


def test_a_default_factory_and_the_fields_without_init_survive():
    found = map_nested(lambda leaf: leaf, collections.defaultdict(list, a=1))
    assert found.default_factory is list
    assert found == {"a": 1}
    item = Derived(1)
    item.twice = 2
    changed = map_nested(lambda leaf: leaf * 10, item)
    assert (changed.value, changed.twice) == (10, 20)


def test_a_packed_sequence_is_rebuilt_as_one():
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    doubled = map_nested(lambda leaf: leaf * 2 if leaf is packed.data else leaf, packed)
    assert type(doubled) is type(packed)
    assert torch.equal(doubled.data, packed.data * 2)
    assert torch.equal(doubled.batch_sizes, packed.batch_sizes)


def test_leaves_come_in_order():
    assert list(leaves({"a": [1, (2, 3)], "b": Pair(4, None)})) == [1, 2, 3, 4, None]


def test_concatenate_joins_equal_structures_and_stacks_scalars():
    one = {"x": torch.ones(2, 3), "n": torch.tensor(1.0), "none": None}
    other = {"x": torch.zeros(1, 3), "n": torch.tensor(2.0), "none": None}
    joined = concatenate([one, other])
    assert torch.equal(joined["x"], torch.cat([one["x"], other["x"]]))
    assert torch.equal(joined["n"], torch.tensor([1.0, 2.0]))
    assert joined["none"] is None
    assert concatenate([Pair(torch.ones(1), 1), Pair(torch.ones(2), 2)]).right == [1, 2]


def test_concatenate_refuses_other_structures():
    with pytest.raises(ValueError, match="equal structures"):
        concatenate([(torch.ones(1),), (torch.ones(1), torch.ones(1))])


def test_describe_shows_shapes_dtypes_and_types():
    text = describe((torch.zeros(2, 3), {"a": None, "b": [torch.zeros(1, dtype=torch.int64)]}))
    assert text == "tuple(Tensor(2, 3) float32, dict(a: NoneType, b: list(Tensor(1,) int64)))"


class Store(collections.abc.MutableMapping):
    """A mapping whose shallow copy shares its insides."""

    def __init__(self, items=()):
        self.items_ = dict(items)

    def __getitem__(self, key):
        return self.items_[key]

    def __setitem__(self, key, value):
        self.items_[key] = value

    def __delitem__(self, key):
        del self.items_[key]

    def __iter__(self):
        return iter(self.items_)

    def __len__(self):
        return len(self.items_)


def test_a_users_own_mapping_is_not_changed():
    data = Store({"a": 1})
    found = map_nested(lambda leaf: leaf + 1, data)
    assert type(found) is Store
    assert (data["a"], found["a"]) == (1, 2)


class Boxes(list):
    """A list whose constructor wants more than the items."""

    def __init__(self, items, size):
        super().__init__(items)
        self.size = size


def test_a_list_keeps_its_attributes_whatever_its_constructor_takes():
    data = Boxes([1, 2], size=9)
    found = map_nested(lambda leaf: leaf + 1, data)
    assert (type(found), list(found), found.size) == (Boxes, [2, 3], 9)
    assert list(data) == [1, 2]
