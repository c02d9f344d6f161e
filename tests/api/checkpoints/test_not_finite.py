"""Weights that are not finite never replace a finite file, and no batch size is NaN or infinite (nothing silent)."""

import warnings
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deepepochs import Callback, CheckCallback, EpochTask
from deepepochs.checkpoints.finiteness import first_not_finite
from deepepochs.engine import CheckpointError, load_file

from ..helpers import classes, loader, quiet, sgd

X, Y = classes(8)
FOLDER = Path("logs", "r")


class Breaks(Callback):
    """Puts a value into a weight after the last update of an epoch."""

    def __init__(self, epoch, value, place="weight"):
        super().__init__(priority=5)
        self.epoch, self.value, self.place = epoch, value, place

    def on_after_train_epochs(self, trainer, tasks, metrics, epoch_idx):
        if epoch_idx == self.epoch:
            tensor = {**dict(trainer.model.named_parameters()), **dict(trainer.model.named_buffers())}[self.place]
            tensor.data.view(-1)[0] = self.value


def trained(tmp_path, monkeypatch, value, epochs=2, model=None, **options):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Linear(4, 3) if model is None else model
    check = CheckCallback("loss", on_stage="train", **options)
    trainer = quiet(
        model, F.cross_entropy, sgd(model), callbacks=[check, Breaks(1, value)], epochs=epochs, running_id="r"
    )
    trainer.fit(loader(X, Y, 4))
    return trainer, check


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("save_best", [True, False])
def test_a_broken_state_is_written_beside_the_finite_one(tmp_path, monkeypatch, value, save_best):
    with pytest.warns(UserWarning, match="'weight' holds NaN or inf.*not-finite.*left as it was"):
        trainer, check = trained(tmp_path, monkeypatch, value, save_best=save_best)
    good, bad = load_file(FOLDER / "checkpoint.ckpt"), load_file(FOLDER / "checkpoint-not-finite.ckpt")
    assert good["epoch"] == 1
    assert all(each.isfinite().all() for each in good["model_state"].values())
    assert bad["epoch"] == 2
    assert torch.equal(bad["model_state"]["weight"], trainer.model.weight) is (value == value)
    # the loss fell in that epoch, but its weights are not the best ones, and the test takes those of the file
    assert check.best_value == trainer.history["train"]["loss"][0] > trainer.history["train"]["loss"][1]
    assert check.worse_times == 1
    assert check.found == Path(check.ckpt_dir, "r", "checkpoint.ckpt")
    assert torch.isfinite(torch.tensor(trainer.test(loader(X, Y, 4))["loss"]))


def test_resume_takes_the_finite_file_though_the_other_is_further(tmp_path, monkeypatch):
    with pytest.warns(UserWarning, match="not finite"):
        trained(tmp_path, monkeypatch, float("nan"))
    model = nn.Linear(4, 3)
    again = quiet(model, F.cross_entropy, sgd(model), callbacks=CheckCallback("loss", "train"), resume=True, epochs=1)
    again.fit(loader(X, Y, 4))
    assert again.init_epoch == 1
    assert torch.equal(model.weight, load_file(FOLDER / "checkpoint.ckpt")["model_state"]["weight"])


def test_a_run_that_has_nothing_finite_is_none_to_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(4, 3)
    check = CheckCallback("loss", "train")
    with pytest.warns(UserWarning, match="not finite"):
        quiet(model, F.cross_entropy, sgd(model), callbacks=[check, Breaks(0, float("nan"))], running_id="r").fit(
            loader(X, Y, 4)
        )
    assert check.best_value is None
    assert not (FOLDER / "checkpoint.ckpt").exists()
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        quiet(model, F.cross_entropy, sgd(model), callbacks=CheckCallback("loss", "train"), resume="r").fit(
            loader(X, Y, 4)
        )


