"""Resume on several ranks (C4-C7, E14): exact, and between one process and several."""

import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import Callback, CheckCallback, Optimizer, Trainer, set_seed
from deepepochs.engine import CheckpointError, load_file

from ..engine.references import flat, regression
from .together import run_together

X, Y = regression(23)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The folder of all checkpoints."""
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def alone(home):
    """The weights of one process's training, whose file two ranks take up."""
    return train(2, 1, folder=str(home / "alone"))[0]


@pytest.fixture(scope="module")
def ranks(home, alone):
    """What each function of this module returned on each rank, by its name."""
    file = str(home / "alone" / "r" / "checkpoint.ckpt")
    return run_together(
        2,
        (on_ranks, str(home)),
        (vanished, str(home / "vanished")),
        (one_process_file, file),
        (terminated, str(home / "terminated")),
    )


def model():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))


def train(epochs, seed, resume=False, every=None, checkpoint=None, folder="logs"):
    """Trains on shuffled shards with dropout; everything that must be equal."""
    set_seed(seed)
    net = model()
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    schedule = Optimizer(opt, torch.optim.lr_scheduler.StepLR(opt, 2, 0.5))
    check = CheckCallback("loss", save_best=False, ckpt_dir=folder, every_n_steps=every)
    options = {
        "device": "cpu",
        "show_info": False,
        "running_id": "r",
        "resume": resume,
        "gradient_accumulation_steps": 2,
    }
    with Trainer(net, F.mse_loss, schedule, epochs=epochs, callbacks=[check], **options) as trainer:
        if checkpoint is not None:
            trainer.load_checkpoint(checkpoint)
        trainer.fit(
            DataLoader(TensorDataset(X, Y), batch_size=2, shuffle=True), DataLoader(TensorDataset(X, Y), batch_size=5)
        )
        return flat(net), trainer.history, trainer.test(DataLoader(TensorDataset(X, Y), batch_size=5))


def on_ranks(home):
    """Whole and resumed trainings, from an epoch's end and from within one."""
    found = {"whole": train(4, 1, folder=f"{home}/whole")}
    train(2, 1, folder=f"{home}/parts")
    found["resumed"] = train(4, 9, resume="r", folder=f"{home}/parts")
    train(2, 1, every=1, folder=f"{home}/steps")
    file = f"{home}/steps/r/checkpoint-step.ckpt"
    found["position"] = load_file(file)["position"]["batches"]
    found["midway"] = train(4, 9, checkpoint=file, folder=f"{home}/other")
    try:
        train(4, 1, resume="nobody", folder=f"{home}/parts")
    except CheckpointError as error:
        found["missing"] = str(error)
    return found


def test_several_ranks_resume_exactly_and_one_process_takes_up_their_file(ranks, home):
    results = ranks["on_ranks"]
    for found in results:
        weights, history, tested = found["whole"]
        assert found["position"] > 0
        for name in ("resumed", "midway"):
            assert torch.equal(found[name][0], weights), name
            assert found[name][1:] == (history, tested), name
        assert "'nobody' to resume has no checkpoint" in found["missing"]
    assert torch.equal(results[0]["whole"][0], results[1]["whole"][0])
    file = home / "whole" / "r" / "checkpoint.ckpt"
    assert list(load_file(file)["model_state"]) == list(model().state_dict())
    assert len(load_file(file)["rng_state"]) == 2
    net = model()
    with Trainer(
        net, F.mse_loss, torch.optim.Adam(net.parameters()), device="cpu", show_info=False, epochs=5
    ) as trainer:
        trainer.load_checkpoint(file)
        assert torch.equal(flat(net), results[0]["whole"][0])
        assert len(trainer.fit([(X, Y)])["train"]["loss"]) == 1
        with pytest.raises(CheckpointError, match="of 2 processes"):
            trainer.load_checkpoint(home / "steps" / "r" / "checkpoint-step.ckpt")


def vanished(home):
    """All ranks test with the present weights."""
    set_seed(1)
    net = model()
    check = CheckCallback("loss", ckpt_dir=home)
    with Trainer(
        net, F.mse_loss, epochs=1, device="cpu", show_info=False, callbacks=[check], running_id="r"
    ) as trainer:
        dl = DataLoader(TensorDataset(X, Y), batch_size=5)
        trainer.fit(dl, dl)
        trainer.engine.barrier()
        if trainer.main_process:
            shutil.rmtree(Path(home, "r"))
        trainer.engine.barrier()
        with torch.no_grad():
            net.eval()
            expected = F.mse_loss(net(X), Y).item()
            net.train()
        return trainer.test(dl)["loss"], expected


def test_a_vanished_file_on_two_ranks(ranks):
    """C6"""
    for loss, expected in ranks["vanished"]:
        assert loss == pytest.approx(expected, rel=1e-6)


class Terminates(Callback):
    """Sends SIGTERM to rank 1 in the middle of an epoch."""

    def on_before_train_batch(self, trainer, batch_idx, **others):
        if (trainer.init_epoch, batch_idx, trainer.engine.rank) == (1, 1, 1):
            os.kill(os.getpid(), signal.SIGTERM)


def terminated(home):
    """A training that SIGTERM ends on one rank, the same one resumed, and one left alone."""

    def run(name, callbacks, resume=False):
        set_seed(9 if resume else 1)
        net = model()
        check = CheckCallback("loss", "train", ckpt_dir=f"{home}/{name}")
        options = {"device": "cpu", "show_info": False, "running_id": "r", "resume": resume, "epochs": 40}
        opt = torch.optim.Adam(net.parameters(), lr=0.01)
        with Trainer(net, F.mse_loss, opt, callbacks=[check, *callbacks], **options) as trainer:
            progress = trainer.fit(DataLoader(TensorDataset(X, Y), batch_size=2, shuffle=True))
            return flat(net), trainer.history, len(progress["train"].get("loss", []))

    return run("whole", []), run("parts", [Terminates()]), run("parts", [], resume="r")


def test_sigterm_on_one_rank_saves_and_stops_all(ranks):
    results = ranks["terminated"]
    for whole, stopped, resumed in results:
        assert stopped[2] < 40
        assert torch.equal(resumed[0], whole[0])
        assert resumed[1] == whole[1]
    assert results[0][1][2] == results[1][1][2]


def one_process_file(path):
    """Two ranks take up the file of one process."""
    net = model()
    with Trainer(
        net, F.mse_loss, torch.optim.Adam(net.parameters()), device="cpu", show_info=False, epochs=3
    ) as trainer:
        trainer.load_checkpoint(path)
        loaded = flat(net).clone()
        progress = trainer.fit(DataLoader(TensorDataset(X, Y), batch_size=4))
    return loaded, len(progress["train"]["loss"]), flat(net)


def test_two_ranks_take_up_the_file_of_one_process(ranks, alone):
    """E14"""
    one, other = ranks["one_process_file"]
    for loaded, epochs, _ in (one, other):
        assert torch.equal(loaded, alone)
        assert epochs == 1
    assert torch.equal(one[2], other[2])
