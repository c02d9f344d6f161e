"""Functions that the launcher's tests (E16) run in several processes; as a script it launches one of them."""

import os
import signal
import sys
import time
from typing import NamedTuple

import torch
import torch.distributed as dist

from deepepochs import launch


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


def killed_in_a_collective():
    """Rank 0 fails as well, and has a traceback, but rank 1 is the cause."""
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def killed_beside_a_deaf_rank():
    """Rank 0 does not hear SIGTERM and waits for ever."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.init_process_group("gloo")
    dist.barrier()
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def vanishes():
    """Rank 1 ends without an error, in the middle of main."""
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


if __name__ == "__main__":
    found = launch(globals()[sys.argv[1]], 2)
    tell(f"rank {os.environ.get('RANK')} of the caller: {found}")
