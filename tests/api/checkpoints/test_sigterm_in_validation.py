"""SIGTERM within a validation (C7): training stops between two batches, and a resume repeats just the validation."""

import os
import shutil
import signal
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import Callback, CheckCallback, EpochTask, Optimizer, Trainer, set_seed

X = torch.arange(48.0).reshape(12, 4) / 48
DATA = TensorDataset(X, torch.arange(12) % 3)


class Events(Callback):
    """Notes what happens, draws from the generators in both stages, and sends SIGTERM at a validation batch."""

    def __init__(self, place=None):
        super().__init__()
        self.place, self.trained, self.seen = place, 0, []

    def on_before_train_batch(self, trainer, batch_idx, **others):
        self.seen.append(("train", trainer.init_epoch, batch_idx))

    def on_after_train_epochs(self, **others):
        self.trained += 1

    def on_before_val_batch(self, trainer, batch_idx, **others):
        self.seen.append(("val", trainer.init_epoch, batch_idx))
        if (trainer.init_epoch, batch_idx) == self.place:
            os.kill(os.getpid(), signal.SIGTERM)

    def state_dict(self):
        return {"trained": self.trained}

    def load_state_dict(self, state):
        self.trained = state["trained"]


def run(events, seed, resume=False, tasks=1):
    set_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    opt = Optimizer(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), sched_on="epoch")
    check = CheckCallback("loss", patience=9)
    options = {"epochs": 3, "device": "cpu", "show_info": False, "running_id": "r", "resume": resume}
    loaders = [DataLoader(DATA, batch_size=4, shuffle=True) for _ in range(tasks)]
    with Trainer(model, F.cross_entropy, opt, callbacks=[check, events], **options) as trainer:
        trainer.fit(
            train_tasks=[EpochTask(each) for each in loaders],
            val_tasks=[EpochTask(DataLoader(DATA, batch_size=3, shuffle=True))],
        )
        weights = torch.cat([each.detach().flatten().float() for each in model.state_dict().values()])
        modes = {each.training for each in model.modules()}
        return weights, trainer.history, modes, optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize(("place", "tasks"), [((0, 0), 1), ((1, 2), 2), ((2, 3), 1)])
def test_a_resume_goes_on_with_the_validation_alone(place, tasks, capsys):
    whole = Events()
    expected = run(whole, 1, tasks=tasks)
    shutil.rmtree("logs")
    left = Events(place)
    _, history, modes, _ = run(left, 1, tasks=tasks)
    assert "SIGTERM: the state is saved" in capsys.readouterr().out
    assert left.seen[-1] == ("val", *place), "no further batch"
    assert len(history["val"].get("loss", [])) == place[0]
    assert modes == {True}
    resumed = Events()
    weights, history, _, rate = run(resumed, 9, resume="r", tasks=tasks)
    assert resumed.seen == whole.seen[whole.seen.index(("val", place[0], 0)) :]
    assert torch.equal(weights, expected[0])
    assert (history, rate) == (expected[1], expected[3])
    assert resumed.trained == whole.trained == 3


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), True, "10", None])
def test_wrong_limits_are_refused(wrong):
    with pytest.raises(ValueError, match="`sigterm_seconds` must be a number of seconds above 0, got"):
        CheckCallback("loss", sigterm_seconds=wrong)


def test_the_shortest_limit_of_the_monitors_counts(monkeypatch):
    limits = []

    class Timer:
        def __init__(self, seconds, function, arguments):
            limits.append((seconds, function, arguments))

        def start(self):
            pass

        def cancel(self):
            limits.append("taken back")

    monkeypatch.setattr(threading, "Timer", Timer)
    checks = [
        CheckCallback("loss", sigterm_seconds=90),
        CheckCallback("loss", mode="max", sigterm_seconds=25),
        CheckCallback("loss", "train", on_sigterm=False, sigterm_seconds=1),
    ]
    callbacks = [*checks, Events((0, 1))]
    with Trainer(nn.Linear(4, 3), F.cross_entropy, epochs=1, device="cpu", show_info=False, callbacks=callbacks) as t:
        t.fit(DataLoader(DATA, batch_size=4), DataLoader(DATA, batch_size=4))
    assert limits[0] == (25.0, os._exit, [128 + signal.SIGTERM])
    assert set(limits[1:]) == {"taken back"}, "after fit() the process may take its time"
