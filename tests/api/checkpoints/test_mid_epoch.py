"""Checkpoints within an epoch (C7): going on from any of them is exact, and nothing is read twice."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset

from deepepochs import (
    Callback,
    CheckCallback,
    ConfusionMetrics,
    EpochTask,
    Optimizer,
    PatchBase,
    TrainerBase,
    ValuePatch,
    metrics,
    set_seed,
)
from deepepochs.engine import CheckpointError, load_file

from ...engine.references import flat
from ..helpers import classes

X, Y = classes(26)


class Noted(Dataset):
    """Samples that note when they are read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        self.read.append(index)
        return X[index], Y[index]


class Copies(Callback):
    """Keeps a copy of each checkpoint within an epoch."""

    def __init__(self, folder):
        super().__init__(priority=-5)
        self.folder, self.seen = Path(folder), set()

    def on_before_train_batch(self, trainer, **others):
        path = Path("logs/r/checkpoint-step.ckpt")
        if path.exists():
            step = load_file(path)["step"]
            if step not in self.seen:
                self.seen.add(step)
                self.folder.mkdir(exist_ok=True)
                shutil.copy(path, self.folder / f"{step}.ckpt")


class Largest(PatchBase):
    """A custom patch that steps return."""

    def load(self, preds):
        self.value = preds.detach().max()
        return self

    def add(self, obj):
        self.value = torch.maximum(self.value, obj.value)
        return self

    def forward(self):
        return self.value


class Own(TrainerBase):
    def train_step(self, batch_x, batch_y, **step_args):
        out = self.model(batch_x)
        self.loss(out, batch_y)
        return {
            "largest": Largest().load(out),
            "mean": ValuePatch(len(batch_x)).load(out.mean()),
            "matrix": ConfusionMetrics(["accuracy"]).load(out, batch_y),
        }


def spread(preds, targets):
    return preds.double().abs().mean()


SETUPS = {
    "tensor": {"metrics": [metrics.f1], "metric_patch": "tensor"},
    "mean": {"metrics": [spread], "metric_patch": "mean"},
    "confusion": {"metrics": [metrics.f1], "metric_patch": "confusion"},
    "accumulation": {"gradient_accumulation_steps": 3},
    "fp16": {"precision": "fp16", "gradient_accumulation_steps": 2},
    "torchmetrics": {"torchmetrics": True},
    "workers": {"workers": 1},
    "tasks": {"tasks": True},
}


def train(setup, epochs, seed, checkpoint=None, folder=None, every=2):
    """Trains with dropout on shuffled data; returns all that must be equal, and what was read."""
    set_seed(seed)
    options = dict(SETUPS[setup])
    workers, several = options.pop("workers", 0), options.pop("tasks", False)
    if options.pop("torchmetrics", False):
        own = torchmetrics.classification.MulticlassF1Score(3)
        options["metrics"] = [own, torchmetrics.MetricCollection([torchmetrics.classification.MulticlassAccuracy(3)])]
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = Optimizer(opt, OneCycleLR(opt, 0.05, total_steps=100), sched_on="step")
    check = CheckCallback("loss", "train", every_n_steps=every, patience=50)
    callbacks = [check] if folder is None else [check, Copies(folder)]
    options = {"device": "cpu", "show_info": False, "log_batch": False, "running_id": "r", **options}
    data = Noted()
    dl = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)
    with Own(model, F.cross_entropy, schedule, epochs=epochs, callbacks=callbacks, **options) as trainer:
        if checkpoint is not None:
            trainer.load_checkpoint(checkpoint)
        tasks = [EpochTask(dl), EpochTask(DataLoader(data, batch_size=5, shuffle=True))] if several else [EpochTask(dl)]
        trainer.fit(train_tasks=tasks, val_dl=[(X, Y)])
        state = trainer.opt.state_dict(), trainer.engine.state_dict(), check.state_dict(), trainer.global_step
        return flat(model), trainer.history, str(state), data.read


@pytest.mark.parametrize("setup", SETUPS)
def test_going_on_from_any_update_is_exact(setup):
    weights, history, state, read = train(setup, 2, 1, folder="copies")
    files = sorted(Path("copies").iterdir(), key=lambda path: int(path.stem))
    assert len(files) >= 2
    for file in files:
        content = load_file(file)
        assert content["position"]["batches"] > 0
        again = train(setup, 2, 99, checkpoint=file)
        assert torch.equal(again[0], weights), file
        assert again[1] == history, file
        assert again[2] == state, file
        if setup not in ("workers", "tasks"):  # the samples that were skipped are not read
            assert again[3] == read[len(read) - len(again[3]) :]
            done = content["epoch"] * len(X) + content["position"]["batches"] * 4
            assert len(again[3]) == len(read) - min(done, len(X) * (content["epoch"] + 1))


def test_files_are_written_between_windows_only():
    train("accumulation", 2, 1, folder="copies", every=1)
    positions = [load_file(path)["position"]["batches"] for path in Path("copies").iterdir()]
    assert set(positions) == {3, 6}  # seven batches in windows of three


