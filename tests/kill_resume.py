"""Kills a training at random moments, also inside a save, resumes it each time, and compares with one left alone.

    python tests/kill_resume.py [--kills 30] [--seed 0]

A slow file system is simulated by waiting before every fsync. In the end the weights must be equal to the last bit, all
files readable, and no temporary file left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import CheckCallback, Optimizer, Trainer, set_seed
from deepepochs.engine import load_file, save_file

EPOCHS, SLOWNESS_S = 5, 0.02


def train(folder: str, is_slow: bool) -> None:
    """Trains to the end, from wherever the newest checkpoint is, and leaves the weights in `folder`/end.ckpt."""
    if is_slow:
        original = os.fsync
        os.fsync = lambda descriptor: (time.sleep(SLOWNESS_S), original(descriptor))[1]
    set_seed(5)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 4, generator=generator), torch.randn(60, 1, generator=generator)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 2, 0.5)
    newest = CheckCallback("loss", "train", save_best=False, ckpt_dir=folder, every_n_steps=2)
    with Trainer(
        model,
        F.mse_loss,
        Optimizer(opt, schedule),
        epochs=EPOCHS,
        device="cpu",
        callbacks=[newest],
        running_id="run",
        resume=True,
        gradient_accumulation_steps=2,
        show_info=False,
    ) as trainer:
        trainer.fit(DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True))
        save_file(Path(folder, "end.ckpt"), {"model": trainer.engine.model_state(model), "history": trainer.history})


def start(folder: str, is_slow: bool) -> subprocess.Popen[bytes]:
    """The training in a process of its own."""
    command = [sys.executable, __file__, "--train", folder, *(["--slow"] if is_slow else [])]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def kill_often(folder: str, kills: int, rng: random.Random) -> int:
    """Kills the training so many times; returns how many of them hit before its end."""
    hits = 0
    for _ in range(kills):
        process = start(folder, True)
        progress = Path(folder, "run")
        began = time.monotonic()
        before = stamp(progress)
        while process.poll() is None and stamp(progress) == before and time.monotonic() - began < 60:
            time.sleep(0.01)  # until it has saved something of its own
        time.sleep(rng.uniform(0, 6 * SLOWNESS_S))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            hits += 1
        _, errors = process.communicate()
        if process.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"FAILED: a resumed training ended with {process.returncode}: {errors.decode()[-2000:]}")
        for path in progress.glob("*.ckpt"):
            load_file(path)
        if Path(folder, "end.ckpt").exists():
            break
    return hits


def stamp(folder: Path) -> list[int]:
    """When the files of a folder were written."""
    return sorted(path.stat().st_mtime_ns for path in folder.glob("*.ckpt")) if folder.is_dir() else []


def compare(kills: int, seed: int) -> int:
    """Runs both trainings and compares them; returns the number of kills that hit."""
    rng = random.Random(seed)
    hits = 0
    with tempfile.TemporaryDirectory() as whole:
        if start(whole, False).wait() != 0:
            raise SystemExit("FAILED: the training alone does not end")
        expected = load_file(Path(whole, "end.ckpt"))
        while hits < kills:
            with tempfile.TemporaryDirectory() as broken:
                hits += kill_often(broken, kills - hits, rng)
                process = start(broken, False)
                _, errors = process.communicate()
                if process.returncode != 0:
                    raise SystemExit(f"FAILED: the last resume ended with {errors.decode()[-2000:]}")
                found = load_file(Path(broken, "end.ckpt"))
                same = all(torch.equal(found["model"][name], value) for name, value in expected["model"].items())
                if not same or found["history"] != expected["history"]:
                    raise SystemExit("FAILED: weights or history differ from those of the training left alone")
                left = [path.name for path in Path(broken).rglob("*.part")]
                if left:
                    raise SystemExit(f"FAILED: temporary files are left: {left}")
    return hits


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--slow", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        torch.set_num_threads(1)
        train(arguments.train, arguments.slow)
    else:
        print(f"PASSED: {compare(arguments.kills, arguments.seed)} kills, equal to the last bit")
