"""The Trainer (T1-T18): equal to bare loops, and every argument does what it says or is refused."""

import copy
import math
import random
import resource

import numpy
import pytest
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import deepepochs as de
from deepepochs import Callback, EpochTask, GradClipCallback, Optimizer, StopLoopException, Trainer, metrics
from deepepochs.engine import Engine

from ..engine.references import OPTIMIZERS, assert_close, flat, net, regression
from .helpers import classes, loader, quiet, sgd

X, Y = regression(22)


def bare(model, opt, batches, epochs, loss_fn=F.mse_loss, after_step=None):
    """The loop everybody writes; returns each epoch's sample-weighted loss in double precision."""
    found = []
    for _ in range(epochs):
        total = samples = 0
        for x, y in batches:
            opt.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            opt.step()
            if after_step:
                after_step()
            total += loss.item() * len(x)
            samples += len(x)
        found.append(total / samples)
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_plain_fit_equals_a_bare_loop_to_the_last_bit(name, shuffle):
    ours, theirs = net(), net()
    torch.manual_seed(5)
    with quiet(ours, F.mse_loss, OPTIMIZERS[name](ours.parameters()), epochs=3) as trainer:
        progress = trainer.fit(loader(X, Y, 8, shuffle=shuffle))
    torch.manual_seed(5)
    losses = bare(theirs, OPTIMIZERS[name](theirs.parameters()), loader(X, Y, 8, shuffle=shuffle), 3)
    assert torch.equal(flat(ours), flat(theirs))
    assert progress == {"train": {"loss": losses}, "val": {}}


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_accumulation_equals_the_big_batch(steps):
    """E5"""
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, sgd(ours), epochs=3, gradient_accumulation_steps=steps) as trainer:
        progress = trainer.fit(loader(X, Y, 4))
        assert trainer.global_step == 3 * math.ceil(6 / steps)
    losses = bare(theirs, sgd(theirs), list(zip(X.split(4 * steps), Y.split(4 * steps))), 3)
    assert_close(flat(ours), flat(theirs))
    assert progress["train"]["loss"] == pytest.approx(losses, rel=1e-6)


def test_a_batch_size_function_weighs_losses_and_windows():
    """T5: weights that are not samples."""
    weights = [3, 1, 6, 2]
    batches = list(zip(X[:16].split(4), Y[:16].split(4)))
    sizes = {id(x): weight for (x, _), weight in zip(batches, weights)}
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, sgd(ours), gradient_accumulation_steps=4) as trainer:
        progress = trainer.fit(batches, batch_size=lambda x, y: sizes[id(x)])
    opt = sgd(theirs)
    losses = [F.mse_loss(theirs(x), y) for x, y in batches]
    (sum(weight * loss for weight, loss in zip(weights, losses)) / 12).backward()
    opt.step()
    assert_close(flat(ours), flat(theirs))
    expected = sum(weight * loss.item() for weight, loss in zip(weights, losses)) / 12
    assert progress["train"]["loss"][0] == pytest.approx(expected, rel=1e-7)


def test_fp16_skips_only_the_overflowing_optimizer_and_its_schedule():
    """E4, E7, T13"""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.good, self.bad = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

        def forward(self, factor):
            return (self.good * 2).sum() + (self.bad * factor).sum()

    model = Two()
    opts = [torch.optim.SGD([each], lr=0.1) for each in (model.good, model.bad)]
    wrapped = [Optimizer(each, torch.optim.lr_scheduler.ExponentialLR(each, 0.5), sched_on="step") for each in opts]
    with quiet(model, None, wrapped, precision="fp16") as trainer:
        trainer.fit([(torch.tensor(each),) for each in (1.0, float("inf"), 1.0)], batch_size=1)
    assert [each.param_groups[0]["lr"] for each in opts] == [0.1 / 8, 0.1 / 4]
    torch.testing.assert_close(model.good.detach(), torch.full((2,), 1 - 0.2 * (1 + 0.5 + 0.25)))
    torch.testing.assert_close(model.bad.detach(), torch.full((2,), 1 - 0.1 * (1 + 0.5)))


