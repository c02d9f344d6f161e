"""LogCallback and the writer (C8, T16): everything is read back from the files."""

import json
import threading

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn import functional as F

from deepepochs import Callback, CheckCallback, LogCallback, Optimizer, metrics
from deepepochs.callbacks.log import as_numbers

from ...engine.references import net, regression
from ..helpers import classes, loader, quiet, sgd

X, Y = regression(12)
DL = loader(X, Y, 4)


def read(folder="logs/r"):
    """All scalars of a log: {tag: [(step, value), ...]}."""
    log = EventAccumulator(folder, size_guidance={"scalars": 0, "images": 0})
    log.Reload()
    return log, {tag: [(each.step, each.value) for each in log.Scalars(tag)] for tag in log.Tags()["scalars"]}


def approx(values, start=1):
    return [(index, pytest.approx(value, rel=1e-6)) for index, value in enumerate(values, start)]


def error(preds, targets):
    return (preds - targets).abs().mean()


def test_metrics_and_learning_rates_of_batches_and_epochs():
    model = net()
    opt = sgd(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.5)
    batch_losses = []

    class Spy(Callback):
        def on_after_train_batch(self, metrics, **others):
            batch_losses.append(float(metrics["loss"]))

    options = {"epochs": 3, "running_id": "r", "metrics": [error], "callbacks": [LogCallback("logs"), Spy()]}
    with quiet(model, F.mse_loss, Optimizer(opt, schedule), **options) as trainer:
        progress = trainer.fit(DL, loader(X, Y, 6))
        results = trainer.test(DL)
    _, found = read()
    for stage in ("train", "val"):
        for name in ("loss", "error"):
            assert found[f"{name}/epoch/{stage}"] == approx(progress[stage][name])
    assert found["loss/batch/train"] == approx(batch_losses)
    assert [step for step, _ in found["error/batch/val"]] == list(range(1, 7))
    assert found["learning_rate/epoch/train"] == approx([0.1, 0.05, 0.025])
    assert found["learning_rate/batch/train"] == approx([0.1] * 3 + [0.05] * 3 + [0.025] * 3)
    assert found["loss/test"] == [(3, pytest.approx(results["loss"], rel=1e-6))]


def test_every_optimizer_and_group_has_its_learning_rate():
    model = net()
    first = torch.optim.SGD([{"params": [model[0].weight], "lr": 0.3}, {"params": [model[0].bias], "lr": 0.2}], lr=1.0)
    second = torch.optim.SGD(model[2].parameters(), lr=0.1)
    with quiet(model, F.mse_loss, [first, second], running_id="r", callbacks=[LogCallback("logs")]) as trainer:
        trainer.fit(DL)
    _, found = read()
    rates = {tag: values[0][1] for tag, values in found.items() if tag.startswith("learning") and "epoch" in tag}
    assert rates == {
        "learning_rate_0_group_0/epoch/train": pytest.approx(0.3),
        "learning_rate_0_group_1/epoch/train": pytest.approx(0.2),
        "learning_rate_1/epoch/train": pytest.approx(0.1),
    }


def test_one_writer_for_all_and_no_thread_after_close():
    before = set(threading.enumerate())
    options = {"running_id": "r", "callbacks": [LogCallback("logs"), LogCallback("logs")]}
    trainer = quiet(net(), F.mse_loss, **options)
    for _ in range(2):
        trainer.fit(DL, epochs=1)
        trainer.test(DL)
    trainer.writer.board.add_text("note", "by hand", 1)
    assert trainer.writer.folder.name == "r"
    trainer.close()
    assert set(threading.enumerate()) == before
    log, found = read()
    assert [step for step, _ in found["loss/epoch/train"]] == [1, 1, 2, 2]
    assert "note/text_summary" in log.Tags()["tensors"]


def test_another_folder_is_refused():
    with quiet(net(), F.mse_loss, callbacks=[LogCallback("one"), LogCallback("two")]) as trainer:
        with pytest.raises(ValueError, match="same `log_dir`"):
            trainer.fit(DL)


def test_an_exception_leaves_a_readable_log_and_no_thread():
    before = set(threading.enumerate())

    class Fails(Callback):
        def on_before_train_batch(self, trainer, batch_idx, **others):
            if trainer.init_epoch == 1 and batch_idx == 2:
                raise ZeroDivisionError

    trainer = quiet(net(), F.mse_loss, epochs=3, running_id="r", callbacks=[LogCallback("logs"), Fails()])
    with pytest.raises(ZeroDivisionError):
        trainer.fit(DL)
    assert set(threading.enumerate()) == before
    _, found = read()
    assert len(found["loss/epoch/train"]) == 1
    assert len(found["loss/batch/train"]) == 5
    trainer.close()


def test_hyper_parameters_stand_with_the_test_metrics_in_the_same_run():
    options = {
        "running_id": "r",
        "hyper_params": {"lr": 0.1, "net": "mlp", "deep": [1, 2]},
        "callbacks": LogCallback("logs"),
    }
    with quiet(net(), F.mse_loss, **options) as trainer:
        trainer.fit(DL)
        results = trainer.test(DL)
    log, found = read()
    assert found["loss/test"] == [(1, pytest.approx(results["loss"], rel=1e-6))]
    assert b"loss/test" in log.summary_metadata["_hparams_/experiment"].plugin_data.content
    plugins = log.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    for text in (b"lr", b"mlp", b"[1, 2]"):
        assert text in plugins


