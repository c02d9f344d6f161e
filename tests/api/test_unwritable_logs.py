"""Logs that cannot be written never end training, somebody is told once, and no half line or event stays (C8)."""

import json
import resource
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn import functional as F

from deepepochs import AnalyzeCallback, Callback, InterpreteCallback, LogCallback
from deepepochs.appending import append_whole, drop_half_line

from ..engine.references import net
from .helpers import classes, loader, quiet, sgd

X, Y = classes(12)
DL = loader(X, Y, 4)
LOG = Path("logs/r")


class Disturbs(Callback):
    """Takes the log's folder away within an epoch, puts something in its place, and takes that away later."""

    def on_before_train_batch(self, trainer, batch_idx, **others):
        if (trainer.init_epoch, batch_idx) == (1, 1):
            shutil.rmtree(LOG)
            LOG.write_text("in the way", encoding="utf-8")
        if (trainer.init_epoch, batch_idx) == (3, 1):
            LOG.unlink()


class Removes(Callback):
    def on_before_train_batch(self, trainer, batch_idx, **others):
        if (trainer.init_epoch, batch_idx) == (1, 1):
            shutil.rmtree(LOG)


class Writes(Callback):
    """What a user writes with the board is guarded too."""

    def on_after_val_epochs(self, trainer, epoch_idx, **others):
        trainer.writer.board.add_scalar("own", epoch_idx, epoch_idx + 1)
        trainer.writer.board.flush()


def train(json_lines, *more, **options):
    """Five epochs and a test: their losses."""
    torch.manual_seed(0)
    model = net(outputs=3)
    others = [] if json_lines else [AnalyzeCallback(), InterpreteCallback(stages="val"), Writes()]
    options = {"epochs": 5, "running_id": "r", "hyper_params": {"lr": 0.1}, **options}
    callbacks = [LogCallback("logs", json_lines=json_lines), *others, *more]
    with quiet(model, F.cross_entropy, sgd(model), callbacks=callbacks, **options) as trainer:
        progress = trainer.fit(DL, DL)
        return progress["train"]["loss"], trainer.test(DL)["loss"]


def epochs(json_lines):
    """The steps of the epochs in the log."""
    if json_lines:
        records = [json.loads(line) for line in (LOG / "scalars.jsonl").read_text(encoding="utf-8").splitlines()]
        return [each["step"] for each in records if "loss/epoch/train" in each]
    log = EventAccumulator(str(LOG))
    log.Reload()
    return [each.step for each in log.Scalars("loss/epoch/train")]


@pytest.mark.parametrize("json_lines", [False, True], ids=["board", "lines"])
def test_a_log_that_cannot_be_written_is_told_of_once_and_tried_again(json_lines):
    expected = train(json_lines)
    assert epochs(json_lines) == [1, 2, 3, 4, 5]
    with pytest.warns(UserWarning, match="training goes on, its log in .*logs.r cannot be written") as told:
        assert train(json_lines, Disturbs()) == expected
    assert len(told) == 1
    assert epochs(json_lines) == [4, 5]
    shutil.rmtree(LOG)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning cannot end training either
        assert train(json_lines, Disturbs()) == expected


@pytest.mark.parametrize("json_lines", [False, True], ids=["board", "lines"])
def test_a_folder_that_was_removed_is_made_again(json_lines):
    expected = train(json_lines)
    assert train(json_lines, Removes()) == expected
    assert epochs(json_lines) == [2, 3, 4, 5]


@pytest.mark.parametrize("json_lines", [False, True], ids=["board", "lines"])
def test_a_folder_that_cannot_be_made_is_told_of_too(json_lines):
    Path("logs").write_text("in the way", encoding="utf-8")
    with pytest.warns(UserWarning, match="NotADirectoryError|FileExistsError"):
        train(json_lines)


def test_a_full_disk_keeps_no_half_piece():
    path = Path("full.jsonl")
    append_whole(path, b"whole\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            append_whole(path, b"x" * (1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"whole\n"
    append_whole(path, b"next\n", b"head\n")  # a head is for new files
    assert path.read_bytes() == b"whole\nnext\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_without_space_does_not_end_training():
    expected = train(True)
    (LOG / "scalars.jsonl").unlink()
    (LOG / "scalars.jsonl").symlink_to("/dev/full")
    with pytest.warns(UserWarning, match="No space left on device"):
        assert train(True) == expected


@pytest.mark.parametrize(
    ("content", "left"),
    [
        (b"", b""),
        (b"one\n", b"one\n"),
        (b"one\ntwo", b"one\n"),
        (b"half", b""),
        (b"one\n" + b"x" * 10000, b"one\n"),
        (b"one\n" + b"x" * 4096, b"one\n"),
    ],
)
def test_the_line_of_a_killed_process_is_cut_off(content, left):
    path = Path("lines.jsonl")
    path.write_bytes(content)
    drop_half_line(path)
    assert path.read_bytes() == left
    drop_half_line(Path("missing.jsonl"))
    assert not Path("missing.jsonl").exists()
