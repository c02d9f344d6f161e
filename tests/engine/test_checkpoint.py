"""Checkpoint files (E15): whole at every moment, and loaded without running code."""

import collections
import os
import pickle

import numpy
import pytest
import torch

from deepepochs.engine import CheckpointError, load_file, save_file
from deepepochs.engine import checkpoint as module

CONTENT = {
    "tensor": torch.arange(3.0),
    "nested": [1, (2.5, None), {"text": "t", "flag": True}],
    "counter": collections.Counter([2, 4, 4]),
    "array": numpy.arange(6.0).reshape(2, 3),
    "number": numpy.float64(0.5),
    3: float("inf"),
}


def test_what_is_saved_comes_back(tmp_path):
    save_file(tmp_path / "deep" / "a.ckpt", CONTENT)
    found = load_file(tmp_path / "deep" / "a.ckpt")
    assert torch.equal(found["tensor"], CONTENT["tensor"])
    assert found["nested"] == CONTENT["nested"]
    assert type(found["nested"][1]) is tuple
    assert found["counter"] == CONTENT["counter"]
    assert type(found["counter"]) is collections.Counter
    assert (found["array"] == CONTENT["array"]).all()
    assert found["number"] == 0.5
    assert found[3] == float("inf")
    assert os.listdir(tmp_path / "deep") == ["a.ckpt"]


@pytest.mark.parametrize("value", [print, object(), {"a": [lambda: 1]}, torch.nn.Linear(1, 1), {1, 2}])
def test_what_a_safe_file_cannot_hold_is_refused_before_writing(tmp_path, value):
    save_file(tmp_path / "a.ckpt", {"old": 1})
    with pytest.raises(CheckpointError, match=r"content\['x'\].* is of the type"):
        save_file(tmp_path / "a.ckpt", {"x": value})
    assert load_file(tmp_path / "a.ckpt") == {"old": 1}


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_file_with_code_is_refused_and_does_not_run(tmp_path):
    torch.save({"model_state": {}, "x": Evil()}, tmp_path / "a.ckpt")
    (tmp_path / "b.ckpt").write_bytes(pickle.dumps(Evil()))
    for name in ("a", "b"):
        with pytest.raises(CheckpointError, match="could run code"):
            load_file(tmp_path / f"{name}.ckpt")
    assert not os.path.exists("evil")


def test_damaged_and_missing_files_have_errors_of_their_own(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_file(tmp_path / "none.ckpt")
    save_file(tmp_path / "a.ckpt", CONTENT)
    whole = (tmp_path / "a.ckpt").read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "a.ckpt").write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="damaged"):
            load_file(tmp_path / "a.ckpt")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_whole(tmp_path, monkeypatch, error, function):
    save_file(tmp_path / "a.ckpt", {"old": 1})

    def fail(*arguments):
        raise error

    monkeypatch.setattr(module.os, function, fail)
    with pytest.raises((CheckpointError, KeyboardInterrupt)) as caught:
        save_file(tmp_path / "a.ckpt", CONTENT)
    monkeypatch.undo()
    if isinstance(error, OSError):
        assert "No space left" in str(caught.value)
        assert os.listdir(tmp_path) == ["a.ckpt"]
    assert load_file(tmp_path / "a.ckpt") == {"old": 1}
    save_file(tmp_path / "a.ckpt", {"new": 2})
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_file(tmp_path / "file" / "a.ckpt", {})
