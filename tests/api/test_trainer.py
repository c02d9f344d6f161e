"""The Trainer (T1): what it shares, what it exposes, what it leaves behind."""

import resource

import pytest
import torch
from torch.nn import functional as F

import deepepochs as de
from deepepochs import Callback, metrics
from deepepochs.engine import Engine

from ..engine.references import net, regression
from .helpers import classes, loader, quiet, sgd

X, Y = regression(22)


def test_a_shared_engine_outlives_the_trainer():
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        for _ in range(2):
            with quiet(net(), F.mse_loss, engine=engine) as trainer:
                trainer.fit(loader(X, Y, 8))
                assert trainer.global_step == 2


def test_a_compiled_model_fires_the_events_of_its_forward(monkeypatch):
    original, seen = torch.compile, []
    monkeypatch.setattr(torch, "compile", lambda model: original(model, backend="eager"))

    class Watch(Callback):
        def on_before_train_forward(self, **others):
            seen.append("before")

        def on_after_train_forward(self, model_out, **others):
            seen.append(len(model_out))

    with quiet(net(), F.mse_loss, compile_model=True, callbacks=Watch()) as trainer:
        trainer.fit(loader(X, Y, 8))
    assert seen == ["before", 8, "before", 8, "before", 6]


def test_scripts_of_the_predecessor_find_its_names():
    class Old(Callback):
        def on_before_fit(self, trainer, epochs):
            assert trainer.main_process is True
            assert (trainer.init_epoch, trainer.max_epochs, epochs) == (0, 2, 2)
            assert (trainer.device.type, trainer.running_id, trainer.resume) == ("cpu", "7", False)
            assert trainer.hyper_params == {"lr": 0.1}
            assert trainer.metric_patch is de.TensorPatch
            assert trainer.opt.get_current_lr() == [0.1]
            assert trainer.opt[0].opt.param_groups[0]["lr"] == 0.1
            assert trainer.opt[0].get_last_lr() is None

        def on_before_train_epoch(self, trainer, task):
            assert trainer.current_task is task
            assert (task.batchs, task.stage, len(task.dataloader)) == (3, "train", 3)

        def on_after_train_batch(self, trainer, metrics, batch_idx):
            assert trainer.current_task.batch_size == (8, 8, 6)[batch_idx]

    model = net()
    options = {"epochs": 2, "running_id": 7, "hyper_params": {"lr": 0.1}, "callbacks": [Old()]}
    with quiet(model, F.mse_loss, sgd(model), **options) as trainer:
        trainer.fit(loader(X, Y, 8))
        assert trainer.init_epoch == 2


def test_training_data_can_stay_where_it_is():
    seen = []

    class Own(de.TrainerBase):
        def step(self, batch_x, batch_y, **step_args):
            seen.append(batch_x.device.type)

    with Own(net(), F.mse_loss, device="meta", show_info=False, epochs=1, auto_traindata_to_device=False) as trainer:
        trainer.fit([(X, Y)], [(X, Y)])
    assert seen == ["cpu", "meta"]


@pytest.mark.parametrize("patch", ["mean", "confusion"])
def test_many_steps_hold_no_more_memory(patch):
    """F2"""
    x, y = classes(2)
    model = net(outputs=3)
    metric = metrics.accuracy if patch == "confusion" else lambda preds, targets: preds.mean()

    def run(steps):
        with quiet(model, F.cross_entropy, sgd(model), metrics=[metric], metric_patch=patch) as trainer:
            trainer.fit([(x, y)] * steps)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = run(500)
    assert run(5000) - before < 3 * 1024


def test_close_may_be_called_again():
    trainer = quiet(net(), F.mse_loss)
    trainer.close()
    trainer.close()
