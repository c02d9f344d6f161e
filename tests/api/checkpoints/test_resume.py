"""Resume (C4, C5, C7): training goes on as if it had never stopped, to the last bit."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR, ReduceLROnPlateau

from deepepochs import CheckCallback, Optimizer, Trainer, set_seed
from deepepochs.engine import CheckpointError, load_file, save_file

from ...engine.references import flat, net, regression
from ..helpers import loader, quiet, sgd

X, Y = regression(26)
ROOT = Path(__file__).resolve().parents[3]
EPOCHS = 5


def dropout_net():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))


def momentum(model):
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return Optimizer(opt, MultiStepLR(opt, [2, 4], 0.1))


def one_cycle(model):
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    return Optimizer(opt, OneCycleLR(opt, 0.05, total_steps=5 * 7), sched_on="step")


def plateau(model):
    opt = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Optimizer(opt, ReduceLROnPlateau(opt, patience=0, threshold=0.5), sched_with_loss=True)


SETUPS = {
    "momentum": (momentum, {}),
    "one cycle": (one_cycle, {}),
    "plateau": (plateau, {}),
    "accumulation": (momentum, {"gradient_accumulation_steps": 3}),
    "fp16": (one_cycle, {"precision": "fp16"}),
    "two optimizers": (lambda model: [momentum(model[0]), plateau(model[2])], {}),
}


def train(setup, epochs, resume, folder, seed):
    """Trains on a shuffled loader with dropout; returns everything that must be equal."""
    set_seed(seed)
    make, options = SETUPS[setup]
    model = dropout_net()
    own = torch.Generator().manual_seed(seed)
    newest = CheckCallback("loss", save_best=False, patience=100, ckpt_dir=folder)
    best = CheckCallback("loss", ckpt_dir=folder)
    opt = make(model)
    with quiet(
        model, F.mse_loss, opt, epochs=epochs, callbacks=[newest, best], running_id="r", resume=resume, **options
    ) as trainer:
        generator = own if setup == "momentum" else None
        trainer.fit(loader(X, Y, 4, shuffle=True, generator=generator), loader(X, Y, 10))
        return {
            "weights": flat(model),
            "optimizers": trainer.opt.state_dict(),
            "history": trainer.history,
            "monitors": [each.state_dict() for each in trainer.monitors],
            "engine": trainer.engine.state_dict(),
            "step": trainer.global_step,
        }


def assert_same(one, other):
    """Equal to the last bit."""
    assert torch.equal(one["weights"], other["weights"])
    for key in ("history", "monitors", "engine", "step"):
        assert one[key] == other[key], key
    save_file("one.ckpt", one["optimizers"]), save_file("other.ckpt", other["optimizers"])
    assert str(load_file("one.ckpt")) == str(load_file("other.ckpt"))


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("stopped", range(1, EPOCHS))
def test_resumed_training_is_bit_identical(setup, stopped):
    """C7"""
    whole = train(setup, EPOCHS, False, "whole", 1)
    train(setup, stopped, False, "parts", 1)
    resumed = train(setup, EPOCHS, "r" if stopped % 2 else True, "parts", 2)  # other seed: all comes from the file
    assert_same(whole, resumed)


def test_a_new_process_resumes_exactly(tmp_path):
    code = (
        "import sys; sys.path.insert(0, {root!r}); import torch; torch.set_num_threads(1)\n"
        "from tests.api.checkpoints.test_resume import train; from deepepochs.engine import save_file\n"
        "found = train('accumulation', {epochs}, {resume!r}, 'parts', {seed})\n"
        "save_file('found.ckpt', {{'weights': found['weights']}})"
    )
    for epochs, resume, seed in ((2, False, 1), (5, "r", 9)):
        script = code.format(root=str(ROOT), epochs=epochs, resume=resume, seed=seed)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=90, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    whole = train("accumulation", 5, False, "whole", 1)
    assert torch.equal(load_file(tmp_path / "found.ckpt")["weights"], whole["weights"])


def plain(resume=False, epochs=1, monitors=None, running_id="r", model=None):
    model = net() if model is None else model
    monitors = [CheckCallback("loss", "train", save_best=False)] if monitors is None else monitors
    trainer = quiet(
        model, F.mse_loss, sgd(model), epochs=epochs, callbacks=monitors, running_id=running_id, resume=resume
    )
    trainer.fit(loader(X, Y, 8))
    return trainer


def test_a_first_start_with_true_begins_from_scratch_and_says_so(capsys):
    trainer = plain(resume=True, epochs=2)
    assert "from scratch" in capsys.readouterr().out
    assert trainer.init_epoch == 2


def test_a_named_run_that_is_missing_is_an_error():
    with pytest.raises(CheckpointError, match="'other' to resume has no checkpoint"):
        plain(resume="other")


def test_true_takes_the_newest_file_of_all_folders_and_runs():
    for index, (folder, run) in enumerate((("one", "a"), ("two", "b"), ("one", "c"))):
        plain(epochs=index + 1, monitors=[CheckCallback("loss", "train", ckpt_dir=folder)], running_id=run)
        time.sleep(0.02)
    both = [CheckCallback("loss", "train", ckpt_dir=folder) for folder in ("one", "two")]
    assert plain(resume=True, epochs=3, monitors=both, running_id="new").init_epoch == 3
    assert load_file("one/c/checkpoint.ckpt")["epoch"] == 3
    resumed = plain(resume="b", epochs=2, monitors=both, running_id="new2")
    assert resumed.history["train"]["loss"][:2] == load_file("two/b/checkpoint.ckpt")["progress"]["train"]["loss"]
    assert resumed.init_epoch == 2


def test_an_integer_names_a_run_too():
    plain(epochs=2, running_id=0)
    assert plain(resume=0, epochs=3, running_id=1).init_epoch == 3


def test_a_damaged_newest_file_is_an_error_and_not_passed_over():
    plain(epochs=1)
    time.sleep(0.02)
    plain(epochs=1, running_id="s")
    Path("logs/s/checkpoint.ckpt").write_bytes(b"broken")
    with pytest.raises(CheckpointError, match=r"logs/s/checkpoint.ckpt.*"):
        plain(resume=True)


def test_resume_without_a_monitor_is_refused():
    with pytest.raises(ValueError, match="needs a CheckCallback"):
        plain(resume=True, monitors=[])


def test_epochs_stay_the_total():
    plain(epochs=3)
    resumed = plain(resume="r", epochs=3)
    assert (resumed.init_epoch, resumed.max_epochs) == (3, 3)
    assert len(resumed.fit(loader(X, Y, 8), epochs=2)["train"]["loss"]) == 2


def test_a_single_file_may_be_moved_and_renamed():
    """C4"""
    trainer = plain(epochs=2)
    Path("far/away").mkdir(parents=True)
    shutil.move("logs/r/checkpoint.ckpt", "far/away/renamed.bin")
    model = net(9)
    fresh = quiet(model, F.mse_loss, sgd(model), callbacks=[CheckCallback("loss", "train")], epochs=3)
    assert fresh.load_checkpoint("far/away/renamed.bin") is fresh
    assert torch.equal(flat(model), flat(trainer.model))
    assert (fresh.init_epoch, fresh.global_step) == (2, 8)
    assert len(fresh.fit(loader(X, Y, 8))["train"]["loss"]) == 1


def test_several_files_move_together_by_their_relative_paths():
    """C4: test() of a moved run finds the file of the first monitor."""

    def monitors():
        return [CheckCallback("loss", "train", mode=mode, ckpt_dir=f"a/{mode}") for mode in ("max", "min")]

    plain(epochs=3, monitors=monitors())
    shutil.move("a", "b")
    best = load_file("b/max/r/checkpoint.ckpt")
    assert (best["epoch"], load_file("b/min/r/checkpoint.ckpt")["epoch"]) == (1, 3)
    model = net(9)
    fresh = quiet(model, F.mse_loss, sgd(model), callbacks=monitors(), running_id="new")
    fresh.load_checkpoint("b/min/r/checkpoint.ckpt")
    other = net()
    other.load_state_dict(best["model_state"])
    assert fresh.test(loader(X, Y, 26))["loss"] == pytest.approx(F.mse_loss(other(X), Y).item(), rel=1e-6)
    assert [each.best_value for each in fresh.monitors] == [
        each["best_value"] for each in load_file("b/min/r/checkpoint.ckpt")["monitors"]
    ]


def test_files_of_the_predecessor_load():
    model = net(3)
    opt = Optimizer(sgd(model, momentum=0.9))
    state = {"model_state": model.state_dict(), "opt_state": [opt.state_dict()], "best_value": 0.25, "epoch": 4}
    torch.save(state, "old.ckpt")
    other = net()
    check = CheckCallback("loss", "train")
    trainer = quiet(other, F.mse_loss, sgd(other, momentum=0.9), callbacks=[check], epochs=6)
    trainer.load_checkpoint("old.ckpt")
    assert torch.equal(flat(other), flat(model))
    assert (trainer.init_epoch, check.best_value) == (5, 0.25)
    assert len(trainer.fit(loader(X, Y, 8))["train"]["loss"]) == 1


@pytest.mark.parametrize("wrong", ["shapes", "names", "optimizers", "groups", "newer", "other"])
def test_a_file_that_does_not_fit_changes_nothing(wrong):
    plain(epochs=2)
    content = load_file("logs/r/checkpoint.ckpt")
    if wrong == "shapes":
        content["model_state"]["2.weight"] = torch.ones(5, 8)
    elif wrong == "names":
        content["model_state"]["more"] = torch.ones(1)
    elif wrong == "optimizers":
        content["opt_state"] *= 2
    elif wrong == "groups":
        content["opt_state"][0]["opt_state"]["param_groups"] *= 2
    elif wrong == "newer":
        content["format_version"] = 99
    else:
        content = {"weights": torch.ones(1)}
    save_file("wrong.ckpt", content)
    model = net(5)
    opt = sgd(model, 0.3, momentum=0.9)
    trainer = quiet(model, F.mse_loss, opt, epochs=1)
    trainer.fit(loader(X, Y, 8))
    before = flat(model).clone(), str(opt.state_dict()), trainer.init_epoch, trainer.history
    texts = {"newer": "format 99", "other": "is no checkpoint"}
    with pytest.raises(CheckpointError, match=texts.get(wrong, "does not fit this trainer")):
        trainer.load_checkpoint("wrong.ckpt")
    assert torch.equal(flat(model), before[0])
    assert (str(opt.state_dict()), trainer.init_epoch, trainer.history) == before[1:]


def test_compiled_and_bare_models_load_each_others_files(monkeypatch):
    """E14"""
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: original(model, backend="eager"))
    for first, second in ((True, False), (False, True)):
        models = net(1), net(2)
        with quiet(
            models[0],
            F.mse_loss,
            sgd(models[0]),
            callbacks=[CheckCallback("loss", "train")],
            running_id="r",
            compile_model=first,
        ) as trainer:
            trainer.fit(loader(X, Y, 8))
        with quiet(models[1], F.mse_loss, sgd(models[1]), compile_model=second) as trainer:
            trainer.load_checkpoint("logs/r/checkpoint.ckpt")
        assert torch.equal(flat(models[0]), flat(models[1]))


def test_the_trainer_class_is_what_users_resume():
    model = net()
    options = {
        "callbacks": [CheckCallback("loss", "train", patience=5)],
        "resume": True,
        "device": "cpu",
        "show_info": False,
    }
    with Trainer(model, F.mse_loss, sgd(model), epochs=1, **options) as trainer:
        trainer.fit(loader(X, Y, 8))
