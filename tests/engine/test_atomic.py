"""Atomic files (E15, R3): writers of one file do not meet, no link is followed, and what is written is whole."""

import multiprocessing
import os
import stat
import time

import pytest
import torch

from deepepochs.engine import CheckpointError, atomic, load_file, locks, save_file


def save_often(path, value):
    for _ in range(20):
        save_file(path, {"w": torch.full((2000,), value)})


def test_two_processes_that_write_one_file_never_publish_halves(tmp_path):
    path = str(tmp_path / "c.ckpt")
    save_file(path, {"w": torch.zeros(2000)})
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=save_often, args=(path, value)) for value in (1.0, 2.0)]
    for each in writers:
        each.start()
    seen = set()
    while any(each.is_alive() for each in writers):
        values = load_file(path)["w"].unique().tolist()
        assert len(values) == 1
        seen.update(values)
    assert seen & {1.0, 2.0}
    assert [each.exitcode for each in writers] == [0, 0]
    assert os.listdir(tmp_path) == ["c.ckpt"]


def test_a_link_of_a_temporary_name_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr(atomic.secrets, "token_hex", lambda count: "guessed")
    (tmp_path / ".c.ckpt.guessed.part").symlink_to(victim)
    with pytest.raises(CheckpointError, match="there was no file before"):
        save_file(tmp_path / "c.ckpt", {"w": 1})
    assert victim.read_text() == "mine"


def test_a_link_in_the_files_place_is_replaced_and_its_target_left_alone(tmp_path):
    (tmp_path / "target.ckpt").write_text("mine")
    (tmp_path / "c.ckpt").symlink_to(tmp_path / "target.ckpt")
    save_file(tmp_path / "c.ckpt", {"w": 1})
    assert load_file(tmp_path / "c.ckpt") == {"w": 1}
    assert (tmp_path / "target.ckpt").read_text() == "mine"


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX systems")
def test_permissions_stay_and_new_files_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        save_file(tmp_path / "c.ckpt", {"w": 1})
        assert stat.S_IMODE((tmp_path / "c.ckpt").stat().st_mode) == 0o640
        (tmp_path / "c.ckpt").chmod(0o604)
        save_file(tmp_path / "c.ckpt", {"w": 2})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "c.ckpt").stat().st_mode) == 0o604


def test_leftovers_of_killed_writers_go_and_files_of_living_ones_stay(tmp_path):
    names = [".c.ckpt.dead.part", ".c.ckpt.alive.part", ".d.ckpt.other.part"]
    for name in names:
        (tmp_path / name).write_bytes(b"half")
    with open(tmp_path / names[1], "rb") as held:
        assert locks.lock(held.fileno())
        save_file(tmp_path / "c.ckpt", {"w": 1})
    assert sorted(os.listdir(tmp_path)) == sorted([*names[1:], "c.ckpt"])


def test_where_files_cannot_be_locked_only_forgotten_ones_go(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    for name, age in ((".c.ckpt.old.part", atomic.FORGOTTEN_S + 60), (".c.ckpt.new.part", 60)):
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    save_file(tmp_path / "c.ckpt", {"w": 1})
    assert sorted(os.listdir(tmp_path)) == [".c.ckpt.new.part", "c.ckpt"]


def test_a_file_that_is_taken_for_a_leftover_at_once_is_made_anew(tmp_path, monkeypatch):
    real, taken = locks.lock, []

    def lock(descriptor, waits=False):
        if not taken:
            taken.extend(tmp_path.glob(".c.ckpt.*.part"))
            taken[0].unlink()
        return real(descriptor, waits)

    monkeypatch.setattr(atomic, "lock", lock)
    save_file(tmp_path / "c.ckpt", {"w": 1})
    assert len(taken) == 1
    assert load_file(tmp_path / "c.ckpt") == {"w": 1}
    assert os.listdir(tmp_path) == ["c.ckpt"]


def test_names_with_signs_of_patterns_clear_their_own_leftovers_only(tmp_path):
    names = [".[a]*.ckpt.dead.part", ".a.ckpt.dead.part"]
    for name in names:
        (tmp_path / name).write_bytes(b"half")
        os.utime(tmp_path / name, (0, 0))
    save_file(tmp_path / "[a]*.ckpt", {"w": 1})
    assert sorted(os.listdir(tmp_path)) == [names[1], "[a]*.ckpt"]


def test_a_file_system_that_cannot_sync_folders_does_not_end_training(tmp_path, monkeypatch):
    real = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    save_file(tmp_path / "c.ckpt", {"w": 1})
    assert load_file(tmp_path / "c.ckpt") == {"w": 1}


@pytest.mark.parametrize("has_old", [True, False])
def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path, monkeypatch, has_old):
    if has_old:
        save_file(tmp_path / "c.ckpt", {"w": 1})

    def fsync(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CheckpointError, match="the old file is unchanged" if has_old else "there was no file before"):
        save_file(tmp_path / "c.ckpt", {"w": 2})
    assert os.listdir(tmp_path) == ["c.ckpt"] * has_old
    if has_old:
        assert load_file(tmp_path / "c.ckpt") == {"w": 1}


def test_an_interrupt_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def save(content, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(KeyboardInterrupt):
        save_file(tmp_path / "c.ckpt", {"w": 2})
    assert os.listdir(tmp_path) == []
