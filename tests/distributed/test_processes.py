"""Processes (E10, E11): the group's life, the collectives, and blocks that the main process runs first."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import Trainer
from deepepochs.engine import Engine

from ..engine.references import flat, net, regression
from ..helpers.ranks import run_ranks
from .together import run_together


@pytest.fixture(scope="module")
def ranks():
    """What each function of this module for two ranks returned on each, by its name."""
    return run_together(2, start_alike, lives, main_first, wrong_environment)


def lives():
    """Engines one after the other and side by side, and a group of the caller's."""
    found = []
    for _ in range(3):
        with Engine(device="cpu") as engine:
            found.append(engine.reduce(1))
        found.append(dist.is_initialized())
    one, other = Engine(device="cpu"), Engine(device="cpu")
    one.close(), one.close()
    found.append((dist.is_initialized(), other.reduce(engine.rank)))
    other.close()
    found.append(dist.is_initialized())
    x, y = regression(8)
    trainers = [Trainer(net(), F.mse_loss, epochs=1, device="cpu", show_info=False) for _ in range(2)]
    for trainer in trainers:
        trainer.fit(DataLoader(TensorDataset(x, y), batch_size=2))
    trainers[0].close()
    trainers[1].fit(DataLoader(TensorDataset(x, y), batch_size=2), epochs=1)
    trainers[1].close()
    found.append(dist.is_initialized())
    dist.init_process_group("gloo")
    with Engine(device="cpu") as engine:
        found.append(engine.reduce(1))
    found.append(dist.is_initialized())
    dist.destroy_process_group()
    return found


def test_a_group_ends_with_its_last_engine_and_the_callers_stays(ranks):
    for found in ranks["lives"]:
        assert found == [2, False] * 3 + [(True, 1), False, False, 2, True]


def collect():
    found = {}
    with Engine(device="cpu") as engine:
        rank = engine.rank
        ragged = {"a": torch.arange(rank * 2.0).reshape(rank, 2), "b": [torch.tensor(float(rank)), None]}
        found["gather"] = engine.gather(ragged)
        found["nothing"] = engine.gather(None)
        found["some"] = engine.gather(None if rank == 0 else (torch.full((1, 2), rank),))
        found["bool"] = engine.gather(torch.tensor([rank == 1]))
        found["reduce"] = [
            engine.reduce({"x": torch.tensor([1.0, rank]), "n": rank}, op) for op in ("sum", "mean", "max", "min")
        ]
        kept = torch.full((2,), float(rank))
        engine.reduce(kept)
        found["kept"] = kept.tolist()
        own = [torch.full((2,), float(rank)), {"n": torch.tensor(rank)}]
        engine.broadcast(own, source=1)
        found["broadcast"] = (own[0].tolist(), own[1]["n"].item())
        found["objects"] = (engine.gather_object({"rank": rank}), engine.broadcast_object(["from", rank], source=1))
        engine.barrier()
        try:
            engine.reduce(1, "product")
        except ValueError as error:
            found["error"] = str(error)
        found["meet"] = [engine.meet("here", 5.0), engine.meet("here", 0.3) if rank == 0 else None]
        engine.barrier()
    return found


def test_collectives():
    results = run_ranks(collect, 3)
    for rank, found in enumerate(results):
        assert found["gather"]["a"].tolist() == [[0, 1], [0, 1], [2, 3]]
        assert found["gather"]["b"][0].tolist() == [0, 1, 2]
        assert found["gather"]["b"][1] is None
        assert found["nothing"] is None
        assert found["some"][0].tolist() == [[1, 1], [2, 2]]
        assert found["bool"].tolist() == [False, True, False]
        total, mean, largest, smallest = found["reduce"]
        assert (total["x"].tolist(), total["n"]) == ([3, 3], 3)
        assert (mean["x"].tolist(), mean["n"]) == ([1, 1], 1)
        assert (largest["x"].tolist(), largest["n"]) == ([1, 2], 2)
        assert (smallest["x"].tolist(), smallest["n"]) == ([1, 0], 0)
        assert found["kept"] == [rank, rank]
        assert found["broadcast"] == ([1, 1], 1)
        assert found["objects"] == ([{"rank": each} for each in range(3)], ["from", 1])
        assert "got 'product'" in found["error"]
        assert found["meet"] == [True, False if rank == 0 else None]


def main_first():
    log = []
    with Engine(device="cpu") as engine:
        if not engine.is_main:
            open("arrived", "w").close()
        with engine.main_process_first():
            if engine.is_main:
                while not os.path.exists("arrived"):  # the other one comes first, and waits
                    time.sleep(0.01)
                open("cache", "w").close()
            log.append(os.path.exists("cache"))
            with engine.main_process_first():
                log.append("nested")
        try:
            with engine.main_process_first():
                log.append("ran")
                if engine.is_main:
                    raise ZeroDivisionError("no disk")
        except Exception as error:
            log.append(f"{type(error).__name__}: {error}")
        log.append(engine.reduce(1))
    return log


def test_the_main_process_goes_first_also_when_it_fails(ranks):
    main, other = ranks["main_first"]
    assert main == [True, "nested", "ran", "ZeroDivisionError: no disk", 2]
    assert other == [
        True,
        "nested",
        "RuntimeError: the main process failed in main_process_first(): ZeroDivisionError: no disk",
        2,
    ]


def start_alike():
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"]))
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    model[1].running_mean.fill_(float(os.environ["RANK"]))
    x, y = regression(8)
    with Trainer(
        model, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.0), epochs=1, device="cpu", show_info=False
    ) as trainer:
        trainer.fit([(x, y)])
    return flat(model), model[1].running_mean.tolist()


def test_ranks_start_from_the_same_parameters_and_buffers(ranks):
    """T15"""
    one, other = ranks["start_alike"]
    assert torch.equal(one[0], other[0])
    assert one[1] == pytest.approx(other[1])


def wrong_environment():
    found = []
    for name, value in (("WORLD_SIZE", None), ("MASTER_PORT", None), ("RANK", "two"), ("RANK", "7")):
        before = os.environ.pop(name)
        if value is not None:
            os.environ[name] = value
        try:
            Engine(device="cpu")
        except RuntimeError as error:
            found.append(str(error))
        os.environ[name] = before
    return found


def test_a_wrong_environment_is_refused(ranks):
    found = ranks["wrong_environment"][0]
    assert "['WORLD_SIZE'] is missing" in found[0]
    assert "['MASTER_PORT'] is missing" in found[1]
    assert "must be numbers" in found[2]
    assert "got RANK=7, WORLD_SIZE=2" in found[3]
