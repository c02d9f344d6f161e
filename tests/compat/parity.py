"""Runs a parity case with one trainer on one base library and keeps all that can be compared."""

import random
import warnings

import numpy
import torch

from deepepochs.compat import LightningTrainer

from .parity_modules import CASES, light, lightning

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "log_every_n_steps": 1,
}


def recorder(base):
    """A logger that keeps what it gets."""

    class Recorder(base):
        name, version, save_dir, log_dir = "recorder", 0, None, None

        def __init__(self):
            super().__init__()
            self.records = []

        @property
        def experiment(self):
            return None

        def log_hyperparams(self, params=None, *args, **kwargs):
            self.records.append(("hparams", dict(params or {})))

        def log_metrics(self, metrics, step=None):
            self.records.append((step, dict(metrics)))

    return Recorder()


def run(name, bases, trainer_class, **options):
    """Runs a case from seed 3.

    Returns:
        (module, everything that can be compared).
    """
    random.seed(3)
    numpy.random.seed(3)
    torch.manual_seed(3)
    case = CASES[name](bases)
    logger = recorder(bases.Logger)
    settings = {**QUIET, "logger": logger, "callbacks": case.callbacks, **case.trainer, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = trainer_class(**settings)
        returned = [call(trainer, each, case) for each in case.calls]
    return case.module, {
        "returned": returned,
        "records": logger.records,
        "weights": dict(case.module.state_dict()),
        "callback_metrics": dict(trainer.callback_metrics),
        "progress_bar_metrics": dict(trainer.progress_bar_metrics),
        "steps": (trainer.global_step, trainer.current_epoch, trainer.should_stop),
        "optimizers": [each.state_dict() for each in trainer.optimizers],
        "rates": [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs],
        "random": torch.rand(()),
    }


def call(trainer, name, case):
    if case.datamodule is not None:
        return getattr(trainer, name)(case.module, datamodule=case.datamodule)
    if name == "fit":
        return trainer.fit(case.module, case.train, case.val)
    options = {} if name == "predict" else {"verbose": False}
    return getattr(trainer, name)(case.module, case.val, **options)


def assert_same(found, expected, path=""):
    """Equal to the last bit, in structure and order."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), path
        assert torch.equal(found, expected), path
    elif isinstance(expected, dict):
        assert set(found) == set(expected), (path, sorted(found), sorted(expected))
        for key in expected:
            assert_same(found[key], expected[key], f"{path}/{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), (path, found, expected)
        for index, (one, other) in enumerate(zip(found, expected)):
            assert_same(one, other, f"{path}/{index}")
    elif isinstance(expected, float) and expected != expected:
        assert found != found, path
    else:
        assert found == expected or callable(expected), (path, found, expected)


__all__ = ["CASES", "LightningTrainer", "assert_same", "light", "lightning", "run"]
