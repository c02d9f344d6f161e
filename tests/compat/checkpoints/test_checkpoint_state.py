"""Checkpoints (L1): Lightning's files and ours, each read by the other, and training that goes on from them."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deepepochs import compat
from deepepochs.compat import LightningTrainer
from deepepochs.engine import CheckpointError

from ..parity import QUIET, assert_same, light, lightning, recorder
from ..parity_modules import evaluation, loader

pytestmark = pytest.mark.filterwarnings("ignore")


def make(bases, hidden=9, lr=0.1):
    class Net(bases.LightningModule):
        def __init__(self, hidden=8, lr=0.1):
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 10))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.log("loss", loss, on_epoch=True)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            opt = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
            return [opt], [torch.optim.lr_scheduler.MultiStepLR(opt, [1, 2], 0.5)]

        def on_save_checkpoint(self, checkpoint):
            checkpoint["extra"] = {"epoch": self.current_epoch}

    torch.manual_seed(5)
    return Net(hidden=hidden, lr=lr)


def fit(trainer_class, bases, path=None, save=None, epochs=4, **options):
    """A fit from seed 9, or from a file; `save` is a callback that writes one."""
    module, logger = make(bases), recorder(bases.Logger)
    options = {**QUIET, "logger": logger, "max_epochs": epochs, **options}
    if save is not None:
        options.update(callbacks=[save], enable_checkpointing=True)
    trainer = trainer_class(**options)
    torch.manual_seed(9)
    trainer.fit(module, loader(), evaluation(), ckpt_path=path)
    return {
        "records": logger.records,
        "weights": dict(module.state_dict()),
        "steps": (trainer.global_step, trainer.current_epoch, trainer.fit_loop.epoch_loop._batches_that_stepped),
        "optimizer": trainer.optimizers[0].state_dict(),
        "rates": trainer.lr_scheduler_configs[0].scheduler.state_dict(),
    }


TRAINERS = {"Lightning": lambda: (lightning().Trainer, lightning()), "here": lambda: (LightningTrainer, light())}
MOMENTS = {
    "after an epoch": {"every_n_epochs": 2, "save_on_train_epoch_end": True},
    "after a validation": {"every_n_epochs": 2, "save_on_train_epoch_end": False},
    "within an epoch": {"every_n_train_steps": 6},
    "at an epoch's last batch": {"every_n_train_steps": 8},
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("writer", TRAINERS)
def test_training_goes_on_from_a_file_as_it_does_in_lightning(writer, moment, tmp_path):
    pytest.importorskip("lightning", reason="compares with Lightning")
    writes, bases = TRAINERS[writer]()
    callback = bases.callbacks.ModelCheckpoint(tmp_path, "file", save_top_k=-1, **MOMENTS[moment])
    fit(writes, bases, save=callback, epochs=2)
    path = tmp_path / "file.ckpt"
    expected = fit(*TRAINERS["Lightning"](), path=path)
    for bases in (lightning(), light()):
        assert_same(fit(LightningTrainer, bases, path=path), expected)


def test_the_files_hold_the_same():
    pytest.importorskip("lightning", reason="compares with Lightning")
    files = {}
    for name, of in TRAINERS.items():
        trains, bases = of()
        callback = bases.callbacks.ModelCheckpoint("files", name, monitor="val_loss")
        fit(trains, bases, save=callback, epochs=2)
        files[name] = torch.load(callback.best_model_path, weights_only=True)
    expected, found = files["Lightning"], files["here"]
    assert set(found) == set(expected)
    for key in set(expected) - {"callbacks", "pytorch-lightning_version"}:
        assert_same(found[key], expected[key], key)
    (one,), (other,) = expected["callbacks"], found["callbacks"]
    assert one == other
    assert set(found["callbacks"][other]) == set(expected["callbacks"][one])
    for key in ("best_model_score", "current_score", "monitor", "kth_value"):
        assert found["callbacks"][other][key] == expected["callbacks"][one][key]


def test_a_module_is_made_anew_from_either_file(tmp_path):
    pytest.importorskip("lightning", reason="compares with Lightning")
    for name, of in TRAINERS.items():
        trains, bases = of()
        save = bases.callbacks.ModelCheckpoint(tmp_path, name)
        weights = fit(trains, bases, save=save, epochs=1)["weights"]
        for other in TRAINERS.values():
            kind = type(make(other()[1]))
            loaded = kind.load_from_checkpoint(tmp_path / f"{name}.ckpt")
            assert loaded.hparams.hidden == 9
            assert_same(dict(loaded.state_dict()), weights)
            assert kind.load_from_checkpoint(tmp_path / f"{name}.ckpt", lr=0.5).hparams.lr == 0.5
            with pytest.raises(RuntimeError, match="size mismatch"):
                kind.load_from_checkpoint(tmp_path / f"{name}.ckpt", hidden=3)


@pytest.mark.parametrize("name", ["best", "last"])
def test_validation_of_the_best_and_the_last(name, tmp_path):
    save = compat.ModelCheckpoint(tmp_path, "best", monitor="val_loss", save_last=True)
    trainer = LightningTrainer(**{**QUIET, "enable_checkpointing": True}, max_epochs=4, callbacks=[save], logger=False)
    module = make(light(), lr=1.0)
    trainer.fit(module, loader(), evaluation())
    last = float(trainer.callback_metrics["val_loss"])
    found = trainer.validate(module, evaluation(), ckpt_path=name, verbose=False)[0]["val_loss"]
    assert found == pytest.approx(float(save.best_model_score) if name == "best" else last, rel=1e-6)


def test_a_file_that_cannot_be_used_is_an_error(tmp_path):
    trainer = LightningTrainer(**QUIET, max_epochs=1, logger=False)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        trainer.fit(make(light()), loader(), ckpt_path=tmp_path / "none.ckpt")
    (tmp_path / "torn.ckpt").write_bytes(b"PK torn")
    with pytest.raises(CheckpointError, match="damaged"):
        trainer.fit(make(light()), loader(), ckpt_path=tmp_path / "torn.ckpt")
    torch.save({"state_dict": {}, "evil": torch.nn.Linear(1, 1)}, tmp_path / "code.ckpt")
    with pytest.raises(CheckpointError, match="weights_only=False"):
        trainer.fit(make(light()), loader(), ckpt_path=tmp_path / "code.ckpt")
    trainer.fit(make(light()), loader())
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    with pytest.raises(KeyError, match="weights alone"):
        LightningTrainer(**QUIET, max_epochs=2, logger=False).fit(
            make(light()), loader(), ckpt_path=tmp_path / "weights.ckpt"
        )
    trainer.fit_loop.max_epochs = 3
    with pytest.raises(ValueError, match="ModelCheckpoint"):
        trainer.validate(make(light()), evaluation(), ckpt_path="best")


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    trainer = LightningTrainer(**QUIET, max_epochs=1, logger=False)
    trainer.fit(make(light()), loader())
    path = tmp_path / "file.ckpt"
    trainer.save_checkpoint(path)
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with warnings.catch_warnings(), pytest.raises(CheckpointError, match="no space"):
        trainer.save_checkpoint(path)
    assert path.read_bytes() == before


def test_the_best_may_be_tested_again_and_again(tmp_path):
    trainer = LightningTrainer(
        **{**QUIET, "enable_checkpointing": True}, max_epochs=3, default_root_dir=tmp_path, logger=False
    )
    module = make(light())
    trainer.fit(module, loader(), evaluation())
    found = [trainer.validate(module, evaluation(), ckpt_path="best", verbose=False) for _ in range(3)]
    assert found[0] == found[1] == found[2]
    best = trainer.checkpoint_callback.best_model_path
    assert trainer.ckpt_path == best
    (state,) = torch.load(best, weights_only=True)["callbacks"].values()
    assert state["best_model_path"] == best


def test_the_last_is_found_by_another_process(tmp_path):
    options = {**QUIET, "enable_checkpointing": True, "logger": False}

    def trainer(epochs):
        return LightningTrainer(
            **options, max_epochs=epochs, callbacks=[compat.ModelCheckpoint(tmp_path, "file", save_last=True)]
        )

    first = trainer(2)
    first.fit(make(light()), loader(), ckpt_path="last")  # there is none yet: it begins
    assert first.global_step == 8
    second = trainer(3)
    second.fit(make(light()), loader(), ckpt_path="last")
    assert (second.global_step, second.current_epoch) == (12, 3)
    assert second.ckpt_path == str(tmp_path / "last.ckpt")


def plateau(bases):
    class Plateau(type(make(bases))):
        def configure_optimizers(self):
            opt = torch.optim.SGD(self.parameters(), lr=1.0)
            rate = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=10.0)
            return {"optimizer": opt, "lr_scheduler": rate, "monitor": "val_loss"}

    torch.manual_seed(5)
    return Plateau()


def test_a_plateau_waits_for_an_epoch_of_its_own_after_a_resume(tmp_path):
    """What it follows was logged before the checkpoint, which does not hold it (Lightning's rule)."""
    pytest.importorskip("lightning", reason="compares with Lightning")
    save = compat.ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=6, save_top_k=-1)
    options = {**QUIET, "enable_checkpointing": True, "logger": False, "callbacks": [save]}
    LightningTrainer(**options, max_epochs=2).fit(plateau(light()), loader(), evaluation())
    found = []
    for trains, bases in (TRAINERS["Lightning"](), (LightningTrainer, lightning()), TRAINERS["here"]()):
        module = plateau(bases)
        trainer = trains(**QUIET, logger=False, max_epochs=3)
        torch.manual_seed(9)
        trainer.fit(module, loader(), evaluation(), ckpt_path=tmp_path / "step=6.ckpt")
        found.append([trainer.optimizers[0].param_groups[0]["lr"], dict(module.state_dict())])
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])


