"""self.log (L1, L2): every option, from every hook, leaves what Lightning leaves."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, SumMetric

from deepepochs import compat
from deepepochs.compat import LightningTrainer, MisconfigurationException
from deepepochs.compat.data.batches import batch_size

from ..parity import QUIET, assert_same, light, lightning, recorder

pytestmark = pytest.mark.filterwarnings("ignore")
X = torch.randn(14, 3, generator=torch.Generator().manual_seed(0))


def loader(samples=14):
    return DataLoader(TensorDataset(X[:samples]), batch_size=4)


def module(bases, hook, logs):
    """A module that calls `logs(module, value, index)` in one hook."""

    class Net(bases.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.mean, self.sum = MeanMetric(), SumMetric()
            self.number = 0

        def count(self):
            self.number += 1
            return self.number

        def training_step(self, batch, batch_idx):
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            return self.layer(batch[0]).mean()

        def test_step(self, batch, batch_idx):
            return self.layer(batch[0]).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    own = getattr(Net, hook)

    def logging(self, *args, **kwargs):
        logs(self, torch.tensor(1.5) * self.count(), self.number)
        return own(self, *args, **kwargs)

    setattr(Net, hook, logging)
    torch.manual_seed(4)
    return Net()


def run(trainer_class, bases, hook, logs, validations=1, **options):
    net, logger = module(bases, hook, logs), recorder(bases.Logger)
    settings = {**QUIET, "max_epochs": 2, **options}
    trainer = trainer_class(**settings, logger=logger)
    seen = []
    net.on_train_epoch_end = lambda: seen.append(dict(trainer.callback_metrics))
    val = [loader(14 - 4 * index) for index in range(validations)]
    trainer.fit(net, loader(), val if validations > 1 else val[0])
    returned = trainer.test(net, loader(10), verbose=False)
    return [logger.records, seen, dict(trainer.callback_metrics), dict(trainer.logged_metrics), returned]


OPTIONS = {
    "defaults": {},
    "step": {"on_step": True, "on_epoch": False},
    "epoch": {"on_step": False, "on_epoch": True},
    "both": {"on_step": True, "on_epoch": True},
    "max": {"reduce_fx": "max", "on_epoch": True},
    "min": {"reduce_fx": torch.min, "on_epoch": True},
    "sum": {"reduce_fx": "sum", "on_epoch": True},
    "built-in": {"reduce_fx": max, "on_epoch": True},
    "size": {"batch_size": 3, "on_epoch": True},
    "bar": {"prog_bar": True, "logger": False},
    "one name": {"add_dataloader_idx": False, "on_epoch": True},
}
STEPS = ["training_step", "validation_step", "test_step"]
HOOK_NAMES = """on_train_start on_train_epoch_start on_train_batch_start on_train_batch_end on_before_backward
on_after_backward on_before_optimizer_step on_before_zero_grad optimizer_step optimizer_zero_grad
on_validation_start on_validation_epoch_start on_validation_batch_start on_validation_batch_end
on_validation_epoch_end on_test_start on_test_epoch_end"""
HOOKS = HOOK_NAMES.split()


def compare(hook, logs, **options):
    pytest.importorskip("lightning", reason="compares with Lightning")
    calls = []

    def counted(net, value, index):
        calls.append(index)
        logs(net, value, index)

    args = (hook, counted)
    expected = run(lightning().Trainer, lightning(), *args, **options)
    assert_same(run(LightningTrainer, lightning(), *args, **options), expected)
    assert_same(run(LightningTrainer, light(), *args, **options), expected)
    assert calls


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("hook", STEPS)
def test_every_option_in_every_step(hook, name):
    compare(hook, lambda net, value, index: net.log("value", value, **OPTIONS[name]))


@pytest.mark.parametrize("hook", HOOKS)
def test_the_defaults_of_every_hook(hook):
    compare(hook, lambda net, value, index: net.log("value", value))


@pytest.mark.parametrize("hook", ["training_step", "validation_step"])
def test_metric_objects(hook):
    def logs(net, value, index):
        net.mean.update(value)
        net.sum(value)
        net.log_dict({"mean": net.mean, "sum": net.sum}, on_epoch=True)

    compare(hook, logs)


def test_several_validation_loaders():
    def logs(net, value, index):
        net.log("value", value)
        net.log("both", value, on_step=True, on_epoch=True)

    compare("validation_step", logs, validations=2)


@pytest.mark.parametrize(
    "options", [{"log_every_n_steps": 3}, {"accumulate_grad_batches": 3}, {"val_check_interval": 2}]
)
def test_when_loggers_get_values(options):
    compare("training_step", lambda net, value, index: net.log("value", value, on_epoch=True), **options)


def test_values_of_many_types():
    def logs(net, value, index):
        net.log_dict(
            {"int": index, "float": 0.1 * index, "bool": torch.tensor(index % 2 == 0), "one": value.view(1, 1)}
        )
        net.log("step", float(index * 10))  # it says the logger's step

    compare("training_step", logs)


@pytest.mark.parametrize(
    ("hook", "logs", "error", "match"),
    [
        ("training_step", lambda net: net.log("v", torch.ones(2)), ValueError, r"one number.*\(2,\)"),
        ("training_step", lambda net: net.log("v", "1"), ValueError, "got str"),
        ("training_step", lambda net: net.log("v", 1.0, reduce_fx="median"), ValueError, "median"),
        ("training_step", lambda net: net.log("v/dataloader_idx_0", 1.0), ValueError, "dataloader_idx"),
        ("training_step", lambda net: net.log("v", 1.0, on_step=False, on_epoch=False), ValueError, "nothing"),
        ("training_step", lambda net: net.log("v", MeanMetric()), ValueError, "attribute"),
        ("on_train_epoch_start", lambda net: net.log("v", 1.0, on_step=True), ValueError, "on_step=False"),
        ("on_fit_start", lambda net: net.log("v", 1.0), ValueError, "on_fit_start"),
        ("configure_optimizers", lambda net: net.log("v", 1.0), ValueError, "configure_optimizers"),
    ],
)
def test_what_cannot_be_logged_is_an_error(hook, logs, error, match):
    with pytest.raises(error, match=match):
        run(LightningTrainer, light(), hook, lambda net, value, index: logs(net))


def test_one_name_with_two_meanings_is_an_error():
    with pytest.raises(MisconfigurationException, match="twice"):
        run(
            LightningTrainer,
            light(),
            "training_step",
            lambda net, value, index: net.log("v", value, on_epoch=bool(index % 2)),
        )


def test_without_a_trainer_it_warns_and_does_nothing():
    net = module(light(), "training_step", lambda net, value, index: net.log("v", value))
    with pytest.warns(UserWarning, match="no trainer"):
        assert net.training_step([X[:4]], 0).shape == ()


def test_the_size_of_a_batch_is_that_of_its_first_tensor():
    for batch, size in (
        (torch.zeros(3, 2), 3),
        (torch.tensor(1.0), 1),
        (["text", {"a": [torch.zeros(4)]}], 4),
        ((1, 2.0, torch.zeros(5, 1)), 5),
    ):
        assert batch_size(batch) == size
    with pytest.warns(UserWarning, match="ambiguous"):
        assert batch_size([torch.zeros(2), torch.zeros(3)]) == 2
    with pytest.raises(MisconfigurationException, match="batch_size=n"):
        batch_size({"a": "text"})


def test_progress_bar_metrics_are_numbers():
    net = module(light(), "training_step", lambda net, value, index: net.log("v", value, prog_bar=True))
    trainer = compat.LightningTrainer(**QUIET, logger=False, max_epochs=1)
    trainer.fit(net, loader())
    assert trainer.progress_bar_metrics == {"v": 6.0}
    assert F.mse_loss(trainer.callback_metrics["v"], torch.tensor(6.0)) == 0
