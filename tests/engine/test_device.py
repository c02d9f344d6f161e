"""Devices (E2, E3)."""

import collections

import pytest
import torch

from deepepochs.engine import available_devices, choose_device, move

Pair = collections.namedtuple("Pair", "left right")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_the_default_is_cuda_where_it_is_else_the_cpu():
    expected = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    assert choose_device(None) == expected


def test_names_and_devices_are_accepted():
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device(torch.device("cpu")) == torch.device("cpu")
    assert "cpu" in available_devices()


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "cpu:x", "xpu", "nonsense:0", ""])
def test_an_unknown_or_unavailable_device_is_refused_with_what_there_is(name):
    with pytest.raises(ValueError, match=r"must be one of \['cpu'") as caught:
        choose_device(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("wrong", [0, object(), ["cpu"]])
def test_other_types_are_refused_with_advice(wrong):
    with pytest.raises(TypeError, match="launch"):
        choose_device(wrong)


class Movable:
    """An object with a method `to`, as graphs have it."""

    def __init__(self, x):
        self.x = x
        self.went_to = None

    def to(self, device):
        moved = Movable(self.x.to(device))
        moved.went_to = device
        return moved


def test_move_reaches_every_tensor_and_keeps_the_rest():
    batch = [Pair(torch.ones(2), None), {"text": "a", "n": 3, "g": Movable(torch.ones(1))}]
    moved = move(batch, torch.device("meta"))
    assert type(moved[0]) is Pair
    assert moved[0].left.device.type == "meta"
    assert moved[0].right is None
    assert (moved[1]["text"], moved[1]["n"]) == ("a", 3)
    assert moved[1]["g"].went_to == torch.device("meta")
    assert batch[0].left.device.type == "cpu"


@needs_cuda
def test_cuda_gets_an_index_and_pinned_memory_does_not_block():
    assert choose_device("cuda").index == 0
    torch.cuda.set_sync_debug_mode("error")
    try:
        moved = move([torch.ones(4).pin_memory()], choose_device("cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert moved[0].device == choose_device("cuda")


def test_a_packed_sequence_moves_as_one():
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)])
    moved = move([packed], torch.device("meta"))[0]
    assert type(moved) is type(packed)
    assert moved.data.device.type == "meta"


def test_an_object_whose_to_gives_nothing_has_moved_in_place():
    """(E3) Else an object that forgets `return self` becomes None, and nothing is trained."""

    class InPlace(Movable):
        def to(self, device):
            self.x, self.went_to = self.x.to(device), device

    batch = InPlace(torch.ones(1))
    moved = move({"g": [batch]}, torch.device("meta"))
    assert moved["g"][0] is batch
    assert batch.x.device.type == "meta"
