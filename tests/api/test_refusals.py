"""Refusals (T18): what cannot work is an error that says what came, before anything is trained."""

import pytest
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

import deepepochs as de
from deepepochs import Callback, EpochTask, Trainer
from deepepochs.engine import Engine

from ..engine.references import net, regression
from .helpers import error, loader, quiet, sgd

X, Y = regression(22)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Trainer(lambda x: x), TypeError, "torch.nn.Module, got function"),
        (lambda: quiet(loss="mse"), TypeError, "got str"),
        (lambda: quiet(epochs=-1), ValueError, "got -1"),
        (lambda: quiet(epochs=1.5), ValueError, "got 1.5"),
        (lambda: quiet(loss=F.mse_loss).fit([(X, Y)], epochs=2.5), ValueError, "got 2.5"),
        (lambda: quiet(loss=F.mse_loss).fit([(X, Y)], epochs=-1), ValueError, "got -1"),
        (lambda: quiet(loss=F.mse_loss).fit([(X, Y)], batch_size=lambda x, y: None), ValueError, "got None"),
        (lambda: quiet(precision="half"), ValueError, "got 'half'"),
        (lambda: quiet(device="gpu"), ValueError, "got 'gpu'"),
        (lambda: quiet(opt=sgd(net())), ValueError, "not the model's"),
        (lambda: quiet(opt="adam"), TypeError, "got str"),
        (lambda: quiet(callbacks=[object()]), TypeError, "Callback objects"),
        (lambda: quiet(callbacks=Callback), TypeError, "an instance, not the class"),
        (lambda: quiet(metric_patch="sum"), ValueError, "got 'sum'"),
        (lambda: quiet(metrics=["acc"]), TypeError, "got 'acc'"),
        (lambda: quiet(metrics=[lambda p, t: 0, lambda p, t: 1]), ValueError, "two named '<lambda>'"),
        (lambda: quiet(metrics=[de.rename("loss")(lambda p, t: 0)]), ValueError, "named 'loss'"),
        (lambda: quiet(running_id="../x"), ValueError, "must not hold a path"),
        (lambda: quiet(running_id=""), ValueError, "must not hold a path"),
        (lambda: quiet(engine=Engine(device="cpu"), precision="bf16"), ValueError, "`precision` belongs to the engine"),
        (lambda: quiet(loss=F.mse_loss).fit(), ValueError, "got neither"),
        (lambda: quiet(loss=F.mse_loss).fit([(X, Y)], train_tasks=EpochTask([(X, Y)])), ValueError, "got both"),
        (lambda: quiet(loss=F.mse_loss).test(), ValueError, "got neither"),
        (lambda: quiet(loss=F.mse_loss).fit(train_tasks=[[(X, Y)]]), TypeError, "wrap a loader"),
        (lambda: quiet(loss=F.mse_loss).fit([(X, Y)], val_freq=0), ValueError, "`val_freq`"),
        (lambda: quiet(loss=F.mse_loss).fit([(X, Y)], batch_size="8"), TypeError, "`batch_size`"),
        (lambda: quiet(loss=F.mse_loss).fit(b for b in [(X, Y)]), TypeError, "got generator"),
        (lambda: quiet(loss=F.mse_loss).fit([]), ValueError, "empty"),
        (lambda: quiet(loss=lambda o, y: o - y).fit([(X, Y)]), ValueError, r"scalar tensor.*got Tensor\(22, 1\)"),
        (lambda: quiet(loss=lambda o, y: 1.0).fit([(X, Y)]), ValueError, "got float"),
        (lambda: quiet(loss=F.mse_loss, metrics=[de.rename("")(error)]).test([(X, Y)]), ValueError, "renamed to ''"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize("stage", ["train", "val", "test"])
def test_an_empty_stream_is_refused(stage):
    full, empty = loader(X, Y, 8), DataLoader(Nothing())
    with quiet(net(), F.mse_loss) as trainer:
        calls = {
            "train": lambda: trainer.fit(empty),
            "val": lambda: trainer.fit(full, empty),
            "test": lambda: trainer.test(empty),
        }
        with pytest.raises(ValueError, match="empty"):
            calls[stage]()
