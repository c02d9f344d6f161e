"""Interruptions (T14, E9): at any event, and the trainer goes on exactly."""

import copy

import pytest
import torch
from torch.nn import functional as F

from deepepochs import Callback, StopLoopException

from ...engine.references import flat, net, regression
from ..helpers import loader, quiet, sgd

X, Y = regression(22)


class Raises(Callback):
    """Raises at an event, the n-th time."""

    def __init__(self, event, error, count=2):
        super().__init__()
        self.left, self.finished = count, 0

        def listener(**others):
            self.left -= 1
            if self.left == 0:
                raise error

        setattr(self, f"on_{event}", listener)

    def on_after_fit(self, **others):
        self.finished += 1


EVENTS = [
    "before_train_batch", "before_train_forward", "after_train_forward", "before_backward", "after_backward",
    "before_optimize", "after_optimize", "train_metrics", "after_train_batch", "before_val_batch",
    "after_train_epoch", "before_epoch", "after_epoch", "before_train_epochs", "before_train_epoch",
    "after_train_epochs", "before_val_epochs", "before_val_epoch", "before_val_forward", "after_val_forward",
    "val_metrics", "after_val_batch", "after_val_epoch", "after_val_epochs",
]  # fmt: skip


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), StopLoopException("enough"), ZeroDivisionError("mine")])
def test_an_interruption_anywhere_leaves_a_trainer_that_goes_on_exactly(event, error):
    model = net()
    opt = sgd(model, momentum=0.9)
    callback = Raises(event, error)
    with quiet(model, F.mse_loss, opt, epochs=3, gradient_accumulation_steps=3, callbacks=[callback]) as trainer:
        dl = loader(X, Y, 4)
        if isinstance(error, ZeroDivisionError):
            with pytest.raises(ZeroDivisionError) as caught:
                trainer.fit(dl, dl)
            assert caught.value is error
            assert callback.finished == 0
        else:
            progress = trainer.fit(dl, dl)
            assert len(progress["train"].get("loss", [])) == len(progress["val"].get("loss", [])) == trainer.init_epoch
            assert callback.finished == 1
        assert all(each.grad is None for each in model.parameters())
        # from here on it must equal a trainer that starts from this state
        other = net()
        other.load_state_dict(model.state_dict())
        other_opt = sgd(other, momentum=0.9)
        other_opt.load_state_dict(copy.deepcopy(opt.state_dict()))  # it would share the buffers
        done = trainer.init_epoch
        trainer.fit(dl, epochs=1)
        left = trainer.init_epoch - done
    with quiet(other, F.mse_loss, other_opt, epochs=left, gradient_accumulation_steps=3) as fresh:
        fresh.fit(dl)
    assert torch.equal(flat(model), flat(other))
