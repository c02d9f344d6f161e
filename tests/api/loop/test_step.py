"""Step (T5, T9, T11, T13, E4): loss, backward, update and metrics of one batch."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deepepochs import Callback, EpochTask, Optimizer, TrainerBase
from deepepochs.loop.step import loss_of_output, model_loss

from ...engine.references import assert_close, flat, net, regression
from ..helpers import loader, quiet, sgd

X, Y = regression(22)


class Notes(Callback):
    """Keeps what an event hands over."""

    def __init__(self, event, name):
        super().__init__()
        self.seen = []
        setattr(self, f"on_{event}", lambda **given: self.seen.append(given[name]))


# ---- what is called where


class Precise(torch.optim.SGD):
    """Notes whether its steps run inside autocast."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.inside = []

    def step(self, closure=None):
        self.inside.append(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None)
        return super().step(closure)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("count", [1, 2])
def test_autocast_covers_forward_and_loss_only(precision, count):
    """E4: the user's step runs inside autocast; backward, update and metrics do not."""
    seen = []

    def loss(out, y):
        seen.append(("loss", torch.is_autocast_enabled("cpu")))
        return F.mse_loss(out, y) * 1e-4  # small enough for the first loss scale

    def metric(preds, targets):
        seen.append(("metric", torch.is_autocast_enabled("cpu")))
        return preds.float().mean()

    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    model[0].weight.register_hook(lambda grad: seen.append(("backward", torch.is_autocast_enabled("cpu"))))
    opts = [Precise(model.parameters(), lr=0.1)] if count == 1 else [Precise(m.parameters(), lr=0.1) for m in model]
    with quiet(model, loss, opts, precision=precision, metrics=[metric], metric_patch="mean") as trainer:
        trainer.fit(loader(X, Y, 22))
    assert seen == [("loss", True), ("backward", False), ("metric", False)]
    assert [each.inside for each in opts] == [[None]] * count


@pytest.mark.parametrize("event", ["before_backward", "after_backward", "train_metrics"])
def test_events_get_the_loss_without_its_graph(event):
    notes = Notes(event, "loss")
    model, other = net(), net()
    with quiet(model, F.mse_loss, sgd(model), callbacks=notes) as trainer:
        trainer.fit(loader(X, Y, 8))
    assert not any(each.requires_grad for each in notes.seen)
    opt, expected = sgd(other), []
    for x, y in loader(X, Y, 8):
        loss = F.mse_loss(other(x), y)
        expected.append(loss.item())
        opt.zero_grad(), loss.backward(), opt.step()
    assert [each.item() for each in notes.seen] == expected


def test_what_do_metric_gets_reaches_events_without_its_graph():
    class Own(EpochTask):
        def train_step(self, batch_x, batch_y, **step_args):
            out = self.model(batch_x)
            loss = self.loss(out, batch_y, do_metric=False)
            assert loss.requires_grad
            self.do_metric(loss, out, batch_y)

    losses, outs, metrics = (
        Notes("train_metrics", "loss"),
        Notes("train_metrics", "model_out"),
        Notes("after_train_batch", "metrics"),
    )
    with quiet(net(), F.mse_loss, callbacks=[losses, outs, metrics]) as trainer:
        trainer.fit(train_tasks=Own(loader(X, Y, 8)))
    assert not any(each.requires_grad for each in [*losses.seen, *outs.seen])
    assert [each["loss"] for each in metrics.seen] == losses.seen
    assert not metrics.seen[0]["loss"].requires_grad


def test_no_batch_records_are_kept_when_nobody_reads_them():
    """C2, T9"""
    seen = []

    class Own(EpochTask):
        def step(self, batch_x, batch_y, **step_args):
            self.loss(self.model(batch_x), batch_y)
            seen.append(self.running.records)

    with quiet(net(), F.mse_loss) as trainer:
        trainer.fit(train_tasks=Own(loader(X, Y, 8)))
    assert seen == [None] * 3


def test_a_batchs_metrics_are_computed_once_and_only_when_read():
    """T9"""
    calls = []

    def counted(preds, targets):
        calls.append(len(preds))
        return preds.mean()

    class Reader(Callback):
        def on_after_val_batch(self, metrics, batch_idx, **others):
            if batch_idx != 1:
                return
            assert calls == []
            assert metrics["counted"] == metrics["counted"]
            assert (len(metrics), list(metrics)) == (2, ["loss", "counted"])
            assert "counted" in repr(metrics)
            assert calls == [8]

    with quiet(net(), F.mse_loss, callbacks=Reader()) as trainer:
        trainer.fit(loader(X, Y, 8), loader(X, Y, 8), val_metrics=[counted])
    assert calls == [8, 22]


# ---- pieces of a batch (T11)


def piecewise(sizes, **options):
    class Own(TrainerBase):
        def train_step(self, batch_x, batch_y, **step_args):
            for x, y in zip(batch_x.split(sizes), batch_y.split(sizes)):
                self.loss(self.model(x), y, loss_adjust=len(x) / len(batch_x), do_optimize=False)
            self.optimize()

        def evaluate_step(self, batch_x, batch_y, **step_args):
            for x, y in zip(batch_x.split(sizes), batch_y.split(sizes)):
                self.loss(self.model(x), y, loss_adjust=len(x) / len(batch_x))

    model = net()
    options = {"device": "cpu", "show_info": False, "log_batch": False, "epochs": 2, **options}
    return model, Own(model, F.mse_loss, sgd(model), **options)


