"""Trainings and engines that the launcher's tests run in several processes."""

import os
import signal
import time

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import Callback, StopLoopException, Trainer
from deepepochs.engine import Engine, stopping


def train(callbacks=(), epochs=2):
    """A small training; returns its results."""
    torch.manual_seed(1)
    x = torch.arange(24.0).reshape(12, 2) / 24
    model = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    with Trainer(
        model, F.mse_loss, opt, epochs=epochs, device="cpu", show_info=False, callbacks=list(callbacks)
    ) as trainer:
        progress = trainer.fit(DataLoader(TensorDataset(x, x[:, :1]), batch_size=2))
        return {"progress": progress, "test": trainer.test([(x, x[:, :1])])}


def environment():
    with Engine(device="cpu") as engine:
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
        return engine.gather_object({name: os.environ.get(name) for name in names})


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("cannot travel")
        self.lock = open(os.devnull)  # noqa: SIM115

    def __reduce__(self):
        raise TypeError("no")


class At(Callback):
    """Does something on rank 1 in the middle of the second epoch."""

    def __init__(self, action):
        super().__init__()
        self.action = action

    def on_before_train_batch(self, trainer, batch_idx, **others):
        if trainer.init_epoch == 1 and batch_idx == 1 and trainer.engine.rank == 1:
            self.action()


def stop():
    raise StopLoopException("enough")


def fail():
    raise Unpicklable


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def training_that_fails():
    train([At(fail)], 5)


def training_that_one_rank_stops():
    stopping.MEET_S = 1.0  # how long that rank waits for the other to stop as well
    train([At(stop)], 5)


class AfterEpoch(Callback):
    def on_after_epoch(self, trainer, epoch_idx, **others):
        if epoch_idx == 1 and trainer.engine.rank == 1:
            raise StopLoopException("enough")


def all_that_ends_well():
    """Several trainings in turn; only rank 0's result has to travel."""
    found = {
        "places": environment(),
        "whole": train(),
        "interrupted": train([At(interrupt)], 50),
        "stopped": train([AfterEpoch()], 5),
    }
    return found if os.environ["RANK"] == "0" else (lambda: 1)


def backward_that_rank_1_stays_away_from():
    """Two engines: ranks that start at different times count as waiting for each other, and the limit is short."""
    model = torch.nn.Linear(2, 1)
    with Engine(device="cpu") as first:
        first.barrier()
    with Engine(device="cpu", ddp_options={"timeout": 2}) as engine:
        model = engine.prepare(model)
        for step in range(3):  # the second forward is a collective, too
            if step == 2 and engine.rank == 1:
                time.sleep(60)
            with engine.accumulate(model):
                loss = model(torch.ones(1, 2)).mean()
                begin = time.monotonic()
                try:
                    engine.backward(loss)
                except RuntimeError as error:
                    raise TimeoutError(f"waited {time.monotonic() - begin:.1f} s; {error}") from error
