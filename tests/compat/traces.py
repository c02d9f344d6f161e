"""Records which hooks a trainer calls, in which order and state; traces.json holds what Lightning called.

Run `python -m tests.compat.traces` where Lightning is installed to record anew.
"""

import json
import logging
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from .parity import QUIET, recorder

FILE = Path(__file__).with_name("traces.json")
MODULE_HOOKS = """setup teardown configure_callbacks configure_optimizers configure_gradient_clipping backward
optimizer_step
optimizer_zero_grad lr_scheduler_step training_step validation_step test_step predict_step train_dataloader
on_fit_start on_fit_end on_train_start on_train_end on_train_epoch_start on_train_epoch_end on_train_batch_start
on_train_batch_end on_validation_start on_validation_end on_validation_epoch_start on_validation_epoch_end
on_validation_batch_start on_validation_batch_end on_validation_model_eval on_validation_model_zero_grad
on_test_start on_test_end on_test_epoch_start on_test_epoch_end on_test_batch_start on_test_batch_end on_test_model_eval
on_predict_start on_predict_end on_predict_epoch_start on_predict_epoch_end on_predict_batch_start on_predict_batch_end
on_predict_model_eval on_before_zero_grad on_before_backward on_after_backward on_before_optimizer_step
on_before_batch_transfer transfer_batch_to_device on_after_batch_transfer"""
CALLBACK_HOOKS = """setup teardown on_fit_start on_fit_end on_sanity_check_start on_sanity_check_end
on_train_start on_train_end on_train_epoch_start on_train_epoch_end on_train_batch_start on_train_batch_end
on_validation_start on_validation_end
on_validation_epoch_start on_validation_epoch_end on_validation_batch_start on_validation_batch_end on_test_start
on_test_end on_test_epoch_start on_test_epoch_end on_test_batch_start on_test_batch_end on_predict_start on_predict_end
on_predict_epoch_start on_predict_epoch_end on_predict_batch_start on_predict_batch_end on_before_zero_grad
on_before_backward on_after_backward on_before_optimizer_step on_exception"""


def loader(samples, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(TensorDataset(torch.randn(samples, 4, generator=generator)), batch_size=4)


def scheduled(interval, plateau=False):
    def configure(module):
        opt = torch.optim.SGD(module.parameters(), lr=0.1)
        rates = torch.optim.lr_scheduler
        scheduler = rates.ReduceLROnPlateau(opt) if plateau else rates.StepLR(opt, 1)
        settings = {"scheduler": scheduler, "interval": interval, "monitor": "val_loss"}
        return {"optimizer": opt, "lr_scheduler": settings}

    return configure


def fail(module):
    raise ArithmeticError("a batch fails")


# name -> (what the module is like, (train samples, val loaders), calls, the trainer's arguments)
SETUPS = {
    "plain": ({}, (8, 1), ["fit"], {"max_epochs": 2}),
    "no sanity check": ({}, (8, 1), ["fit"], {"max_epochs": 1, "num_sanity_val_steps": 0}),
    "no validation": ({}, (8, 0), ["fit"], {"max_epochs": 2}),
    "all calls": ({}, (4, 1), ["fit", "validate", "test", "predict"], {"max_epochs": 1}),
    "accumulation": ({}, (12, 0), ["fit"], {"max_epochs": 1, "accumulate_grad_batches": 2}),
    "clipping": ({}, (4, 0), ["fit"], {"max_epochs": 1, "gradient_clip_val": 0.5}),
    "scheduler by step": ({"configure": scheduled("step")}, (8, 0), ["fit"], {"max_epochs": 1}),
    "scheduler by epoch": ({"configure": scheduled("epoch")}, (8, 1), ["fit"], {"max_epochs": 2}),
    "plateau": ({"configure": scheduled("epoch", plateau=True)}, (4, 1), ["fit"], {"max_epochs": 2}),
    "two validation loaders": ({}, (4, 2), ["fit", "validate"], {"max_epochs": 1}),
    "validation within the epoch": ({}, (16, 1), ["fit"], {"max_epochs": 1, "val_check_interval": 0.5}),
    "manual": ({"manual": True}, (8, 1), ["fit"], {"max_epochs": 1}),
    "skipped step": ({"skip": True}, (8, 0), ["fit"], {"max_epochs": 1}),
    "a few steps": ({}, (12, 1), ["fit"], {"max_steps": 2}),
    "fast development run": ({}, (12, 1), ["fit"], {"fast_dev_run": 2}),
    "exception": ({"error": fail}, (4, 0), ["fit"], {"max_epochs": 1}),
}


def traced(bases, events, manual=False, skip=False, configure=None, error=None):
    """A module and a callback that note their hooks in `events`."""

    def state(module, trainer):
        flags = f"{'T' if module.training else 'E'}{'G' if torch.is_grad_enabled() else '-'}"
        flags += "I" if torch.is_inference_mode_enabled() else "-"
        return (
            f"{flags} {trainer.global_step} {trainer.current_epoch} {trainer.state.stage and trainer.state.stage.value}"
        )

    class Module(bases.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 1)
            self.automatic_optimization = not manual

        def training_step(self, batch, batch_idx):
            loss = self.layer(batch[0]).square().mean()
            if error is not None:
                error(self)
            if manual:
                opt = self.optimizers()
                opt.zero_grad()
                self.manual_backward(loss)
                opt.step()
            return None if skip and batch_idx == 1 else loss

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("val_loss", F.relu(self.layer(batch[0])).mean())

        def test_step(self, batch, batch_idx):
            self.log("test_loss", self.layer(batch[0]).mean())

        def predict_step(self, batch, batch_idx):
            return self.layer(batch[0])

        def configure_optimizers(self):
            return configure(self) if configure else torch.optim.SGD(self.parameters(), lr=0.1)

    def note(owner, prefix, name):
        own = getattr(owner, name)

        def hook(self, *args, **kwargs):
            trainer, module = (args[0], args[1]) if prefix else (self.trainer, self)
            events.append(f"{prefix}{name} {state(module, trainer)}")
            return own(self, *args, **kwargs)

        setattr(owner, name, hook)

    Tracer = type("Tracer", (bases.Callback,), {})
    for name in MODULE_HOOKS.split():
        note(Module, "", name)
    for name in CALLBACK_HOOKS.split():
        note(Tracer, "callback.", name)
    return Module(), Tracer()


def record(name, bases, trainer_class):
    """The hooks that a trainer calls in a set-up."""
    options, (samples, validations), calls, settings = SETUPS[name]
    events = []
    torch.manual_seed(0)
    module, callback = traced(bases, events, **options)
    val = [loader(4 + 4 * index, seed=index + 1) for index in range(validations)] or None
    val = val[0] if val and len(val) == 1 else val
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = trainer_class(**QUIET, logger=recorder(bases.Logger), callbacks=[callback], **settings)
        for call in calls:
            events.append(f"== {call}")
            try:
                if call == "fit":
                    trainer.fit(module, loader(samples), val)
                else:
                    getattr(trainer, call)(module, val, **({} if call == "predict" else {"verbose": False}))
            except ArithmeticError as error:
                events.append(f"error {error}")
    return events


def main():
    import lightning.pytorch as pl

    from .parity import lightning

    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    found = {name: record(name, lightning(), pl.Trainer) for name in SETUPS}
    FILE.write_text(json.dumps({"version": pl.__version__, "traces": found}, indent=0) + "\n")
    print({name: len(events) for name, events in found.items()})


if __name__ == "__main__":
    main()
