"""Callbacks (L1): Lightning's own under this trainer, and the light ones, do what Lightning's do under Lightning."""

import os
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deepepochs import compat
from deepepochs.compat import LightningTrainer

from ..parity import QUIET, light, lightning, recorder
from ..parity_modules import evaluation, loader

pytestmark = pytest.mark.filterwarnings("ignore")


def net(bases, values=None):
    """A module whose `val_loss` is the next of `values`, or what it is."""

    class Net(bases.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)
            self.rest = list(values or [])

        def training_step(self, batch, batch_idx):
            loss = F.cross_entropy(self.layer(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            return F.cross_entropy(self.layer(batch[0]), batch[1])

        def on_validation_batch_end(self, outputs, batch, batch_idx):
            if not self.rest:
                self.log("val_loss", outputs)

        def on_validation_epoch_end(self):
            if self.rest and not self.trainer.sanity_checking:
                self.log("val_loss", float(self.rest[self.current_epoch]))

        def configure_optimizers(self):
            opts = torch.optim.SGD([{"params": [self.layer.weight]}, {"params": [self.layer.bias], "lr": 0.2}], lr=0.1)
            schedule = torch.optim.lr_scheduler.StepLR(opts, 2, 0.5)
            return {"optimizer": opts, "lr_scheduler": {"scheduler": schedule, "interval": "step", "name": "rate"}}

    torch.manual_seed(2)
    return Net()


def fit(trainer_class, bases, callbacks, values=None, logger=False, **options):
    module = net(bases, values)
    settings = {**QUIET, "logger": logger, "enable_checkpointing": None, "max_epochs": 6, **options}
    if not any("Checkpoint" in type(each).__name__ for each in callbacks):
        settings["enable_checkpointing"] = False
    trainer = trainer_class(**settings, callbacks=callbacks)
    trainer.fit(module, loader(48), evaluation(16) if values is not None or not options.get("max_steps") else None)
    return trainer


def ways():
    """Lightning; its bases and callbacks here; the light ones here."""
    return [(lightning().Trainer, lightning()), (LightningTrainer, lightning()), (LightningTrainer, light())]


FALLING = [5.0, 4.0, 4.5, 3.0, 3.5, 2.0]
STOPS = {
    "patience": ({"patience": 1}, [3.0, 2.0, 2.5, 1.0, 0.5, 0.1]),
    "delta": ({"patience": 2, "min_delta": 0.6}, [3.0, 2.9, 2.8, 2.7, 1.0, 0.1]),
    "threshold": ({"stopping_threshold": 1.0}, [3.0, 2.0, 0.5, 0.4, 0.3, 0.2]),
    "divergence": ({"divergence_threshold": 4.0}, [3.0, 2.0, 5.0, 1.0, 0.5, 0.1]),
    "nan": ({"patience": 5}, [3.0, float("nan"), 1.0, 1.0, 1.0, 1.0]),
    "max": ({"mode": "max", "patience": 1}, [3.0, 4.0, 4.0, 5.0, 6.0, 7.0]),
    "never": ({"patience": 3}, FALLING),
}


@pytest.mark.parametrize("name", STOPS)
def test_early_stopping_stops_where_lightnings_does(name):
    pytest.importorskip("lightning", reason="compares with Lightning")
    options, values = STOPS[name]
    found = []
    for trainer_class, bases in ways():
        stop = bases.callbacks.EarlyStopping("val_loss", **options)
        trainer = fit(trainer_class, bases, [stop], values)
        found.append((trainer.current_epoch, trainer.should_stop, stop.wait_count, stop.stopped_epoch))
        found[-1] += (float(stop.best_score),)
    assert found[1] == found[0]
    assert found[2] == found[0]


KEEPS = {
    "newest": {},
    "all": {"save_top_k": -1},
    "none but the last": {"save_top_k": 0, "save_last": True},
    "best and the last": {"monitor": "val_loss", "save_last": True},
    "best": {"monitor": "val_loss", "filename": "{epoch:02d}-{val_loss:.2f}"},
    "two best": {"monitor": "val_loss", "save_top_k": 2, "filename": "best", "save_last": True},
    "two worst": {"monitor": "val_loss", "save_top_k": 2, "mode": "max", "auto_insert_metric_name": False,
                  "filename": "e{epoch}_v{val_loss:.1f}"},
    "every second epoch": {"every_n_epochs": 2, "save_top_k": -1},
    "every two updates": {"every_n_train_steps": 2, "save_top_k": -1},
    "after training": {"save_on_train_epoch_end": True, "save_top_k": -1},
    "weights": {"save_weights_only": True},
}  # fmt: skip


@pytest.mark.parametrize("name", KEEPS)
def test_model_checkpoint_leaves_the_files_that_lightnings_leaves(name, tmp_path):
    pytest.importorskip("lightning", reason="compares with Lightning")
    found = []
    for index, (trainer_class, bases) in enumerate(ways()):
        folder = tmp_path / str(index)
        save = bases.callbacks.ModelCheckpoint(folder, **KEEPS[name])
        fit(trainer_class, bases, [save], FALLING)
        paths = {path.name: torch.load(path, weights_only=True) for path in sorted(folder.iterdir())}
        files = {name: (each["epoch"], each["global_step"], "optimizer_states" in each) for name, each in paths.items()}
        best = None if save.best_model_score is None else float(save.best_model_score)
        found.append((files, os.path.basename(save.best_model_path), os.path.basename(save.last_model_path), best))
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_checkpoints_go_to_the_loggers_folder_or_the_trainers(tmp_path):
    trainer = fit(LightningTrainer, light(), [compat.ModelCheckpoint()], FALLING, default_root_dir=tmp_path)
    assert trainer.checkpoint_callback.best_model_path == str(tmp_path / "checkpoints" / "epoch=5-step=18.ckpt")
    logger = compat.TensorBoardLogger(tmp_path, "name")
    trainer = fit(LightningTrainer, light(), [compat.ModelCheckpoint()], FALLING, logger=logger)
    assert re.search(r"name.version_0.checkpoints.epoch=5-step=18.ckpt", trainer.checkpoint_callback.best_model_path)


@pytest.mark.parametrize("options", [{}, {"logging_interval": "epoch"}, {"log_momentum": True}])
def test_learning_rates_are_logged_as_lightning_logs_them(options):
    pytest.importorskip("lightning", reason="compares with Lightning")
    found = []
    for trainer_class, bases in ways():
        logger = recorder(bases.Logger)
        monitor = bases.callbacks.LearningRateMonitor(**options)
        fit(trainer_class, bases, [monitor], logger=logger, max_epochs=2)
        found.append([(step, each) for step, each in logger.records if any("rate" in name for name in each)])
    assert len(found[0]) >= 1
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_a_missing_metric_is_an_error_that_names_those_there_are():
    for callback in (compat.EarlyStopping("acc"), compat.ModelCheckpoint("files", monitor="acc")):
        with pytest.raises((RuntimeError, ValueError), match="'acc'.*val_loss"):
            fit(LightningTrainer, light(), [callback], FALLING)
    fit(LightningTrainer, light(), [compat.EarlyStopping("acc", strict=False)], FALLING, max_epochs=1)


def test_time_ends_the_fit():
    trainer = fit(LightningTrainer, light(), [], FALLING, max_time={"seconds": 0}, max_epochs=-1)
    assert trainer.global_step == 0
    assert trainer.should_stop
    timer = next(each for each in trainer.callbacks if type(each).__name__ == "Timer")
    timer.duration_s, timer._spent_s = 100.0, 99.999
    trainer.fit(net(light(), FALLING), loader(48))
    assert 1 <= trainer.global_step < 1000, "the time that was spent before counts"
    assert timer.state_dict()["time_elapsed"]["train"] >= 99.999


class Groups:
    """Two named groups, two optimizers of a class, two schedulers on one of them."""

    def __call__(self, module):
        first = torch.optim.SGD([{"params": [module.layer.weight], "name": "head"}], lr=0.1)
        second = torch.optim.SGD(
            [{"params": [module.layer.bias]}, {"params": [torch.zeros(1)], "name": "rest"}], lr=0.2
        )
        return [first, second], [torch.optim.lr_scheduler.StepLR(second, 1), torch.optim.lr_scheduler.StepLR(second, 2)]


def test_learning_rates_are_named_as_lightning_names_them():
    pytest.importorskip("lightning", reason="compares with Lightning")
    found = []
    for trainer_class, bases in ways():
        module = net(bases, FALLING)
        module.automatic_optimization = False
        module.configure_optimizers = lambda module=module: Groups()(module)
        logger = recorder(bases.Logger)
        monitor = bases.callbacks.LearningRateMonitor(log_momentum=True)
        trainer_class(**QUIET, logger=logger, max_epochs=1, callbacks=[monitor]).fit(module, loader(48))
        found.append([each for each in logger.records if any("SGD" in name for name in each[1])])
    assert len(found[0][0][1]) > 3
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_the_reasons_to_stop_are_lightnings():
    pytest.importorskip("lightning", reason="compares with Lightning")
    for options, values in STOPS.values():
        reasons = []
        for trainer_class, bases in ways()[::2]:
            stop = bases.callbacks.EarlyStopping("val_loss", **options)
            fit(trainer_class, bases, [stop], values)
            reasons.append((stop.state_dict()["stopping_reason"], stop.stopping_reason_message is None))
            assert set(stop.state_dict()) >= {"wait_count", "best_score", "stopping_reason_message"}
        assert reasons[0] == reasons[1]


def test_callbacks_of_the_module_replace_those_of_their_class():
    class Own(compat.EarlyStopping):
        pass

    module = net(light(), FALLING)
    module.configure_callbacks = lambda: [Own("val_loss"), compat.ModelCheckpoint("files")]
    trainer = LightningTrainer(**QUIET, logger=False, max_epochs=1, callbacks=[compat.EarlyStopping("loss")])
    trainer.fit(module, loader(48), evaluation(16))
    assert [type(each).__name__ for each in trainer.callbacks] == ["Own", "ModelCheckpoint"]
    assert os.listdir("files") == ["epoch=0-step=3.ckpt"]


def test_wrong_arguments_are_errors():
    for make in (
        lambda: compat.EarlyStopping("loss", mode="least"),
        lambda: compat.ModelCheckpoint(save_top_k=3),
        lambda: compat.ModelCheckpoint(every_n_epochs=1, every_n_train_steps=1),
        lambda: compat.LearningRateMonitor("batch"),
    ):
        with pytest.raises(compat.MisconfigurationException):
            make()


def test_what_is_printed_without_any_argument(capsys, tmp_path):
    trainer = LightningTrainer(accelerator="cpu", max_epochs=1, default_root_dir=tmp_path)
    trainer.fit(net(light(), FALLING), loader(48), evaluation(16))
    printed = capsys.readouterr().out
    assert "Net: 650 parameters, 650 of them trained" in printed
    assert "epoch 1, update 3" in printed
    assert (tmp_path / "lightning_logs" / "version_0" / "checkpoints" / "epoch=0-step=3.ckpt").exists()
