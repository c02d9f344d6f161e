"""Which .ckpt files a run deletes, and who hears of a new one: as under Lightning (L1)."""

import os
import shutil

import pytest
import torch
from torch import nn

from deepepochs.compat import LightningTrainer

from ..parity import QUIET, light, lightning, recorder
from ..parity_modules import evaluation, loader

pytestmark = pytest.mark.filterwarnings("ignore")

FAMILIES = {"lightning": lightning, "light": light}


def net(bases):
    class Net(bases.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def training_step(self, batch, batch_idx):
            return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx):
            self.log("height", float(self.current_epoch))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    return Net()


def fit(trains, bases, folder, epochs=1, path=None, logger=False, **settings):
    """A fit whose checkpoint callback writes into `folder`; gives the trainer."""
    save = bases.callbacks.ModelCheckpoint(folder, **settings)
    options = {**QUIET, "enable_checkpointing": True, "logger": logger, "max_epochs": epochs, "callbacks": [save]}
    trainer = trains(**options)
    trainer.fit(net(bases), loader(48), evaluation(8), ckpt_path=path)
    return trainer


def listing(root):
    return sorted(os.path.relpath(os.path.join(at, name), root) for at, _, names in os.walk(root) for name in names)


def same_run(fits, root):
    first = fits(root / "run", 1)
    fits(root / "run", 3, first.checkpoint_callback.best_model_path)


def other_run(fits, root):
    first = fits(root / "run", 1)
    fits(root / "other", 3, first.checkpoint_callback.best_model_path)


def copy(fits, root):
    first = fits(root / "run", 1)
    shutil.copy(first.checkpoint_callback.best_model_path, root / "copy.ckpt")
    fits(root / "other", 3, root / "copy.ckpt")


def copy_in_the_same_run(fits, root):
    first = fits(root / "run", 1)
    shutil.copy(first.checkpoint_callback.best_model_path, root / "run" / "copy.ckpt")
    fits(root / "run", 3, root / "run" / "copy.ckpt")


def relative(fits, root):
    first = fits(root / "run", 1)
    fits(root / "run", 3, os.path.relpath(first.checkpoint_callback.best_model_path))


def sibling_of_that_name(fits, root):
    first = fits(root / "run", 1)
    shutil.copy(first.checkpoint_callback.best_model_path, root / "copy.ckpt")
    fits(root / "ru", 3, root / "copy.ckpt")


def twice(fits, root):
    first = fits(root / "run", 1)
    second = fits(root / "run", 2, first.checkpoint_callback.best_model_path)
    fits(root / "run", 4, second.checkpoint_callback.best_model_path)


WAYS = [same_run, other_run, copy, copy_in_the_same_run, relative, sibling_of_that_name, twice]
SETTINGS = {
    "newest": {},
    "best": {"monitor": "height", "mode": "max"},
    "two best": {"monitor": "height", "mode": "max", "save_top_k": 2},
    "last": {"save_last": True},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_resumed_run_leaves_the_files_that_lightning_leaves(way, settings, tmp_path):
    """What a run began with stays, and so does what lies in another run's folder."""
    pytest.importorskip("lightning", reason="compares with Lightning")
    bases = lightning()
    found = {}
    sides = {
        "expected": (bases.Trainer, bases),
        "theirs": (LightningTrainer, bases),
        "here": (LightningTrainer, light()),
    }
    for side, (trains, kind) in sides.items():
        root = tmp_path / side
        root.mkdir()

        def fits(folder, epochs, path=None, trains=trains, kind=kind):
            return fit(trains, kind, folder, epochs, path, **SETTINGS[settings])

        way(fits, root)
        found[side] = listing(root)
    assert found["theirs"] == found["expected"]
    assert found["here"] == found["expected"]


def test_a_run_keeps_the_file_that_it_began_with_and_deletes_its_own(tmp_path):
    first = fit(LightningTrainer, light(), tmp_path)
    path = first.checkpoint_callback.best_model_path
    fit(LightningTrainer, light(), tmp_path, 4, path)
    assert listing(tmp_path) == ["epoch=0-step=3.ckpt", "epoch=3-step=12.ckpt"]


def test_a_start_through_a_link_is_kept_too(tmp_path):
    first = fit(LightningTrainer, light(), tmp_path / "run")
    (tmp_path / "start.ckpt").symlink_to(first.checkpoint_callback.best_model_path)
    fit(LightningTrainer, light(), tmp_path / "run", 3, tmp_path / "start.ckpt")
    assert "run/epoch=0-step=3.ckpt" in listing(tmp_path)


# ---- loggers


def hearing(base):
    """A logger that keeps what it reads from the callback each time it hears of a file."""
    logger = recorder(base)
    logger.heard = []

    def hear(callback):
        assert os.path.exists(callback.best_model_path)
        last = os.path.basename(callback.last_model_path)
        logger.heard.append((os.path.basename(callback.best_model_path), last, callback.save_top_k, callback.monitor))

    logger.after_save_checkpoint = hear
    return logger


@pytest.mark.parametrize("settings", SETTINGS)
def test_loggers_hear_of_each_file_as_under_lightning(settings, tmp_path):
    pytest.importorskip("lightning", reason="compares with Lightning")
    bases = lightning()
    heard = []
    for side, (trains, kind) in enumerate([(bases.Trainer, bases), (LightningTrainer, light())]):
        loggers = [hearing(kind.Logger), hearing(kind.Logger)]
        fit(trains, kind, tmp_path / str(side), 3, logger=loggers, **SETTINGS[settings])
        assert loggers[0].heard == loggers[1].heard
        heard.append(loggers[0].heard)
    assert heard[0] == heard[1]
    assert len(heard[0]) == (6 if settings == "last" else 3)


def test_the_default_checkpoint_callback_tells_the_loggers(tmp_path):
    logger = hearing(light().Logger)
    options = {**QUIET, "enable_checkpointing": True, "logger": logger, "default_root_dir": tmp_path}
    LightningTrainer(**options, max_epochs=2).fit(net(light()), loader(48))
    assert [each[0] for each in logger.heard] == ["epoch=0-step=3.ckpt", "epoch=1-step=6.ckpt"]
