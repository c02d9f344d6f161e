"""configure_optimizers (L1): every form that it may return, and what it may not."""

import pytest
import torch
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau, StepLR

from deepepochs.compat import LightningTrainer, MisconfigurationException

from .parity import QUIET, assert_same, light, lightning
from .parity_modules import evaluation, loader

pytestmark = pytest.mark.filterwarnings("ignore")


def sgd(module, lr=0.1):
    return torch.optim.SGD(module.parameters(), lr=lr)


def config(**settings):
    return lambda opt: {"scheduler": StepLR(opt, 1, 0.5), **settings}


FORMS = {
    "one": sgd,
    "list": lambda m: [sgd(m)],
    "tuple": lambda m: (sgd(m),),
    "two lists": lambda m: (lambda opt: ([opt], [StepLR(opt, 1), ExponentialLR(opt, 0.5)]))(sgd(m)),
    "list and scheduler": lambda m: (lambda opt: ([opt], StepLR(opt, 1)))(sgd(m)),
    "list and dictionary": lambda m: (lambda opt: [[opt], [config(interval="step", frequency=2)(opt)]])(sgd(m)),
    "dictionary": lambda m: {"optimizer": sgd(m)},
    "dictionary with scheduler": lambda m: (lambda opt: {"optimizer": opt, "lr_scheduler": StepLR(opt, 1)})(sgd(m)),
    "dictionary with dictionary": lambda m: (
        lambda opt: {"optimizer": opt, "lr_scheduler": config(name="rate", interval="step")(opt)}
    )(sgd(m)),
    "dictionaries": lambda m: (lambda opt: [{"optimizer": opt, "lr_scheduler": config(frequency=2)(opt)}])(sgd(m)),
    "plateau with monitor outside": lambda m: (
        lambda opt: {"optimizer": opt, "lr_scheduler": ReduceLROnPlateau(opt, patience=0), "monitor": "val_loss"}
    )(sgd(m, 3.0)),
    "plateau on steps": lambda m: (
        lambda opt: {
            "optimizer": opt,
            "lr_scheduler": {
                "scheduler": ReduceLROnPlateau(opt, patience=0),
                "monitor": "loss",
                "interval": "step",
                "frequency": 2,
            },
        }
    )(sgd(m, 3.0)),
    "plateau that is not strict": lambda m: (
        lambda opt: {
            "optimizer": opt,
            "lr_scheduler": {"scheduler": ReduceLROnPlateau(opt), "monitor": "none", "strict": False},
        }
    )(sgd(m)),
    "one cycle": lambda m: (
        lambda opt: {
            "optimizer": opt,
            "lr_scheduler": {"scheduler": OneCycleLR(opt, 0.5, total_steps=12), "interval": "step"},
        }
    )(sgd(m)),
    "none": lambda m: None,
}


def run(trainer_class, bases, form, manual=False):
    class Net(bases.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 10)
            self.automatic_optimization = not manual

        def training_step(self, batch, batch_idx):
            loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1]))

        def configure_optimizers(self):
            return form(self)

    torch.manual_seed(0)
    module = Net()
    trainer = trainer_class(**QUIET, logger=False, max_epochs=3)
    trainer.fit(module, loader(), evaluation())
    configs = [(each.name, each.interval, each.frequency, each.monitor) for each in trainer.lr_scheduler_configs]
    states = [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs]
    return [configs, states, [each.state_dict() for each in trainer.optimizers], dict(module.state_dict())]


@pytest.mark.parametrize("name", FORMS)
def test_every_form_trains_as_in_lightning(name):
    pytest.importorskip("lightning", reason="compares with Lightning")
    expected = run(lightning().Trainer, lightning(), FORMS[name])
    assert_same(run(LightningTrainer, lightning(), FORMS[name]), expected)
    assert_same(run(LightningTrainer, light(), FORMS[name]), expected)


def foreign(module):
    other = sgd(module)
    return [sgd(module)], [StepLR(other, 1)]


class Plain:
    """A scheduler without torch's interface."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize(
    ("form", "error", "match"),
    [
        (lambda m: "sgd", MisconfigurationException, "must return.*'sgd'"),
        (lambda m: {"opt": sgd(m)}, MisconfigurationException, "opt"),
        (lambda m: [sgd(m), sgd(m)], RuntimeError, "one optimizer, got 2.*automatic_optimization = False"),
        (foreign, MisconfigurationException, "StepLR drives an optimizer"),
        (lambda m: (lambda o: ([o], [ReduceLROnPlateau(o)]))(sgd(m)), MisconfigurationException, "monitor"),
        (lambda m: (lambda o: ([o], [{"interval": "step"}]))(sgd(m)), MisconfigurationException, "scheduler"),
        (lambda m: (lambda o: ([o], [config(interval="day")(o)]))(sgd(m)), MisconfigurationException, "'day'"),
        (lambda m: (lambda o: ([o], [Plain(o)]))(sgd(m)), MisconfigurationException, "lr_scheduler_step"),
        (
            lambda m: (lambda o: ([o], [{"scheduler": ReduceLROnPlateau(o), "monitor": "acc"}]))(sgd(m)),
            MisconfigurationException,
            "'acc', which was not logged.*val_loss",
        ),
    ],
)
def test_other_forms_are_errors(form, error, match):
    with pytest.raises(error, match=match):
        run(LightningTrainer, light(), form)


def test_the_wrapper_is_an_optimizer_of_its_class():
    seen = []

    def form(module):
        module.on_train_start = lambda: seen.append((module.optimizers(), module.optimizers(use_pl_optimizer=False)))
        return sgd(module)

    run(LightningTrainer, light(), form)
    wrapped, own = seen[0]
    assert isinstance(wrapped, torch.optim.SGD)
    assert wrapped.optimizer is own
    assert wrapped.param_groups is own.param_groups
    with pytest.raises(TypeError, match="must be a function"):
        wrapped.step(closure=3)
