"""Runs several functions in one job of several ranks: most of a short job's time is its start."""

import importlib
import os
import time
import traceback
from pathlib import Path

import torch

from ..helpers.ranks import run_ranks


def call(module, name, args):
    """Calls a function; each starts from the same generator state, as in a job of its own."""
    torch.manual_seed(0)
    return getattr(importlib.import_module(module), name)(*args)


def call_all(calls):
    """What each function returned, up to the first that failed on any rank, and its traceback if that was here.

    What a failure leaves behind (a process group, ranks at different places) is not for the next function to find.
    """
    found, rank = {}, os.environ["RANK"]
    home = Path.cwd()  # of the job: the same on all ranks
    for module, name, args in calls:
        try:
            value = call(module, name, args)
        except BaseException:
            Path(home, f"{rank}.failed").touch()
            return found, {name: traceback.format_exc()}
        Path(home, f"{rank}.{name}.done").touch()
        if not all_have_done(home, name):
            return found, {}
        found[name] = value
    return found, {}


def all_have_done(home, name):
    """Waits for the other ranks: False if one has failed."""
    while len(list(home.glob(f"*.{name}.done"))) < int(os.environ["WORLD_SIZE"]):
        if list(home.glob("*.failed")):
            return False
        time.sleep(0.005)
    return True


class Together:
    """What functions returned on each rank of one job, by their names.

    A function that failed there fails the tests that ask for it, and no others; one that the job did not reach runs in
    a job of its own when it is asked for.
    """

    def __init__(self, world_size, calls):
        self._world_size, self._calls = world_size, {call[1]: call for call in calls}
        self._found, self._failures = {}, {}
        try:
            results = run_ranks(call_all, world_size, calls, timeout_s=120)
        except AssertionError:  # a rank died or hung, and the job cannot say in which function: each runs on its own
            return
        self._found = {name: [found[name] for found, _ in results] for name in min((r[0] for r in results), key=len)}
        for rank, (_, failures) in enumerate(results):
            for name, text in failures.items():
                self._failures.setdefault(name, f"{name} failed on rank {rank}:\n{text}")

    def __getitem__(self, name):
        if name in self._failures:
            raise AssertionError(self._failures[name])
        if name not in self._found:
            try:
                self._found[name] = run_ranks(call, self._world_size, *self._calls[name], timeout_s=120)
            except AssertionError as error:
                self._failures[name] = str(error)
                raise
        return self._found[name]


def run_together(world_size, *calls):
    """Calls top-level functions of test modules one after the other on each rank.

    Args:
        world_size: number of ranks.
        calls: functions, or tuples of a function and its arguments.

    Returns:
        What maps a function's name to what each rank's call returned, in order; it raises what that function raised.
    """
    pairs = [(each, ()) if callable(each) else (each[0], each[1:]) for each in calls]
    return Together(world_size, [(function.__module__, function.__qualname__, args) for function, args in pairs])