def test_bf16_equals_a_bare_autocast_loop():
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, sgd(ours), epochs=2, precision="bf16") as trainer:
        trainer.fit(loader(X, Y, 8))
    opt = sgd(theirs)
    for _ in range(2):
        for x, y in loader(X, Y, 8):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(theirs(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
    assert torch.equal(flat(ours), flat(theirs))


def test_optimizers_that_share_parameters_all_step():
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, [sgd(ours), torch.optim.Adam(ours.parameters())]) as trainer:
        trainer.fit(loader(X, Y, 8))
    first, second = sgd(theirs), torch.optim.Adam(theirs.parameters())
    for x, y in loader(X, Y, 8):
        first.zero_grad()
        F.mse_loss(theirs(x), y).backward()
        first.step(), second.step()
    assert torch.equal(flat(ours), flat(theirs))
    with pytest.raises(ValueError, match="share parameters"):
        quiet(ours, F.mse_loss, [sgd(ours), sgd(ours)], precision="fp16")


# ---- schedulers (T13)


def test_a_step_schedule_moves_with_each_update():
    model, other = net(), net()
    opt, reference = sgd(model), sgd(other)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.2, total_steps=6)
    with quiet(model, F.mse_loss, Optimizer(opt, schedule, sched_on="step"), epochs=2) as trainer:
        trainer.fit(loader(X, Y, 8))
    moves = torch.optim.lr_scheduler.OneCycleLR(reference, 0.2, total_steps=6)
    count = iter(range(6))
    bare(other, reference, loader(X, Y, 8), 2, after_step=lambda: next(count) < 6 and moves.step())
    assert torch.equal(flat(model), flat(other))
    assert schedule.last_epoch == 6


@pytest.mark.parametrize("has_val", [True, False])
def test_an_epoch_schedule_gets_the_validation_loss_else_the_training_loss(has_val):
    seen = []

    class Watch:
        """A scheduler that only takes notes."""

        def step(self, loss):
            seen.append(loss)

    model = net()
    opt = Optimizer(sgd(model), Watch(), sched_with_loss=True)
    with quiet(model, F.mse_loss, opt, epochs=3) as trainer:
        progress = trainer.fit(loader(X, Y, 8), loader(X[:5], Y[:5], 5) if has_val else None)
    assert seen == progress["val" if has_val else "train"]["loss"]


def test_a_step_schedule_with_loss_gets_the_windows_mean():
    seen = []

    class Watch:
        def step(self, loss):
            seen.append(loss)

    model, other = net(), net()
    opt = Optimizer(sgd(model), Watch(), sched_on="step", sched_with_loss=True)
    with quiet(model, F.mse_loss, opt, gradient_accumulation_steps=2) as trainer:
        trainer.fit(loader(X, Y, 5))
    big = zip(X.split(10), Y.split(10))
    expected = []
    reference = sgd(other)
    for x, y in big:
        expected += bare(other, reference, [(x, y)], 1)
    assert seen == pytest.approx(expected, rel=1e-6)


# ---- batches (T4)


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 1)

    def forward(self, x, y=None):
        out = self.lin(x)
        return {"out": out, "loss": F.mse_loss(out, y)}


@pytest.mark.parametrize(
    "loss", [None, lambda out: out["loss"] * 1, lambda out, y: out["loss"] * 1], ids=["model", "one", "two"]
)
def test_dictionary_batches(loss):
    torch.manual_seed(1)
    ours = Keywords()
    torch.manual_seed(1)
    theirs = Keywords()
    batches = [{"x": x, "y": y} for x, y in loader(X, Y, 8)]
    with quiet(ours, loss, sgd(ours), epochs=2) as trainer:
        progress = trainer.fit(batches, batches)
    losses = bare(theirs.lin, sgd(theirs), list(loader(X, Y, 8)), 2)
    assert torch.equal(flat(ours), flat(theirs))
    assert progress["train"]["loss"] == losses


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 1)

    def forward(self, one, other):
        return self.lin(one + other["x"][0])


def test_several_inputs_and_nested_labels():
    model = Several()
    batches = [(x, {"x": [x]}, {"y": (y,)}) for x, y in loader(X, Y, 8)]

    def loss(out, label):
        return F.mse_loss(out, label["y"][0])

    def error(out, label):
        return (out - label["y"][0]).abs().mean()

    with quiet(model, loss, sgd(model, 0.0), metrics=[error]) as trainer:
        found = trainer.test(batches)
    whole = model(X, {"x": [X]})
    assert found["loss"] == pytest.approx(F.mse_loss(whole, Y).item(), rel=1e-6)
    assert found["error"] == pytest.approx((whole - Y).abs().mean().item(), rel=1e-6)