@pytest.mark.filterwarnings("ignore:.*counts as no improvement")
def test_a_state_within_an_epoch_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = nn.Linear(4, 3)

    class Midway(Callback):
        def on_before_train_batch(self, trainer, batch_idx, **others):
            if batch_idx == 2:
                model.weight.data[0, 0] = float("inf")

    check = CheckCallback("loss", "train", every_n_steps=1)
    with pytest.warns(UserWarning, match="checkpoint-step-not-finite.ckpt"):
        quiet(model, F.cross_entropy, sgd(model), callbacks=[check, Midway()], running_id="r").fit(loader(X, Y, 2))
    assert load_file(FOLDER / "checkpoint-step.ckpt")["step"] == 2
    assert load_file(FOLDER / "checkpoint-step-not-finite.ckpt")["step"] == 3


class Odd(nn.Module):
    """Infinite on purpose, or of types that torch asks no such questions."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.frozen = nn.Parameter(torch.full((2,), -torch.inf), requires_grad=False)
        self.lazy = nn.LazyLinear(3)
        self.register_buffer("mask", torch.triu(torch.full((3, 3), -torch.inf), 1))
        self.register_buffer("sparse", torch.eye(3).to_sparse())
        self.register_buffer("empty", torch.zeros(0))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("temporary", torch.tensor(torch.nan), persistent=False)
        self.register_buffer("complex", torch.ones(2, dtype=torch.complex64))
        if hasattr(torch, "float8_e4m3fn"):
            self.register_buffer("eight", torch.ones(2).to(torch.float8_e4m3fn))

    def forward(self, x):
        return self.linear(x)


def test_infinity_on_purpose_is_no_fault():
    model = Odd()
    trainer = quiet(model, F.cross_entropy, torch.optim.SGD(model.linear.parameters(), 0.1))
    assert first_not_finite(trainer) is None
    model.mask[0, 0] = torch.nan
    assert first_not_finite(trainer) == "mask"
    model.mask[0, 0] = 0
    model.complex[0] = complex(0, float("nan"))
    assert first_not_finite(trainer) == "complex"


def test_a_loss_module_counts():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(torch.inf))

        def forward(self, out, y):
            return F.cross_entropy(out * self.scale, y)

    model, loss = nn.Linear(4, 3), Scaled()
    trainer = quiet(model, loss, torch.optim.SGD([*model.parameters(), *loss.parameters()], 0.1))
    assert first_not_finite(trainer) == "scale"


@pytest.mark.parametrize(
    "samples",
    [
        float("nan"),
        float("inf"),
        -1,
        -0.5,
        None,
        "4",
        True,
        numpy.float64("nan"),
        torch.tensor(float("inf")),
        torch.tensor(-1),
        torch.ones(2),
        torch.tensor(True),
    ],
    ids=repr,
)
def test_a_batch_size_is_finite(samples):
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="a number of at least 0, got"):
        quiet(model, F.cross_entropy, sgd(model)).fit(loader(X, Y, 4), batch_size=lambda x, y: samples)


@pytest.mark.parametrize("samples", [4, 4.0, numpy.int64(4), numpy.float32(4), torch.tensor(4), torch.tensor([4.0])])
def test_any_kind_of_finite_number_is_one(samples):
    found = []
    for given in (samples, 4):
        torch.manual_seed(0)
        model = nn.Linear(4, 3)
        trainer = quiet(model, F.cross_entropy, sgd(model), gradient_accumulation_steps=2)
        found.append(trainer.fit(loader(X, Y, 4), batch_size=lambda x, y, given=given: given))
        found[-1]["weight"] = model.weight.tolist()
    assert found[0] == found[1]


def test_a_fixed_batch_size_is_a_whole_number():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert EpochTask((), batch_size=numpy.int64(3))._size(None, None) == 3
    for wrong, error in ((True, TypeError), (float("inf"), TypeError), (0, ValueError), (numpy.int64(-1), ValueError)):
        with pytest.raises(error, match="`batch_size` must be"):
            EpochTask((), batch_size=wrong)


def test_what_was_counted_on_the_device_is_looked_at_when_the_stage_ends(monkeypatch):
    """Where a look would wait for the device, the loop does not take it: shown with a check that looks at nothing."""
    monkeypatch.setattr("deepepochs.loop.splitting.is_count", lambda samples: True)
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match="a number of at least 0, they sum up to"):
        quiet(model, F.cross_entropy, sgd(model)).fit(
            loader(X, Y, 4), batch_size=lambda x, y: torch.tensor(float("nan"))
        )
