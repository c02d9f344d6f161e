"""Console (T16, T17, R9): plain lines in a file, in-place output in a terminal."""

import io
import os
import pty
import re
import subprocess
import sys
import time

import pytest
import torch.nn.functional as F

from deepepochs.callbacks import make_console
from deepepochs.callbacks.console import Pace

from ...engine.references import net, regression
from ..helpers import loader, quiet

X, Y = regression(8)

SCRIPT = """
import sys, time, torch
from torch import nn
from deepepochs import Callback, Trainer
class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.03)
        return super().forward(x)
x = torch.ones(40, 2)
batch = (x, x[:, :1])
for options in ({}, {'log_tqdm': True, 'show_info': False}, {'log_batch': False, 'show_info': False}):
    t = Trainer(Slow(2, 1), nn.functional.mse_loss, epochs=2, device='cpu', running_id='here', **options)
    t.fit([batch] * 12, [batch])
    t.test([batch])
    print('=====')
class Tester(Callback):
    def on_after_train_batch(self, trainer, batch_idx, **others):
        if batch_idx == 1:
            trainer.test([batch] * 3)
for has_bar in (False, True):
    options = {'log_tqdm': has_bar, 'show_info': False, 'epochs': 1, 'device': 'cpu', 'callbacks': Tester()}
    t = Trainer(nn.Linear(2, 1), nn.functional.mse_loss, **options)
    t.fit([batch] * 4)
    print(t.console._stage, t.console._done, t.console._total)
    print('=====')
"""


@pytest.fixture(scope="module")
def terminal():
    """What several trainings write to a terminal, one after the other."""
    parent, child = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120"}
    command = [sys.executable, "-c", SCRIPT]
    process = subprocess.Popen(command, stdout=child, stderr=subprocess.STDOUT, env=environment)
    os.close(child)
    written = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            chunk = os.read(parent, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(parent)
    assert process.wait(timeout=10) == 0, written.decode()
    return re.split(r"=====\r?\n", written.decode())


def test_without_a_terminal_there_is_one_plain_line_an_epoch(capsys):
    options = {"epochs": 3, "log_batch": True, "log_tqdm": True, "show_info": True, "running_id": "here"}
    with quiet(net(), F.mse_loss, **options) as trainer:
        progress = trainer.fit(loader(X, Y, 2), loader(X, Y, 2))
        results = trainer.test(loader(X, Y, 2))
        trainer.fit(loader(X, Y, 2), epochs=1)  # the info is shown once
    out = capsys.readouterr().out
    assert "\r" not in out
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[:5] == [
        "device:      cpu",
        "processes:   1",
        "precision:   fp32",
        "running ID:  here",
        "parameters:  49",
    ]
    train, val = progress["train"]["loss"], progress["val"]["loss"]
    assert lines[5:8] == [f"E {i + 1}/3  TRAIN> loss: {train[i]:.4f}  VAL> loss: {val[i]:.4f}" for i in range(3)]
    assert lines[8] == f"TEST> loss: {results['loss']:.4f}"
    assert len(lines) == 10


def test_seven_decimals_and_vectors(capsys):
    with quiet(net(), F.mse_loss, log_long=True, metrics=[lambda p, t: p.mean(0).repeat(2) * 0 + 0.5]) as trainer:
        trainer.test(loader(X, Y, 2))
    assert re.fullmatch(r"TEST> loss: \d\.\d{7} <lambda>: \[0\.5 0\.5\]\n", capsys.readouterr().out)


def test_only_the_main_process_prints(capsys):
    with quiet(net(), F.mse_loss, show_info=True) as trainer:
        trainer.engine.processes.is_main = False
        trainer.fit(loader(X, Y, 2))
        trainer.test(loader(X, Y, 2))
    assert capsys.readouterr().out == ""


def test_in_a_terminal_the_batch_line_is_written_in_place(terminal):
    out = terminal[0]
    assert "DeepEpochs" in out
    assert "│" in out
    shown = [int(number) for number in re.findall(r"\r\x1b\[K(?:E 1/2  )B (\d+)/12  TRAIN> loss: \d", out)]
    # 12 batches of 30 ms: at most ten refreshes a second
    assert shown[0] == 1
    assert 2 <= len(shown) <= 6
    assert re.search(r"B 1/12  TRAIN> loss: [\d.]+  [\d,]+ samples/s  0:00:0\d", out)
    assert len(re.findall(r"\r\x1b\[KE \d/2  TRAIN> loss: [\d.]+  VAL> loss: [\d.]+\r?\n", out)) == 2
    assert re.search(r"TEST> loss: [\d.]+\r?\n$", out)


def test_in_a_terminal_a_progress_bar_shows_the_time_left(terminal):
    out = terminal[1]
    assert "E 1/2  TRAIN" in out
    assert "/12" in out
    assert re.search(r"0:00:\d\d", out)
    assert "━" in out
    assert re.search(r"[\d,]+ samples/s", out)


@pytest.mark.parametrize("index", [3, 4], ids=["line", "bar"])
def test_a_test_within_an_epoch_gives_the_display_back(terminal, index):
    out = terminal[index]
    assert re.search(r"TEST> loss: [\d.]+", out)
    assert re.search(r"E 1/1  TRAIN> loss: [\d.]+\r?\n", out)
    assert out.splitlines()[-1].endswith("TRAIN 4 4")


def test_nothing_in_place_when_nobody_asked_for_it(terminal):
    assert "\x1b" not in terminal[2]
    assert len(terminal[2].splitlines()) == 3


def test_batches_have_no_listener_without_a_terminal(monkeypatch):
    """C2"""
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert type(make_console(False, True, True, True)).__name__ == "Console"


def test_pace_counts_samples_and_time():
    """T17"""
    pace = Pace()
    pace._begin = 100.0
    assert pace.update(3, 8, 102.0) == 12.0
    assert pace.update(4, 16, 104.0) == 10.0
    assert pace.time_left(16) == "0:00:12"
    assert pace.time_left(4) == "0:00:00"