@pytest.mark.parametrize("batch", [X, (X,), "text", [], 3.0])
def test_a_batch_that_fits_nothing_is_shown(batch):
    with quiet(net(), F.mse_loss) as trainer, pytest.raises(
        ValueError, match="a batch must be a tuple or list"
    ) as caught:
        trainer.fit([batch])
    assert type(batch).__name__ in str(caught.value)


# ---- metrics (T6, T7)


def error(preds, targets):
    return (preds - targets).abs().mean()


@pytest.mark.parametrize("patch", ["tensor", "mean"])
def test_metrics_of_unequal_batches_are_those_of_the_whole(patch):
    model = net()
    with quiet(model, F.mse_loss, metrics=[error], metric_patch=patch) as trainer:
        found = trainer.test(loader(X, Y, 8))
    with torch.no_grad():
        whole = model(X)
    assert found["error"] == pytest.approx(error(whole, Y).item(), rel=1e-6)
    assert found["loss"] == pytest.approx(F.mse_loss(whole, Y).item(), rel=1e-6)


@pytest.mark.parametrize("patch", ["tensor", "confusion"])
def test_classification_metrics_of_the_whole(patch):
    x, y = classes(23)
    model = net(outputs=3)
    with quiet(model, F.cross_entropy, metrics=[metrics.f1, metrics.accuracy], metric_patch=patch) as trainer:
        found = trainer.test(loader(x, y, 5))
    with torch.no_grad():
        assert found["f1"] == metrics.f1(model(x), y).item()
        assert found["accuracy"] == metrics.accuracy(model(x), y).item()


def test_torchmetrics_objects_are_reset_for_each_stage():
    x, y = classes(23)
    model = net(outputs=3)
    own = torchmetrics.classification.MulticlassF1Score(3)
    several = torchmetrics.MetricCollection({"acc": torchmetrics.classification.MulticlassAccuracy(3, average="micro")})
    with quiet(model, F.cross_entropy, sgd(model, 0.0), epochs=2, metrics=[own, several]) as trainer:
        progress = trainer.fit(loader(x, y, 5), loader(x[:7], y[:7], 3))
    with torch.no_grad():
        out = model(x)
    expected = torchmetrics.functional.classification.multiclass_f1_score(out, y, 3).item()
    assert progress["train"]["MulticlassF1Score"] == pytest.approx([expected] * 2)
    assert progress["train"]["acc"] == pytest.approx([(out.argmax(1) == y).float().mean().item()] * 2)
    assert progress["val"]["acc"] == pytest.approx([(out.argmax(1) == y)[:7].float().mean().item()] * 2)


def test_vector_metrics_come_as_arrays_and_others_as_floats():
    def spread(preds, targets):
        return {"vector": preds.mean(0).repeat(3), "number": preds.mean()}

    with quiet(net(), F.mse_loss, metrics=[de.rename("s.")(spread)]) as trainer:
        found = trainer.test(loader(X, Y, 8))
        progress = trainer.fit(loader(X, Y, 8))
    assert type(found["loss"]) is type(found["s.number"]) is float
    assert isinstance(found["s.vector"], numpy.ndarray)
    assert found["s.vector"].shape == (3,)
    assert isinstance(progress["train"]["s.vector"][0], numpy.ndarray)


def test_several_tasks_number_the_names_that_are_taken():
    """T6"""
    tasks = [
        EpochTask(loader(X, Y, 8)),
        EpochTask(loader(X[:3], Y[:3], 8), metrics=[error]),
        EpochTask(loader(X, Y, 8), metrics=[error]),
    ]
    with quiet(net(), F.mse_loss) as trainer:
        found = trainer.test(loader(X, Y, 4), tasks=tasks)
    assert list(found) == ["loss", "loss/1", "loss/2", "error", "loss/3", "error/3"]
    assert found["loss"] == pytest.approx(found["loss/1"])


def test_a_metric_is_not_called_in_the_loop_unless_somebody_reads_it():
    """T9"""
    calls = []

    def counted(preds, targets):
        calls.append(len(preds))
        return preds.mean()

    class Reader(Callback):
        def on_after_train_batch(self, metrics, batch_idx, **others):
            if batch_idx == 1:
                assert metrics["counted"] == pytest.approx(float(outs[-1].mean()))
                assert set(metrics) == {"loss", "counted"}
            outs.clear()

        def on_after_train_forward(self, model_out, **others):
            assert not model_out.requires_grad
            outs.append(model_out)

    outs = []
    for callbacks, expected in (([], [22]), ([Reader()], [8, 22])):
        calls.clear()
        with quiet(net(), F.mse_loss, metrics=[counted], callbacks=callbacks, log_batch=True) as trainer:
            trainer.fit(loader(X, Y, 8))
        assert calls == expected


