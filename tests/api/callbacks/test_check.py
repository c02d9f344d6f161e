"""CheckCallback (C3-C6): what is saved when, when training stops, and what test() uses."""

import os

import pytest
import torch
from torch.nn import functional as F

from deepepochs import Callback, CallbackException, CheckCallback, StopLoopException
from deepepochs.engine import CheckpointError, load_file, save_file

from ...engine.references import flat, net, regression
from ..helpers import loader, quiet, sgd

X, Y = regression(8)
DL = loader(X, Y, 8)


class Script(Callback):
    """Replaces validation results by given scores, and keeps the weights of each epoch."""

    def __init__(self, model, scores):
        super().__init__(priority=10)
        self.model, self.scores, self.weights = model, scores, []

    def on_after_val_epochs(self, metrics, epoch_idx, **others):
        self.weights.append(flat(self.model).clone())
        for name, values in self.scores.items():
            metrics[name] = values[epoch_idx]


def run(scores, *monitors, epochs=None, **options):
    """Trains with scripted scores; returns the trainer, the script and the progress."""
    model = net()
    script = Script(model, scores)
    epochs = epochs or len(next(iter(scores.values())))
    trainer = quiet(
        model, F.mse_loss, sgd(model), epochs=epochs, callbacks=[script, *monitors], running_id="r", **options
    )
    progress = trainer.fit(DL, DL)
    return trainer, script, progress


def saved_epoch(script, path="logs/r/checkpoint.ckpt"):
    """Which epoch's weights a file holds, counted from 1."""
    content = load_file(path)
    model = net()
    model.load_state_dict(content["model_state"])
    (index,) = [i for i, weights in enumerate(script.weights) if torch.equal(weights, flat(model))]
    assert content["epoch"] == index + 1
    return index + 1


NAN = float("nan")


@pytest.mark.parametrize(
    ("mode", "scores", "best"),
    [
        ("min", [3.0, 1.0, 2.0, 1.0], 2),
        ("max", [3.0, 1.0, 4.0, 4.0], 3),
        ("max", [-3.0, -1e12, -2.0], 3),
        ("min", [1e12, 2e12], 1),
        ("max", [0.0, 0.0], 1),
    ],
)
def test_the_best_is_kept(mode, scores, best):
    _, script, _ = run({"score": scores}, CheckCallback("score", mode=mode))
    assert saved_epoch(script) == best


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), NAN])
def test_what_is_not_finite_is_never_best_and_somebody_is_told(mode, value):
    """A metric that overflows may be infinite in the direction that counts as better (R1)."""
    monitor = CheckCallback("score", mode=mode)
    with pytest.warns(UserWarning, match="counts as no improvement"):
        _, script, _ = run({"score": [value, 2.0, value]}, monitor)
    assert (saved_epoch(script), monitor.best_value, monitor.worse_times) == (2, 2.0, 1)


def test_the_newest_is_kept_when_asked_for():
    _, script, _ = run({"score": [3.0, 1.0, 2.0]}, CheckCallback("score", save_best=False))
    assert saved_epoch(script) == 3


@pytest.mark.filterwarnings("ignore:.*is NaN")
@pytest.mark.parametrize(("mode", "best"), [("min", 2), ("max", 3)])
def test_nan_is_never_better(mode, best):
    _, script, progress = run({"score": [NAN, 0.5, 0.9, NAN]}, CheckCallback("score", mode=mode, patience=3))
    assert saved_epoch(script) == best
    assert len(progress["val"]["loss"]) == 4


def test_nan_is_warned_about_once():
    with pytest.warns(UserWarning, match="val score is NaN") as caught:
        run({"score": [NAN, NAN, 1.0, NAN]}, CheckCallback("score"))
    assert len(caught) == 1


