"""Callbacks (C1, C2): every event, in its order, with its arguments."""

import pytest
import torch.nn.functional as F

from deepepochs import Callback, EpochTask
from deepepochs.callbacks import CallbackPool

from ...engine.references import net, regression
from ..helpers import loader, quiet

X, Y = regression(6)
EVENTS = [name for name in vars(Callback) if name.startswith("on_")]


class Recorder(Callback):
    """Notes every event with the names of its arguments."""

    def __init__(self, log, label="", priority=1.0):
        super().__init__(priority)
        self.log, self.label = log, label
        for name in EVENTS:
            setattr(self, name, self.listener(name))

    def listener(self, name):
        def listen(**arguments):
            assert arguments.pop("trainer") is not None
            self.log.append((self.label + name[3:], tuple(arguments)))

        return listen


def batch(stage):
    """The events of one batch of a stage."""
    inner = [
        ("before_backward", ("loss",)), ("after_backward", ("loss",)),
        ("before_optimize", ("optimize_index",)), ("after_optimize", ("optimize_index",)),
    ]  # fmt: skip
    return [
        (f"before_{stage}_batch", ("batch_x", "batch_y", "batch_idx")),
        (f"before_{stage}_forward", ()),
        (f"after_{stage}_forward", ("model_out",)),
        *(inner if stage == "train" else []),
        (f"{stage}_metrics", ("loss", "model_out", "batch_y", "task")),
        (f"after_{stage}_batch", ("metrics", "batch_idx")),
    ]


def epochs(stage, tasks, count):
    """The events of a stage with so many tasks of so many batches."""
    place = () if stage == "test" else ("epoch_idx",)
    task = [(f"before_{stage}_epoch", ("task",)), *batch(stage) * count, (f"after_{stage}_epoch", ("task", "metrics"))]
    return [
        (f"before_{stage}_epochs", ("tasks", *place)),
        *task * tasks,
        (f"after_{stage}_epochs", ("tasks", "metrics", *place)),
    ]


def test_the_events_of_fit_and_test_in_their_order():
    log = []
    with quiet(net(), F.mse_loss, epochs=2, callbacks=[Recorder(log)]) as trainer:
        trainer.fit(loader(X, Y, 3), loader(X, Y, 6), val_tasks=EpochTask(loader(X, Y, 6)))
        trainer.test(loader(X, Y, 2))
    epoch = [
        ("before_epoch", ("train_tasks", "val_tasks", "epoch_idx")),
        *epochs("train", 1, 2),
        *epochs("val", 2, 1),
        ("after_epoch", ("train_tasks", "val_tasks", "train_metrics", "val_metrics", "epoch_idx")),
    ]
    assert log == [("before_fit", ("epochs",)), *epoch * 2, ("after_fit", ()), *epochs("test", 1, 3)]
    assert {name[3:] for name in EVENTS} == {name for name, _ in log}


def test_optimize_events_come_at_a_windows_end_only():
    log = []
    with quiet(net(), F.mse_loss, callbacks=[Recorder(log)], gradient_accumulation_steps=2) as trainer:
        trainer.fit(loader(X, Y, 2))  # windows of two and of one batch
    names = [name for name, _ in log if "optimize" in name or name == "after_backward"]
    update = ["before_optimize", "after_optimize"]
    assert names == ["after_backward", "after_backward", *update, "after_backward", *update]


def test_a_larger_priority_is_earlier_before_and_later_after():
    log = []
    callbacks = [Recorder(log, "low ", 1), Recorder(log, "high ", 5), Recorder(log, "middle ", 2)]
    with quiet(net(), F.mse_loss, callbacks=callbacks) as trainer:
        trainer.fit(loader(X, Y, 6))
    names = [name for name, _ in log]
    for event in ("before_fit", "before_train_batch", "before_optimize"):
        assert [name for name in names if name.endswith(event)] == [f"{p} {event}" for p in ("high", "middle", "low")]
    for event in ("after_fit", "after_train_batch", "train_metrics", "after_epoch"):
        assert [name for name in names if name.endswith(f" {event}")] == [
            f"{p} {event}" for p in ("low", "middle", "high")
        ]


def test_an_event_that_nobody_overrides_has_no_listener():
    """C2"""

    class One(Callback):
        def on_after_epoch(self, **others):
            pass

    pool = CallbackPool([One(), Callback()])
    assert [name for name in EVENTS if pool.listeners(name[3:])] == ["on_after_epoch"]


def test_a_subclass_need_not_call_the_base():
    class Bare(Callback):
        def __init__(self):
            self.seen = 0

        def on_after_fit(self, trainer):
            self.seen += 1

    bare = Bare()
    with quiet(net(), F.mse_loss, callbacks=bare) as trainer:
        trainer.fit(loader(X, Y, 6))
    assert bare.seen == 1


@pytest.mark.parametrize("wrong", [object(), Callback, "callback", print])
def test_other_things_are_refused(wrong):
    with pytest.raises(TypeError, match="`callbacks` must hold Callback objects"):
        CallbackPool([wrong])
