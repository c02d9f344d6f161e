"""Names of metrics (T6)."""

import functools

import pytest
import torchmetrics

from deepepochs import rename
from deepepochs.aggregation.metric_functions import (
    MetricSet,
    as_list,
    combine,
    copies,
    flatten,
    is_stateful,
    metric_name,
)


def plain(preds, targets):
    return 1.0


class Owner:
    def method(self, preds, targets):
        return 1.0


def several(preds, targets):
    return {"a": 1, "b": {"c": 2}}


def test_names():
    assert metric_name(plain) == "plain"
    assert metric_name(functools.partial(functools.partial(plain), targets=None)) == "plain"
    assert metric_name(torchmetrics.MeanMetric()) == "MeanMetric"
    assert metric_name(torchmetrics.MetricCollection([torchmetrics.MeanMetric()])) == ""
    assert metric_name(rename("other")(lambda p, t: 0)) == "other"


def test_dictionaries_give_name_and_key():
    assert MetricSet([plain, several])(None, None) == {"plain": 1.0, "severala": 1, "severalbc": 2}
    assert flatten("", {"a": 1}) == {"a": 1}
    with pytest.raises(ValueError, match="renamed to ''"):
        flatten("", 1.0)


def test_names_that_meet_are_refused():
    clash = rename("severala")(lambda p, t: 0)
    with pytest.raises(ValueError, match="two metrics are named 'severala'"):
        MetricSet([several, clash])(None, None)


def test_lists_are_joined_and_the_same_object_counts_once():
    assert combine(plain, [several, plain], None, (several,)) == [plain, several]
    owner = Owner()
    assert combine([owner.method], owner.method) == [owner.method]
    with pytest.raises(ValueError, match="two named 'method'"):
        combine(owner.method, Owner().method)
    with pytest.raises(ValueError, match="two named 'plain'"):
        combine([plain, rename("plain")(lambda p, t: 0)])
    with pytest.raises(TypeError, match="got 3"):
        combine([3])


def test_torchmetrics_objects_are_recognised():
    own = torchmetrics.MeanMetric()
    collection = torchmetrics.MetricCollection([own])
    assert is_stateful(own)
    assert is_stateful(collection)
    assert not is_stateful(plain)
    assert as_list(collection) == [collection]
    assert as_list(None) == []
    function, copied = copies([plain, own])
    assert function is plain
    assert copied is not own
    assert type(copied) is type(own)
