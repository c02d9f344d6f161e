"""Damaged and hostile files (R3, E15): a changed byte is noticed, and whatever is wrong is one error that names it."""

import os
import time

import pytest
import torch

from deepepochs.engine import CheckpointError, load_file, read_file, save_file, write_file

CONTENT = {"w": torch.arange(600.0).reshape(20, 30), "b": [torch.ones(3), 1.5, "text"]}


def equal(found):
    tensors = torch.equal(found["w"], CONTENT["w"]) and torch.equal(found["b"][0], torch.ones(3))
    return tensors and found["b"][1:] == [1.5, "text"]


@pytest.mark.parametrize(("write", "read"), [(save_file, load_file), (write_file, read_file)])
def test_a_flipped_bit_is_an_error_or_changes_nothing(tmp_path, write, read):
    path = tmp_path / "c.ckpt"
    write(path, CONTENT)
    whole = path.read_bytes()
    start = whole.index(CONTENT["w"].numpy().tobytes())
    refused = 0
    for offset in [*range(0, len(whole), 41), *range(start, start + 2400, 97)]:
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << offset % 8
        path.write_bytes(damaged)
        try:
            found = read(path)
        except CheckpointError:
            refused += 1
        else:
            assert equal(found), offset
            assert not start <= offset < start + 2400
    assert refused > 30


@pytest.mark.parametrize("length", [0, 1, 100, 2000])
def test_a_cut_file_is_damaged(tmp_path, length):
    save_file(tmp_path / "c.ckpt", CONTENT)
    with open(tmp_path / "c.ckpt", "r+b") as file:
        file.truncate(length)
    with pytest.raises(CheckpointError, match=r"c\.ckpt"):
        load_file(tmp_path / "c.ckpt")


def test_checksums_are_written_and_a_process_that_goes_without_keeps_its_choice(tmp_path):
    if not hasattr(torch.serialization, "set_crc32_options"):
        pytest.skip("this torch always writes checksums")
    torch.serialization.set_crc32_options(False)
    try:
        save_file(tmp_path / "c.ckpt", CONTENT)
        assert torch.serialization.get_crc32_options() is False
    finally:
        torch.serialization.set_crc32_options(True)
    assert equal(load_file(tmp_path / "c.ckpt"))


@pytest.mark.skipif(os.name != "posix", reason="links of POSIX systems")
def test_what_is_no_file_is_named(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    os.mkfifo(tmp_path / "pipe")
    for name, text in (
        ("folder", "is no file"),
        ("nowhere", "a link to nowhere"),
        ("missing", "there is no checkpoint"),
        ("circle", "cannot be read"),
        ("pipe", "is no file"),
        ("nul\0byte", "cannot be read"),
        ("x" * 300, "cannot be read"),
    ):
        with pytest.raises(CheckpointError, match=text):
            load_file(tmp_path / name)


def test_what_stands_in_many_places_is_read_once(tmp_path):
    bomb = (1, 1)
    for _ in range(100):
        bomb = (bomb, bomb)
    torch.save({"x": bomb}, tmp_path / "c.ckpt")
    begin = time.perf_counter()
    found = load_file(tmp_path / "c.ckpt")["x"]
    assert time.perf_counter() - begin < 30  # 2**100 tuples would never end
    for _ in range(100):
        assert found[0] is found[1]
        found = found[0]
    assert found == (1, 1)
