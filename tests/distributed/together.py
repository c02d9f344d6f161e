"""Runs several functions in one job of several ranks: most of a short job's time is its start."""

import importlib

import torch

from ..helpers.ranks import run_ranks


def call_all(calls):
    """What each function returned; each starts from the same generator state, as in a job of its own."""
    found = {}
    for module, name, args in calls:
        torch.manual_seed(0)
        found[name] = getattr(importlib.import_module(module), name)(*args)
    return found


def run_together(world_size, *calls):
    """Calls top-level functions of test modules one after the other on each rank.

    Args:
        world_size: number of ranks.
        calls: functions, or tuples of a function and its arguments; the first one to fail ends the job.

    Returns:
        {the function's name: what each rank's call returned, in order}.
    """
    pairs = [(each, ()) if callable(each) else (each[0], each[1:]) for each in calls]
    named = [(function.__module__, function.__qualname__, args) for function, args in pairs]
    results = run_ranks(call_all, world_size, named, timeout_s=120)
    return {name: [result[name] for result in results] for _, name, _ in named}