@pytest.mark.parametrize("at_end", [True, False])
def test_the_sanity_check_runs_as_in_lightning_after_a_resume(at_end, tmp_path):
    pytest.importorskip("lightning", reason="compares with Lightning")
    save = compat.ModelCheckpoint(tmp_path, "file", save_on_train_epoch_end=at_end)
    fit(LightningTrainer, light(), save=save, epochs=1)
    seen = []
    for trains, bases in (TRAINERS["Lightning"](), TRAINERS["here"]()):

        class Noting(bases.Callback):
            def on_sanity_check_start(self, trainer, pl_module):
                seen.append("sanity check")

        trainer = trains(**QUIET, logger=False, max_epochs=2, callbacks=[Noting()])
        trainer.fit(make(bases), loader(), evaluation(), ckpt_path=tmp_path / "file.ckpt")
    assert len(seen) == (2 if at_end else 0)


def test_what_was_saved_on_an_exception_goes_on_by_itself(tmp_path):
    pytest.importorskip("lightning", reason="uses Lightning's callback")
    from lightning.pytorch.callbacks import OnExceptionCheckpoint

    module = make(lightning())
    steps = []
    module.on_train_batch_start = lambda batch, index: steps.append(index) or (1 / 0 if len(steps) == 3 else None)
    options = {**QUIET, "enable_checkpointing": True, "logger": False, "max_epochs": 1}
    trainer = LightningTrainer(**options, callbacks=[OnExceptionCheckpoint(tmp_path, "rescue")])
    with pytest.raises(ZeroDivisionError):
        trainer.fit(module, loader())
    trainer.fit(module, loader())
    assert steps == [0, 1, 2, 2, 3]