@pytest.mark.parametrize("wrong", [None, "a", (1.0, 2.0), [1.0]])
def test_a_metric_that_gives_no_number_is_named(wrong):
    with quiet(net(), F.mse_loss, metrics=[de.rename("odd")(lambda p, t: wrong)]) as trainer:
        with pytest.raises(TypeError, match=f"the metric 'odd' must return .* got {type(wrong).__name__}"):
            trainer.test([(X, Y)])


@pytest.mark.parametrize("wrong", [None, "a"])
def test_a_mean_of_no_numbers_is_refused(wrong):
    with quiet(net(), F.mse_loss, metrics=[lambda p, t: wrong], metric_patch="mean") as trainer:
        with pytest.raises(TypeError, match="must be a number or a tensor"):
            trainer.test([(X, Y)])


# ---- fit, test, predict (T2, T3)


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


def test_predictions_come_in_the_data_sets_order():
    model = net()
    with quiet(model, F.mse_loss) as trainer:
        found = trainer.predict(loader(X, Y, 8, shuffle=True))
        inputs = trainer.predict(DataLoader(X, batch_size=5))
        assert model.training
    with torch.no_grad():
        assert torch.equal(found, torch.cat([model(x) for x in X.split(8)]))
        assert torch.equal(inputs, torch.cat([model(x) for x in X.split(5)]))
    assert not found.requires_grad


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 1)

    def forward(self, x):
        return self.lin(x), {"twice": x * 2}


def test_predictions_may_be_tuples_and_inputs_may_come_alone():
    model = Pair()
    with quiet(model, None) as trainer:
        out, named = trainer.predict(DataLoader(X, batch_size=5, shuffle=True))
        assert trainer.predict([]) is None
    with torch.no_grad():
        assert torch.equal(out, torch.cat([model.lin(x) for x in X.split(5)]))
    assert torch.equal(named["twice"], X * 2)


def test_nested_predictions():
    with quiet(Keywords(), None) as trainer:
        found = trainer.predict([{"x": x, "y": y} for x, y in loader(X, Y, 8)])
    assert found["out"].shape == (22, 1)
    assert found["loss"].shape == (3,)


# ---- evaluation (T12)


def test_evaluation_leaves_modes_generators_and_gradients_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[1].eval()
    model(X).sum().backward()
    gradients = [each.grad.clone() for each in model.parameters()]
    buffers = [each.clone() for each in model.buffers()]

    def draw():
        return random.random(), numpy.random.rand(), torch.rand(1).item()

    class Noisy(de.TrainerBase):
        def evaluate_step(self, batch_x, batch_y, **step_args):
            draw()
            self.loss(self.model(batch_x), batch_y)

    de.set_seed(1)
    expected = draw()
    de.set_seed(1)
    with Noisy(model, F.mse_loss, device="cpu", show_info=False) as trainer:
        trainer.test(loader(X, Y, 8, shuffle=True))
        trainer.predict(loader(X, Y, 8))
    assert draw() == expected
    assert [each.training for each in model] == [True, False, True, True]
    assert all(torch.equal(a, each.grad) for a, each in zip(gradients, model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers()))


def test_parts_frozen_in_evaluation_mode_stay_frozen_in_training():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model[1].eval()
    with quiet(model, F.mse_loss, epochs=2) as trainer:
        trainer.fit(loader(X, Y, 8), loader(X, Y, 8))
    assert not model[1].running_mean.any()
    model.eval()
    with quiet(model, F.mse_loss, epochs=1) as trainer:
        trainer.fit(loader(X, Y, 8))  # a model that comes in evaluation mode is trained in training mode
    assert model[1].running_mean.any()


# ---- stops (T14, E9)


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


# ---- refusals (T18)


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


# ---- the rest


def test_a_shared_engine_outlives_the_trainer():
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        for _ in range(2):
            with quiet(net(), F.mse_loss, engine=engine) as trainer:
                trainer.fit(loader(X, Y, 8))
                assert trainer.global_step == 2