def test_the_newest_file_is_resumed_whatever_wrote_it():
    train("mean", 2, 1)
    content = load_file("logs/r/checkpoint-step.ckpt")
    assert (content["epoch"], content["step"], content["position"]["batches"]) == (1, 12, 5)
    assert load_file("logs/r/checkpoint.ckpt")["position"] is None


def test_another_number_of_processes_is_refused():
    train("mean", 1, 1)
    content = load_file("logs/r/checkpoint-step.ckpt")
    for name in ("start", "totals", "loader"):
        content["position"][name] *= 2
    from deepepochs.engine import save_file

    save_file("two.ckpt", content)
    with pytest.raises(CheckpointError, match="of 2 processes goes on with as many"):
        train("mean", 1, 1, checkpoint="two.ckpt")


def test_wrong_intervals_are_refused():
    for wrong in (0, -1, 1.5):
        with pytest.raises(ValueError, match="every_n_steps"):
            CheckCallback("loss", every_n_steps=wrong)


class Terminates(Callback):
    """Sends SIGTERM to the process itself at a batch."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.place = (epoch, batch)

    def on_before_train_batch(self, trainer, batch_idx, **others):
        if (trainer.init_epoch, batch_idx) == self.place:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("steps", "place"), [(1, (0, 2)), (3, (1, 1)), (3, (1, 6)), (1, (0, 6))])
def test_sigterm_saves_at_the_windows_end_and_stops(steps, place, capsys):
    def run(callbacks, seed, resume=False):
        set_seed(seed)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))
        check = CheckCallback("loss", "train")
        options = {"gradient_accumulation_steps": steps, "running_id": "r", "resume": resume, "show_info": False}
        opt = torch.optim.Adam(model.parameters(), lr=0.01)
        callbacks = [check, *callbacks]
        with TrainerBase(
            model, F.cross_entropy, opt, epochs=3, device="cpu", callbacks=callbacks, **options
        ) as trainer:
            progress = trainer.fit(DataLoader(Noted(), batch_size=4, shuffle=True))
            return flat(model), trainer.history, progress

    expected = run([], 1)
    shutil.rmtree("logs")
    handler = signal.getsignal(signal.SIGTERM)
    _, _, progress = run([Terminates(*place)], 1)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert "SIGTERM: the state is saved" in capsys.readouterr().out
    assert len(progress["train"].get("loss", [])) == place[0] + (place[1] == 6)
    weights, history, _ = run([], 9, resume="r")
    assert torch.equal(weights, expected[0])
    assert history == expected[1]


def test_sigterm_can_be_left_alone():
    seen = []

    class Spy(Callback):
        def on_before_epoch(self, **others):
            seen.append(signal.getsignal(signal.SIGTERM))

    for on, every in ((True, None), (False, None), (False, 1)):
        model = nn.Linear(4, 3)
        check = CheckCallback("loss", "train", on_sigterm=on, every_n_steps=every)
        options = {"epochs": 1, "device": "cpu", "show_info": False, "callbacks": [check, Spy()]}
        with TrainerBase(model, F.cross_entropy, **options) as trainer:
            trainer.fit([(X, Y)])
    assert callable(seen[0])
    assert seen[1] is seen[2] is signal.SIG_DFL


class Stateful:
    """A loader that keeps its own place, as torchdata's StatefulDataLoader does."""

    def __init__(self):
        self.epoch, self.place, self.read = 0, 0, []

    def __len__(self):
        return 7

    def __iter__(self):
        order = torch.randperm(7, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.place < 7:
            index = order[self.place]
            self.place += 1
            self.read.append(index)
            yield X[index : index + 4], Y[index : index + 4]
        self.epoch, self.place = self.epoch + 1, 0

    def state_dict(self):
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state):
        self.epoch, self.place = state["epoch"], state["place"]


@pytest.mark.parametrize("steps", [1, 2])
def test_a_loader_that_keeps_its_own_place_goes_on_by_itself(steps):
    def run(checkpoint=None):
        set_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))
        opt = torch.optim.Adam(model.parameters(), lr=0.01)
        callbacks = [CheckCallback("loss", "train", every_n_steps=1), Copies("copies")]
        options = {"device": "cpu", "show_info": False, "running_id": "r", "gradient_accumulation_steps": steps}
        dl = Stateful()
        with TrainerBase(model, F.cross_entropy, opt, epochs=1, callbacks=callbacks, **options) as trainer:
            if checkpoint is not None:
                trainer.load_checkpoint(checkpoint)
            trainer.fit(dl)
            return flat(model), trainer.history, dl.read

    weights, history, read = run()
    for file in list(Path("copies").iterdir()):
        batches = load_file(file)["position"]["batches"]
        again = run(file)
        assert torch.equal(again[0], weights)
        assert again[1] == history
        assert again[2] == read[batches:]