@pytest.mark.parametrize("example", [None, torch.ones(2, 4)])
def test_the_graph_is_written(example):
    options = {"running_id": "r", "callbacks": [LogCallback("logs", log_graph=True, example_input=example)]}
    with quiet(net(), F.mse_loss, **options) as trainer:
        trainer.fit(DL)
        assert trainer.model.training
    log, _ = read()
    assert log.Tags()["graph"] is True


def test_a_graph_that_cannot_be_traced_is_a_warning():
    class Own(torch.nn.Linear):
        def forward(self, x):
            if torch.jit.is_tracing():
                raise ValueError("no graph of me")
            return super().forward(x)

    with quiet(Own(4, 1), F.mse_loss, running_id="r", callbacks=[LogCallback("logs", log_graph=True)]) as trainer:
        with pytest.warns(UserWarning, match="graph cannot be logged"):
            progress = trainer.fit(DL)
    assert len(progress["train"]["loss"]) == 1


def test_only_the_main_process_writes(tmp_path):
    with quiet(net(), F.mse_loss, running_id="r", callbacks=[LogCallback("logs")]) as trainer:
        trainer.engine.processes.is_main = False
        trainer.writer._is_main = False
        trainer.fit(DL)
    assert not (tmp_path / "logs").exists()


def test_a_fast_loop_is_thinned_out():
    x, y = X[:1], Y[:1]
    with quiet(net(), F.mse_loss, running_id="r", callbacks=[LogCallback("logs")]) as trainer:
        trainer.fit([(x, y)] * 1000)
    _, found = read()
    steps = [step for step, _ in found["loss/batch/train"]]
    assert steps[:200] == list(range(1, 201))
    assert 200 < len(steps) < 800


def test_vectors_become_one_curve_for_each_element():
    assert as_numbers({"v/epoch/val": torch.tensor([1.0, 2.0]), "s": 3}) == {
        "v_0/epoch/val": 1.0,
        "v_1/epoch/val": 2.0,
        "s": 3.0,
    }


def test_classification_metrics_can_be_logged():
    x, y = classes(12)
    options = {"running_id": "r", "metrics": [metrics.f1], "callbacks": [LogCallback("logs")]}
    with quiet(net(outputs=3), F.cross_entropy, **options) as trainer:
        results = trainer.test(loader(x, y, 5))
    _, found = read()
    assert found["f1/test"][0][1] == pytest.approx(results["f1"])


def test_json_lines_have_the_same_names_and_values():
    options = {"running_id": "r", "hyper_params": {"lr": 0.1, "dtype": torch.float32}, "metrics": [error]}
    logs = [LogCallback("logs"), LogCallback("logs", json_lines=True)]
    with quiet(net(), F.mse_loss, epochs=2, callbacks=logs, **options) as trainer:
        trainer.fit(DL, DL)
        results = trainer.test(DL)
    _, found = read()
    with open("logs/r/scalars.jsonl", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    last = records.pop()
    assert last == {
        "step": 2,
        "loss/test": results["loss"],
        "error/test": results["error"],
        "hyper_params": {"lr": 0.1, "dtype": "torch.float32"},
    }
    curves = {}
    for record in records:
        step = record.pop("step")
        for tag, value in record.items():
            curves.setdefault(tag, []).append((step, pytest.approx(value, rel=1e-6)))
    assert {tag: found[tag] for tag in curves} == curves
    assert {tag.split("/")[0] for tag in curves} == {"loss", "error", "learning_rate"}


def test_a_graph_has_no_place_in_json_lines():
    with pytest.raises(ValueError, match="JSON lines"):
        LogCallback(log_graph=True, json_lines=True)


@pytest.mark.parametrize("every_n_steps", [None, 4])
def test_steps_continue_after_resume(every_n_steps):
    """C7, C8: the batch counter goes on where the checkpoint was written, within an epoch too; each is there once."""

    class Fails(Callback):
        def on_before_train_batch(self, trainer, **others):
            if trainer.global_step == 5:
                raise ZeroDivisionError

    def run(*more):
        check = CheckCallback("loss", ckpt_dir="c", **({"every_n_steps": every_n_steps} if every_n_steps else {}))
        callbacks = [check, LogCallback("logs"), *more]
        model = net()
        with quiet(model, F.mse_loss, sgd(model), epochs=3, running_id="r", resume="r" if not more else False,
                   callbacks=callbacks) as trainer:  # fmt: skip
            trainer.fit(DL, DL)

    with pytest.raises(ZeroDivisionError):
        run(Fails())
    run()
    _, found = read()
    assert [step for step, _ in found["loss/batch/train"]] == list(range(1, 10))
    assert [step for step, _ in found["loss/batch/val"]] == list(range(1, 10))
    assert [step for step, _ in found["loss/epoch/train"]] == [1, 2, 3]
