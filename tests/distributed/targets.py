"""Functions that the launcher's tests run in several processes."""

import os
import signal
import sys
import time

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import Callback, StopLoopException, Trainer, launch
from deepepochs.engine import Engine


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


def raises():
    if os.environ["RANK"] == "1":
        raise Unpicklable
    time.sleep(60)


def killed():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def ignores_the_end():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ["RANK"] == "1":
        raise ZeroDivisionError("mine")
    time.sleep(60)


def exits():
    sys.exit(int(os.environ["RANK"]) * 3)


def exits_well():
    sys.exit(0)


def returns_a_function():
    return lambda: 1


def others_return_functions():
    return 5 if os.environ["RANK"] == "0" else (lambda: 1)


def nested():
    return launch(environment, 2)


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
    raise ZeroDivisionError("on rank 1")


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def training_that_fails():
    train([At(fail)], 5)


def training_that_one_rank_stops():
    train([At(stop)], 5)


def training_that_one_rank_interrupts():
    return train([At(interrupt)], 50)


class AfterEpoch(Callback):
    def on_after_epoch(self, trainer, epoch_idx, **others):
        if epoch_idx == 1 and trainer.engine.rank == 1:
            raise StopLoopException("enough")


def training_stopped_after_an_epoch():
    return train([AfterEpoch()], 5)


if __name__ == "__main__":
    print("RESULT", launch(environment, 2))