@pytest.mark.parametrize("sizes", [1, 3, 7])
def test_pieces_give_the_losses_and_metrics_of_the_whole(sizes):
    def error(preds, targets):
        return (preds - targets).abs().mean()

    batch_losses = Notes("after_train_batch", "metrics")
    model, trainer = piecewise(sizes, metrics=[error], callbacks=batch_losses)
    other = net()
    whole = Notes("after_train_batch", "metrics")
    with trainer, quiet(other, F.mse_loss, sgd(other), epochs=2, metrics=[error], callbacks=whole) as reference:
        found = trainer.fit(loader(X, Y, 7), loader(X, Y, 7))
        expected = reference.fit(loader(X, Y, 7), loader(X, Y, 7))
    assert_close(flat(model), flat(other))
    for stage in ("train", "val"):
        for name in ("loss", "error"):
            assert found[stage][name] == pytest.approx(expected[stage][name], rel=1e-5)
    for name in ("loss", "error"):
        assert [float(each[name]) for each in batch_losses.seen] == pytest.approx(
            [float(each[name]) for each in whole.seen], rel=1e-4
        )


def test_in_fp16_pieces_give_the_update_of_the_whole():
    model, trainer = piecewise(4, precision="fp16", gradient_accumulation_steps=2)
    other = net()
    options = {"precision": "fp16", "gradient_accumulation_steps": 2, "epochs": 2}
    with trainer, quiet(other, F.mse_loss, sgd(other), **options) as reference:
        trainer.fit(loader(X, Y, 8))
        reference.fit(loader(X, Y, 8))
    assert_close(flat(model), flat(other), 2e-3)  # half precision's rounding
    assert not torch.equal(flat(model), flat(net()))


# ---- schedules (T13)


class Watch:
    """A scheduler that only takes notes."""

    def __init__(self):
        self.seen = []

    def step(self, loss):
        self.seen.append(loss)


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.ones(1))

    def forward(self, factor):
        return (self.one * factor).sum()


def test_a_skipped_windows_loss_stays_out_of_the_next():
    model, watch = Product(), Watch()
    opt = Optimizer(sgd(model, 0.0), watch, sched_on="step", sched_with_loss=True)
    batches = [(torch.tensor(each),) for each in (1.0, 3.0, float("inf"), 5.0, 7.0, 9.0)]
    with quiet(model, None, opt, precision="fp16", gradient_accumulation_steps=2) as trainer:
        trainer.fit(batches, batch_size=1)
        assert trainer.global_step == 3
    assert watch.seen == [2.0, 8.0]


def test_all_optimizers_of_an_update_see_the_same_loss():
    one, other = Watch(), Watch()
    model = net()
    opts = [
        Optimizer(sgd(part, 0.0), watch, sched_on="step", sched_with_loss=True)
        for part, watch in ((model[0], one), (model[2], other))
    ]
    with quiet(model, F.mse_loss, opts) as trainer:
        trainer.fit(loader(X, Y, 8))
    with torch.no_grad():
        expected = [F.mse_loss(model(x), y).item() for x, y in loader(X, Y, 8)]
    assert one.seen == other.seen == pytest.approx(expected)


def test_an_optimizer_chosen_by_index_moves_its_own_schedule_only():
    class Own(TrainerBase):
        def train_step(self, batch_x, batch_y, **step_args):
            self.loss(self.model(batch_x), batch_y, do_optimize=False)
            self.optimize(1)

    model = net()
    opts = [sgd(model[0]), sgd(model[2])]
    wrapped = [Optimizer(each, torch.optim.lr_scheduler.ExponentialLR(each, 0.5), sched_on="step") for each in opts]
    with Own(model, F.mse_loss, wrapped, device="cpu", show_info=False, epochs=1) as trainer:
        trainer.fit(loader(X, Y, 8))
    assert [each.get_current_lr() for each in wrapped] == [0.1, 0.1 / 8]


# ---- whose loss (T4)


def test_a_model_gives_its_own_loss():
    assert model_loss(3.0, None) == 3.0
    assert model_loss({"loss": 2.0, "out": 1}, None) == 2.0
    with pytest.raises(ValueError, match=r"a dictionary with 'loss', got dict\(out"):
        model_loss({"out": 1}, None)


class Module(nn.Module):
    def forward(self, out):
        return out * 2


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda out: out * 2, 6),
        (Module(), 6),
        (lambda out, y: (out, y), (3, None)),
        (lambda out, y=1: (out, y), (3, None)),
        (lambda *data: data, (3, None)),
        (functools.partial(lambda scale, out: out * scale, 2), 6),
        (max, None),
    ],
)
def test_without_a_label_a_loss_of_one_argument_gets_the_output_alone(function, expected):
    found = loss_of_output(function)
    if expected is None:
        assert found is max  # a builtin has no signature to ask for
    else:
        assert found(3, None) == expected
