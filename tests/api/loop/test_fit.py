"""fit and test (T2, T3): epochs that add up, in any order of calls."""

import pytest
import torch
import torchmetrics
from torch.nn import functional as F

from deepepochs import Callback

from ...engine.references import flat, net, regression
from ..helpers import loader, quiet, sgd

X, Y = regression(22)


def test_later_fits_add_epochs_and_history_keeps_all():
    with quiet(net(), F.mse_loss, epochs=2) as trainer:
        dl = loader(X, Y, 8)
        assert len(trainer.fit(dl)["train"]["loss"]) == 2
        assert len(trainer.fit(dl, epochs=3)["train"]["loss"]) == 3
        assert trainer.fit(dl) == {"train": {}, "val": {}}
        assert len(trainer.history["train"]["loss"]) == trainer.init_epoch == trainer.max_epochs == 5
    with quiet(net(), F.mse_loss, epochs=2) as trainer:
        assert len(trainer.fit(dl, epochs=4)["train"]["loss"]) == 4  # the first fit's epochs are the total


def test_validation_every_so_many_epochs():
    with quiet(net(), F.mse_loss, epochs=5) as trainer:
        progress = trainer.fit(loader(X, Y, 8), loader(X, Y, 8), val_freq=2)
    assert [len(progress[stage]["loss"]) for stage in ("train", "val")] == [5, 2]


def test_fit_and_test_alternate_and_a_callback_may_test():
    class Tester(Callback):
        def on_after_epoch(self, trainer, **others):
            found.append(trainer.test(loader(X, Y, 8))["loss"])

    found = []
    with quiet(net(), F.mse_loss, epochs=2, callbacks=[Tester()]) as trainer:
        progress = trainer.fit(loader(X, Y, 8), loader(X, Y, 8))
        assert found == progress["val"]["loss"]
        assert trainer.test(loader(X, Y, 8))["loss"] == found[-1]
        trainer.fit(loader(X, Y, 8), epochs=1)


@pytest.mark.parametrize("fails", [False, True])
def test_a_test_within_a_training_epoch_changes_nothing_of_it(fails):
    """Neither the window that is open nor the state of a shared torchmetrics object."""

    class Tester(Callback):
        def on_after_train_batch(self, trainer, **others):
            if fails:
                with pytest.raises(RuntimeError, match="shapes"):
                    trainer.test([(X[:, :2], Y)])
            else:
                trainer.test(loader(X, Y, 8))

    found = []
    for callbacks in ([], [Tester()]):
        model = net()
        options = {"metrics": torchmetrics.MeanSquaredError(), "gradient_accumulation_steps": 2, "epochs": 2}
        with quiet(model, F.mse_loss, sgd(model), callbacks=callbacks, **options) as trainer:
            found.append((trainer.fit(loader(X, Y, 5)), flat(model)))
    (expected, parameters), (progress, changed) = found
    assert progress == expected
    assert torch.equal(parameters, changed)
