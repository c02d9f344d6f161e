"""Functions that the launcher's tests (E16) run in several processes; as a script it launches one of them."""

import contextlib
import os
import signal
import sys
import time
from typing import NamedTuple

import torch
import torch.distributed as dist

from deepepochs import Callback, launch
from deepepochs.engine.processes import worker
from tests.distributed.targets import train


class Found(NamedTuple):
    """A result of a class of the script itself, for which each process has another name."""

    total: float
    place: dict


def adds():
    """Adds the ranks + 1 over gloo: 3 for two of them."""
    dist.init_process_group("gloo")
    number = torch.tensor(float(os.environ["RANK"]) + 1)
    dist.all_reduce(number)
    dist.destroy_process_group()
    names = ("WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    assert int(os.environ["MASTER_PORT"]) > 0
    return Found(number.item(), {name: os.environ.get(name) for name in names})


def killed():
    """Rank 0 fails as well, and has a traceback, but rank 1 is the cause; rank 2 waits and does not hear SIGTERM."""
    worker.GRACE_S = 1.0
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ["RANK"] == "2":
        time.sleep(60)
    dist.all_reduce(torch.ones(1))


def vanishes():
    """Rank 1 ends without an error, in the middle of main."""
    worker.GRACE_S = 1.0
    if os.environ["RANK"] == "1":
        os._exit(0)
    time.sleep(60)


def tell(text):
    """Prints a line in one piece: several processes write at once."""
    os.write(1, f"{text}\n".encode())


def waits():
    tell(f"ready {os.getpid()}")
    time.sleep(60)


def heeds_an_interrupt():
    """Comes to its end after Ctrl-C, as a training does that keeps its progress."""
    try:
        tell(f"ready {os.getpid()}")
        time.sleep(60)
    except KeyboardInterrupt:
        return


class Ready(Callback):
    """Tells once that training is under way."""

    def on_before_train_batch(self, trainer, batch_idx, **others):
        if (trainer.init_epoch, batch_idx) == (1, 0):
            tell(f"ready {os.getpid()}")


def trains():
    """Trains for ever, and says when it ends as it should."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        train([Ready()], 10**6)
    tell("ended in good order")


def adds_and_trains():
    """For torchrun: the place of each rank, and a training of both."""
    found = adds()
    train()
    return found


if __name__ == "__main__":
    found = launch(globals()[sys.argv[1]], 2)
    tell(f"rank {os.environ.get('RANK')} of the caller: {found}")
