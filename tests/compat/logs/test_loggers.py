"""Loggers (L1): TensorBoard files where Lightning writes them."""

import pytest

from deepepochs import compat

from ..parity import QUIET, light
from ..parity_modules import classifier, evaluation, loader

pytestmark = pytest.mark.filterwarnings("ignore")


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(each.step, each.value) for each in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_logged_values_are_in_the_files(tmp_path):
    logger = compat.TensorBoardLogger(tmp_path)
    case = classifier(light())
    trainer = compat.LightningTrainer(**QUIET, logger=logger, max_epochs=2)
    trainer.fit(case.module, loader(), evaluation())
    assert trainer.log_dir == str(tmp_path / "lightning_logs" / "version_0")
    found = scalars(trainer.log_dir)
    assert [step for step, _ in found["train_loss_step"]] == list(range(8))
    assert [step for step, _ in found["train_loss_epoch"]] == [3, 7]
    assert found["val_loss"][-1][1] == pytest.approx(float(trainer.callback_metrics["val_loss"]), rel=1e-6)
    assert logger.hparams == {"hidden": 14, "lr": 0.1}
    assert found["hp_metric"] == [(0, -1.0)]
    assert (tmp_path / "lightning_logs" / "version_0" / "hparams.yaml").read_text() == "hidden: 14\nlr: 0.1\n"
    assert compat.TensorBoardLogger(tmp_path).version == 1
    assert compat.TensorBoardLogger(tmp_path, "name", "mine").log_dir == str(tmp_path / "name" / "mine")


def test_a_development_run_logs_nothing(tmp_path):
    case = classifier(light())
    trainer = compat.LightningTrainer(**QUIET, logger=compat.TensorBoardLogger(tmp_path), fast_dev_run=True)
    trainer.fit(case.module, loader(), evaluation())
    assert list(tmp_path.iterdir()) == []
    trainer.logger.experiment.add_image("anything", None)
    assert trainer.global_step == 1


def test_one_may_write_with_the_loggers_own_tools(tmp_path):
    case = classifier(light())
    case.module.on_train_start = lambda: case.module.logger.experiment.add_scalar("own", 3.0, 7)
    trainer = compat.LightningTrainer(**QUIET, logger=compat.TensorBoardLogger(tmp_path), max_epochs=1)
    trainer.fit(case.module, loader())
    assert scalars(trainer.log_dir)["own"] == [(7, 3.0)]