def test_a_compiled_model_is_trained(monkeypatch):
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: original(model, backend="eager"))
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, sgd(ours), compile_model=True) as trainer:
        trainer.fit(loader(X, Y, 8), loader(X, Y, 8))
    bare(theirs, sgd(theirs), loader(X, Y, 8), 1)
    assert torch.equal(flat(ours), flat(theirs))


def test_a_compiled_model_fires_the_events_of_its_forward(monkeypatch):
    original, seen = torch.compile, []
    monkeypatch.setattr(torch, "compile", lambda model: original(model, backend="eager"))

    class Watch(Callback):
        def on_before_train_forward(self, **others):
            seen.append("before")

        def on_after_train_forward(self, model_out, **others):
            seen.append(len(model_out))

    with quiet(net(), F.mse_loss, compile_model=True, callbacks=Watch()) as trainer:
        trainer.fit(loader(X, Y, 8))
    assert seen == ["before", 8, "before", 8, "before", 6]


def test_scripts_of_the_predecessor_find_its_names():
    class Old(Callback):
        def on_before_fit(self, trainer, epochs):
            assert trainer.main_process is True
            assert (trainer.init_epoch, trainer.max_epochs, epochs) == (0, 2, 2)
            assert (trainer.device.type, trainer.running_id, trainer.resume) == ("cpu", "7", False)
            assert trainer.hyper_params == {"lr": 0.1}
            assert trainer.metric_patch is de.TensorPatch
            assert trainer.opt.get_current_lr() == [0.1]
            assert trainer.opt[0].opt.param_groups[0]["lr"] == 0.1
            assert trainer.opt[0].get_last_lr() is None

        def on_before_train_epoch(self, trainer, task):
            assert trainer.current_task is task
            assert (task.batchs, task.stage, len(task.dataloader)) == (3, "train", 3)

        def on_after_train_batch(self, trainer, metrics, batch_idx):
            assert trainer.current_task.batch_size == (8, 8, 6)[batch_idx]

    model = net()
    options = {"epochs": 2, "running_id": 7, "hyper_params": {"lr": 0.1}, "callbacks": [Old()]}
    with quiet(model, F.mse_loss, sgd(model), **options) as trainer:
        trainer.fit(loader(X, Y, 8))
        assert trainer.init_epoch == 2


def test_training_data_can_stay_where_it_is():
    seen = []

    class Own(de.TrainerBase):
        def step(self, batch_x, batch_y, **step_args):
            seen.append(batch_x.device.type)

    with Own(net(), F.mse_loss, device="meta", show_info=False, epochs=1, auto_traindata_to_device=False) as trainer:
        trainer.fit([(X, Y)], [(X, Y)])
    assert seen == ["cpu", "meta"]


def test_clipping_acts_between_backward_and_update():
    """C9, E8"""
    ours, theirs = net(), net()
    with quiet(ours, F.mse_loss, sgd(ours), callbacks=[GradClipCallback(0.01, 2)]) as trainer:
        trainer.fit(loader(X, Y, 8))
    opt = sgd(theirs)
    for x, y in loader(X, Y, 8):
        opt.zero_grad()
        F.mse_loss(theirs(x), y).backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.01)
        opt.step()
    assert torch.equal(flat(ours), flat(theirs))


@pytest.mark.parametrize("patch", ["mean", "confusion"])
def test_many_steps_hold_no_more_memory(patch):
    """F2"""
    x, y = classes(2)
    model = net(outputs=3)
    metric = metrics.accuracy if patch == "confusion" else lambda preds, targets: preds.mean()

    def run(steps):
        with quiet(model, F.cross_entropy, sgd(model), metrics=[metric], metric_patch=patch) as trainer:
            trainer.fit([(x, y)] * steps)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = run(500)
    assert run(5000) - before < 3 * 1024


def test_close_may_be_called_again():
    trainer = quiet(net(), F.mse_loss)
    trainer.close()
    trainer.close()


def test_loaders_of_pre_made_batches_are_read_as_they_are():
    ours, theirs = net(), net()
    data = TensorDataset(X.reshape(2, 11, 4), Y.reshape(2, 11, 1))
    with quiet(ours, F.mse_loss, sgd(ours)) as trainer:
        progress = trainer.fit(DataLoader(data, batch_size=None))
    losses = bare(theirs, sgd(theirs), [data[0], data[1]], 1)
    assert torch.equal(flat(ours), flat(theirs))
    assert progress["train"]["loss"] == losses
