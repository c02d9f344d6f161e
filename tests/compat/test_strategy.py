"""Two processes (L1, L2): the same shards, updates and logged values as Lightning's DDP."""

import logging
import os
import warnings

import pytest
import torch

from ..helpers.ranks import run_ranks
from .parity import LightningTrainer, light, lightning, run

KEPT = ("weights", "callback_metrics", "records", "steps", "returned")
NAMES = ("classifier", "gan", "measured", "accumulating", "plateau", "with_datamodule")


def both(names):
    """Each case with Lightning and here, on this rank."""
    os.environ["TORCHELASTIC_RUN_ID"] = "parity"  # how Lightning knows that torchrun started it
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    found = {}
    for name in names:
        unused = name == "gan"  # each of their backwards reaches a part of the module
        options = {"devices": 2, "strategy": "ddp_find_unused_parameters_true" if unused else "ddp"}
        _, expected = run(name, lightning(), lightning().Trainer, **options)
        _, own = run(name, lightning(), LightningTrainer, **options)
        _, own_light = run(name, light(), LightningTrainer, **options)
        found[name] = [{key: each[key] for key in KEPT} for each in (expected, own, own_light)]
    return found


def assert_close(found, expected, path):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=lambda text: f"{path}: {text}")
    elif isinstance(expected, dict):
        assert set(found) == set(expected), path
        for key in expected:
            assert_close(found[key], expected[key], f"{path}/{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), path
        for index, pair in enumerate(zip(found, expected)):
            assert_close(*pair, f"{path}/{index}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6), path
    else:
        assert found == expected, path


def test_two_processes_give_lightnings_numbers():
    pytest.importorskip("lightning", reason="compares with Lightning")
    ranks = run_ranks(both, 2, NAMES, timeout_s=150)
    for rank, cases in enumerate(ranks):
        for name, (expected, own, own_light) in cases.items():
            assert_close(own, expected, f"{rank}/{name}")
            assert_close(own_light, expected, f"{rank}/{name} on the light base")
    for name in NAMES:
        first, second = (each[name][1]["weights"] for each in ranks)
        trained = [key for key in first if "running" not in key and "batches_tracked" not in key]
        assert all(torch.equal(first[key], second[key]) for key in trained), name
