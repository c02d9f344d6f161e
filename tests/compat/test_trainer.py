"""LightningTrainer (L1): the hooks that Lightning calls, in its order and state; what it refuses."""

import inspect
import json

import pytest
import torch

from deepepochs import compat
from deepepochs.compat import LightningTrainer, MisconfigurationException

from .parity import QUIET, light, lightning
from .parity_modules import classifier, dqn, evaluation, gan, loader
from .traces import FILE, SETUPS, record

pytestmark = pytest.mark.filterwarnings("ignore")
RECORDED = json.loads(FILE.read_text())["traces"]


@pytest.mark.parametrize("name", SETUPS)
def test_hooks_are_called_as_lightning_calls_them(name):
    assert record(name, light(), LightningTrainer) == RECORDED[name]


@pytest.mark.parametrize("name", ["plain", "all calls", "manual", "exception"])
def test_the_recordings_are_lightnings(name):
    pl = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
    if pl.__version__ != json.loads(FILE.read_text())["version"]:
        pytest.skip(f"recorded with another version than {pl.__version__}")
    assert record(name, lightning(), pl.Trainer) == RECORDED[name]
    assert record(name, lightning(), LightningTrainer) == RECORDED[name]


def quiet(**options):
    return LightningTrainer(**{**QUIET, "logger": False, **options})


def test_an_attribute_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(AttributeError, match="no attribute 'tuner'.*callback_metrics.*world_size"):
        quiet().tuner  # noqa: B018


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"profiler": "simple"}, NotImplementedError, "profiler='simple'.*torch.profiler"),
        ({"strategy": "fsdp"}, NotImplementedError, "ddp.*'fsdp'"),
        ({"accelerator": "tpu"}, NotImplementedError, "cpu.*'tpu'"),
        ({"devices": 3}, MisconfigurationException, "3 processes, this job has 1.*torchrun"),
        ({"precision": "8"}, ValueError, "32-true.*'8'"),
        ({"accumulate_grad_batches": 0}, MisconfigurationException, "at least 1, got 0"),
        ({"gradient_clip_algorithm": "sign"}, MisconfigurationException, "norm.*'sign'"),
        ({"gradient_clip_val": "1"}, TypeError, "must be a number"),
        ({"limit_val_batches": 1.5}, MisconfigurationException, "limit_val_batches.*1.5"),
        ({"max_epochs": -2}, MisconfigurationException, "max_epochs.*-2"),
        ({"check_val_every_n_epoch": None}, MisconfigurationException, "val_check_interval"),
        ({"max_time": "3 hours"}, MisconfigurationException, "DD:HH:MM:SS"),
        ({"callbacks": [object()]}, TypeError, "callbacks of Lightning.*object"),
        ({"enable_checkpointing": False, "callbacks": [compat.ModelCheckpoint()]}, ValueError, "enable_checkpointing"),
    ],
)
def test_arguments_that_cannot_be_met_are_errors(options, error, match):
    with pytest.raises(error, match=match):
        quiet(**options)


def test_every_argument_of_lightning_is_known():
    pl = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
    expected = inspect.signature(pl.Trainer.__init__).parameters
    found = inspect.signature(LightningTrainer.__init__).parameters
    assert set(found) == set(expected)
    assert {name: each.default for name, each in found.items()} == {
        name: each.default for name, each in expected.items()
    }
    for method in ("fit", "validate", "test", "predict", "save_checkpoint"):
        own = list(inspect.signature(getattr(LightningTrainer, method)).parameters)
        assert own == list(inspect.signature(getattr(pl.Trainer, method)).parameters), method