@pytest.mark.filterwarnings("ignore:.*is NaN")
@pytest.mark.parametrize(
    ("scores", "patience", "epochs"),
    [
        ([1, 2, 3, 4, 5], 2, 3),
        ([5, 4, 5, 3, 4, 4, 1], 2, 6),
        ([1, 1, 1, 1], 3, 4),
        ([1, 2, 3, 4, 5], 0, 5),
        ([NAN, NAN, NAN, NAN], 2, 2),
        ([1, 2, 0, 2, 0.5], 2, 5),
    ],
)
def test_patience_counts_epochs_without_improvement(scores, patience, epochs):
    trainer, _, progress = run({"score": [float(each) for each in scores]}, CheckCallback("score", patience=patience))
    assert len(progress["val"]["loss"]) == trainer.init_epoch == epochs


def test_patience_counts_monitored_epochs_only():
    model = net()
    check = CheckCallback("score", patience=2)
    scores = {"score": [0, 1.0, 0, 2.0, 0, 3.0, 0, 4.0]}
    with quiet(model, F.mse_loss, sgd(model), epochs=8, callbacks=[Script(model, scores), check]) as trainer:
        progress = trainer.fit(DL, DL, val_freq=2)
    assert len(progress["train"]["loss"]) == 6
    assert check.worse_times == 2


def test_train_metrics_can_be_watched():
    model = net()
    with quiet(
        model, F.mse_loss, sgd(model), epochs=3, running_id="r", callbacks=[CheckCallback("loss", "train")]
    ) as trainer:
        trainer.fit(DL)
    assert load_file("logs/r/checkpoint.ckpt")["epoch"] == 3


def test_an_unknown_monitor_names_what_there_is():
    with pytest.raises(CallbackException, match=r"watches 'acc', the val metrics are \['loss', 'score'\]"):
        run({"score": [1.0]}, CheckCallback("acc"))
    with quiet(net(), F.mse_loss, callbacks=[CheckCallback("loss")]) as trainer:
        with pytest.raises(CallbackException, match="on_stage='train'"):
            trainer.fit(DL)


def test_each_monitor_has_a_file_and_each_file_all_monitors():
    monitors = [
        CheckCallback("a"),
        CheckCallback("b", mode="max"),
        CheckCallback("a", ckpt_dir="other"),
        CheckCallback("b", ckpt_dir="./logs/"),
    ]
    _, script, _ = run({"a": [2.0, 1.0, 3.0], "b": [1.0, 2.0, 3.0]}, *monitors)
    files = [
        "logs/r/checkpoint.ckpt",
        "logs/r/checkpoint-2.ckpt",
        "other/r/checkpoint.ckpt",
        "logs/r/checkpoint-3.ckpt",
    ]
    assert [saved_epoch(script, file) for file in files] == [2, 3, 2, 1]
    last = load_file(files[1])["monitors"]
    assert [each["best_value"] for each in last] == [1.0, 3.0, 1.0, 1.0]
    assert [each["worse_times"] for each in last] == [1, 0, 1, 2]


@pytest.mark.parametrize("priority", [-10, 0, 10])
def test_saves_are_finished_when_a_callback_stops_training(priority):
    class Stop(Callback):
        def on_after_epoch(self, **others):
            raise StopLoopException("enough")

    _, script, progress = run({"score": [1.0, 0.5]}, CheckCallback("score"), Stop(priority))
    assert len(progress["train"]["loss"]) == 1
    assert saved_epoch(script) == 1


def test_the_test_uses_the_best_weights_and_gives_the_present_ones_back():
    """C6"""
    trainer, script, _ = run({"score": [2.0, 1.0, 3.0]}, CheckCallback("score"))
    model = net()
    torch.nn.utils.vector_to_parameters(script.weights[1], model.parameters())
    expected = F.mse_loss(model(X), Y).item()
    present = flat(trainer.model).clone()
    assert trainer.test(DL)["loss"] == pytest.approx(expected, rel=1e-6)
    assert torch.equal(flat(trainer.model), present)

    def fail(preds, targets):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer.test(DL, metrics=[fail])
    assert torch.equal(flat(trainer.model), present)
    os.remove("logs/r/checkpoint.ckpt")
    assert trainer.test(DL)["loss"] == pytest.approx(F.mse_loss(trainer.model(X), Y).item(), rel=1e-6)