def test_what_does_not_go_together_is_an_error():
    case = classifier(light())
    with pytest.raises(TypeError, match="LightningModule.*Linear.*deepepochs.Trainer"):
        quiet().fit(torch.nn.Linear(1, 1), loader())
    with pytest.raises(TypeError, match="none was given"):
        quiet().validate(dataloaders=evaluation())
    with pytest.raises(MisconfigurationException, match="no train dataloader.*train_dataloader"):
        quiet(max_epochs=1).fit(case.module)
    with pytest.raises(MisconfigurationException, match="either loaders or `datamodule`"):
        quiet(max_epochs=1).fit(case.module, loader(), datamodule=compat.LightningDataModule())
    for options in ({"gradient_clip_val": 1.0}, {"accumulate_grad_batches": 2}):
        with pytest.raises(MisconfigurationException, match="automatic optimisation"):
            quiet(max_epochs=1, **options).fit(gan(light()).module, loader())

    class Incomplete(compat.LightningModule):
        def training_step(self, batch, batch_idx):
            return None

    with pytest.raises(MisconfigurationException, match="configure_optimizers"):
        quiet(max_epochs=1).fit(Incomplete(), loader())
    with pytest.raises(MisconfigurationException, match="test_step"):
        quiet().test(Incomplete(), loader())


def test_an_exception_leaves_the_trainer_usable():
    case = classifier(light())

    class Once(compat.Callback):
        count, seen = 0, None

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            self.count += 1
            if self.count == 2:
                raise ArithmeticError("once")

        def on_exception(self, trainer, pl_module, exception):
            self.seen = str(exception)

    callback = Once()
    trainer = quiet(max_epochs=1, callbacks=[callback])
    with pytest.raises(ArithmeticError, match="once"):
        trainer.fit(case.module, loader(), evaluation())
    assert callback.seen == "once"
    assert trainer.interrupted
    trainer.fit(case.module, loader(), evaluation())
    assert trainer.state.finished


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true", "bf16-true"])
def test_precisions_give_lightnings_numbers(precision):
    pl = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
    weights = []
    for trainer_class in (pl.Trainer, LightningTrainer):
        torch.manual_seed(1)
        case = classifier(lightning())
        trainer_class(**QUIET, logger=False, max_epochs=1, precision=precision).fit(case.module, loader(), evaluation())
        weights.append(case.module.state_dict())
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
    assert weights[1]["head.weight"].dtype is {"64-true": torch.float64, "bf16-true": torch.bfloat16}.get(
        precision, torch.float32
    )


@pytest.mark.parametrize("accelerator", ["cpu", "auto"])
def test_half_precision_on_the_cpu_is_bf16_as_in_lightning(accelerator, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="bf16-mixed"):
        trainer = quiet(precision="16-mixed", accelerator=accelerator)
    assert trainer.precision == "bf16-mixed"
    assert trainer.scaler is None


def test_steps_that_take_the_iterator_are_refused():
    module = classifier(light()).module

    class Iterating(type(module)):
        def training_step(self, dataloader_iter):
            return None

    with pytest.raises(NotImplementedError, match="dataloader_iter"):
        quiet(max_epochs=1).fit(Iterating(), loader())


def test_an_optimizer_step_that_skips_its_closure_is_an_error():
    module = classifier(light()).module
    module.optimizer_step = lambda *args: None
    with pytest.raises(MisconfigurationException, match="without calling its closure"):
        quiet(max_epochs=1).fit(module, loader())


@pytest.mark.parametrize("options", [{"val_check_interval": 0.5}, {}])
def test_a_stream_with_a_limit_has_a_known_length(options):
    pl = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
    found = []
    for trainer_class, bases in ((pl.Trainer, lightning()), (LightningTrainer, light())):
        case, seen = dqn(bases), []
        case.module.validation_step = lambda batch, batch_idx, seen=seen, module=case.module: seen.append(
            (module.global_step, batch_idx)
        )
        trainer = trainer_class(**QUIET, logger=False, max_epochs=1, limit_train_batches=4, **options)
        torch.manual_seed(0)
        trainer.fit(case.module, val_dataloaders=evaluation())
        found.append((seen, trainer.val_check_batch, trainer.num_training_batches))
    assert found[0] == found[1]


def test_the_profilers_contexts_may_stay_in_modules():
    trainer = quiet()
    with trainer.profiler.profile("part"):
        trainer.profiler.start("inner")
        trainer.profiler.stop("inner")
    assert trainer.profiler.describe() is None
    assert trainer.distributed_sampler_kwargs is None
    assert trainer.accelerator.name() == "cpu"
    assert trainer.accelerator.auto_device_count() == 1