def test_the_first_monitor_with_a_file_decides():
    monitors = [CheckCallback("a", ckpt_dir="one"), CheckCallback("b", ckpt_dir="two", mode="max")]
    trainer, script, _ = run({"a": [2.0, 1.0, 3.0], "b": [3.0, 2.0, 1.0]}, *monitors)
    losses = []
    for weights in script.weights[:2]:
        model = net()
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
        losses.append(F.mse_loss(model(X), Y).item())
    assert trainer.test(DL)["loss"] == pytest.approx(losses[1], rel=1e-6)
    os.remove("one/r/checkpoint.ckpt")
    assert trainer.test(DL)["loss"] == pytest.approx(losses[0], rel=1e-6)


def test_a_damaged_file_is_an_error_in_test():
    trainer, _, _ = run({"score": [1.0]}, CheckCallback("score"))
    with open("logs/r/checkpoint.ckpt", "r+b") as file:
        file.truncate(100)
    with pytest.raises(RuntimeError, match="damaged"):
        trainer.test(DL)


@pytest.mark.parametrize("options", [{"on_stage": "test"}, {"mode": "auto"}, {"patience": -1}, {"patience": 1.5}])
def test_arguments_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        CheckCallback("loss", **options)


def test_a_metric_that_is_no_number_is_refused():
    with pytest.raises(CallbackException, match="needs a number"):
        run({"score": [torch.ones(3).numpy()]}, CheckCallback("score"))


def test_all_fields_of_a_file():
    """The table in the README."""
    _, _, progress = run({"score": [1.0, 0.5]}, CheckCallback("score"), precision="fp16")
    content = torch.load("logs/r/checkpoint.ckpt", weights_only=True)
    assert set(content) == {
        "format_version", "library", "torch", "running_id", "world_size", "model_state", "opt_state", "opt_params",
        "scaler_state", "seed", "epoch", "step", "progress", "progress_epochs", "monitors", "callbacks",
        "rng_state", "loader", "position",
    }  # fmt: skip
    assert (content["epoch"], content["step"], content["running_id"], content["world_size"]) == (2, 2, "r", 1)
    assert content["scaler_state"]["scale"] in (2.0**15, 2.0**16)
    assert content["progress"]["train"] == progress["train"]
    assert set(content["opt_state"][0]) == {"opt_state", "sched_state"}
    save_file("again.ckpt", content)


def test_a_save_that_fails_leaves_the_old_file_and_a_trainer_that_goes_on(monkeypatch):
    """A full disk in the second epoch."""
    model, whole = net(), net()
    check = CheckCallback("loss", "train", save_best=False)
    with quiet(model, F.mse_loss, sgd(model), epochs=4, running_id="r", callbacks=[check]) as trainer:
        original, calls = os.replace, []

        def full(*arguments):
            calls.append(arguments)
            if len(calls) == 2:
                raise OSError(28, "No space left on device")
            return original(*arguments)

        monkeypatch.setattr(os, "replace", full)
        with pytest.raises(CheckpointError, match="No space left"):
            trainer.fit(DL)
        assert load_file("logs/r/checkpoint.ckpt")["epoch"] == 1
        assert os.listdir("logs/r") == ["checkpoint.ckpt"]
        assert trainer.init_epoch == 2
        trainer.fit(DL)
    assert load_file("logs/r/checkpoint.ckpt")["epoch"] == 4
    with quiet(whole, F.mse_loss, sgd(whole), epochs=4) as trainer:
        trainer.fit(DL)
    assert torch.equal(flat(model), flat(whole))
