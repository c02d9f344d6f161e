"""EpochTask (T10, T11): which step runs, and what a step can do."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deepepochs import Callback, EpochTask, TrainerBase, ValuePatch, batches, concat

from ...engine.references import assert_close, flat, net, regression
from ..helpers import loader, quiet, sgd

X, Y = regression(12)
STEPS = ["step", "train_step", "val_step", "test_step", "evaluate_step"]
# which names a stage looks for, in order
ORDER = {
    "train": ["step", "train_step"],
    "val": ["step", "val_step", "evaluate_step"],
    "test": ["step", "test_step", "evaluate_step"],
}


def with_steps(base, names, called):
    """A subclass with the given step methods, which note that they were called."""

    def make(name):
        def method(self, batch_x, batch_y, **step_args):
            called.append((base.__name__, name))

        return method

    return type("Own", (base,), {name: make(name) for name in names})


@pytest.mark.parametrize("stage", ORDER)
@pytest.mark.parametrize(
    "of_task", [[], ["step"], ["train_step", "val_step"], ["evaluate_step"], STEPS[1:], ["test_step"]]
)
@pytest.mark.parametrize("of_trainer", [[], ["step"], ["train_step", "test_step"], ["evaluate_step"], STEPS])
def test_the_step_is_chosen_by_name_first_and_the_task_goes_before_the_trainer(stage, of_task, of_trainer):
    """T10"""
    called = []
    trainer_class, task_class = with_steps(TrainerBase, of_trainer, called), with_steps(EpochTask, of_task, called)
    trainer = trainer_class(net(), F.mse_loss, epochs=1, device="cpu", show_info=False)
    task, plain = task_class(loader(X, Y, 12)), EpochTask(loader(X, Y, 12))
    if stage == "train":
        trainer.fit(train_tasks=task)
    elif stage == "val":
        trainer.fit(train_tasks=with_steps(EpochTask, ["step"], [])(plain.dataloader), val_tasks=task)
    else:
        trainer.test(tasks=task)
    expected = []
    for name in ORDER[stage]:
        if name in of_task:
            expected = [("EpochTask", name)]
        elif name in of_trainer:
            expected = [("TrainerBase", name)]
        elif name in ("train_step", "evaluate_step"):
            expected = []  # the trainer's own
        else:
            continue
        break
    assert called == expected


@pytest.mark.parametrize("wrong", [3, {"acc": 1.0}, [ValuePatch(1).load(1.0)], {"acc": None}, torch.ones(1)])
def test_a_step_that_returns_something_else_is_named(wrong):
    class Wrong(TrainerBase):
        def train_step(self, batch_x, batch_y, **step_args):
            return wrong

    with pytest.raises(TypeError, match=r"Wrong.train_step must return None or a dictionary of patches"):
        Wrong(net(), F.mse_loss, epochs=1, device="cpu", show_info=False).fit(loader(X, Y, 12))


def test_step_arguments_reach_the_step():
    seen = []

    class Own(EpochTask):
        def step(self, batch_x, batch_y, scale, **step_args):
            seen.append((scale, step_args, self.batch_size, self.device.type, self.stage))

    with quiet(net(), F.mse_loss) as trainer:
        trainer.test(tasks=Own(loader(X, Y, 8), scale=2, extra="e"))
    assert seen == [(2, {"extra": "e"}, size, "cpu", "test") for size in (8, 4)]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("owner", ["trainer", "task"])
def test_pieces_of_a_batch_make_the_update_of_the_whole(steps, owner):
    """T11: loss_adjust, do_optimize=False, one optimize(), no_sync()."""

    def train_step(self, batch_x, batch_y, **step_args):
        pieces = list(batches((batch_x, batch_y), 3))
        outs = []
        for index, (x, y) in enumerate(pieces):
            out = self.model(x)
            if index < len(pieces) - 1:
                with self.no_sync():
                    self.loss(out, y, loss_adjust=len(x) / len(batch_x), do_optimize=False)
            else:
                self.loss(out, y, loss_adjust=len(x) / len(batch_x), do_optimize=False)
            outs.append(out.detach())
        self.optimize()
        return {"seen": ValuePatch(len(batch_x)).load(concat(outs).mean())}

    ours, theirs = net(), net()
    base = TrainerBase if owner == "trainer" else EpochTask
    own = type("Own", (base,), {"train_step": train_step})
    trainer_class = own if owner == "trainer" else TrainerBase
    task_class = own if owner == "task" else EpochTask
    options = {"epochs": 2, "device": "cpu", "show_info": False, "gradient_accumulation_steps": steps}
    with trainer_class(ours, F.mse_loss, sgd(ours), **options) as trainer:
        progress = trainer.fit(train_tasks=task_class(loader(X, Y, 5)))
    with quiet(theirs, F.mse_loss, sgd(theirs), epochs=2, gradient_accumulation_steps=steps) as trainer:
        expected = trainer.fit(loader(X, Y, 5))
    assert_close(flat(ours), flat(theirs))
    assert progress["train"]["loss"] == pytest.approx(expected["train"]["loss"], rel=1e-6)
    assert len(progress["train"]["seen"]) == 2


def test_optimizers_can_be_chosen():
    """As a GAN does it."""

    class Own(TrainerBase):
        def train_step(self, batch_x, batch_y, **step_args):
            first = self.loss(self.model[0](batch_x), batch_y, do_optimize=False)
            self.optimize(0)
            self.loss(self.model[1](batch_x), batch_y * first.item(), do_optimize=False, do_metric=False)
            self.optimize(optimize_index=1)

    events = []

    class Spy(Callback):
        def on_before_optimize(self, optimize_index, **others):
            events.append(optimize_index)

    ours, theirs = nn.ModuleList([net(1), net(2)]), [net(1), net(2)]
    opts = [sgd(ours[0]), sgd(ours[1], 0.05)]
    with Own(ours, F.mse_loss, opts, epochs=1, device="cpu", show_info=False, callbacks=[Spy()]) as trainer:
        trainer.fit(loader(X, Y, 6))
    assert events == [0, 1, 0, 1]
    opts = [sgd(theirs[0]), sgd(theirs[1], 0.05)]
    for x, y in loader(X, Y, 6):
        loss = F.mse_loss(theirs[0](x), y)
        loss.backward()
        opts[0].step(), opts[0].zero_grad()
        F.mse_loss(theirs[1](x), y * loss.item()).backward()
        opts[1].step(), opts[1].zero_grad()
    assert all(torch.equal(flat(a), flat(b)) for a, b in zip(ours, theirs))


def test_a_returned_patch_takes_the_place_of_the_metric_of_its_name():
    class Own(EpochTask):
        def step(self, batch_x, batch_y, **step_args):
            self.loss(self.model(batch_x), batch_y)
            return {
                "loss": ValuePatch(len(batch_x)).load(7.0),
                "own": ValuePatch(len(batch_x), name="named").load(len(batch_x)),
            }

    with quiet(net(), F.mse_loss) as trainer:
        assert trainer.test(tasks=Own(loader(X, Y, 8))) == {"loss": 7.0, "named": (64 + 16) / 12}


def test_do_metric_hands_over_what_it_is_given():
    class Own(EpochTask):
        def step(self, batch_x, batch_y, **step_args):
            self.do_metric(torch.tensor(2.0), batch_x, batch_y)

    def mean_of_inputs(preds, targets):
        return preds.mean() + targets.mean()

    with quiet(net(), F.mse_loss, metrics=[mean_of_inputs]) as trainer:
        found = trainer.test(tasks=Own(loader(X, Y, 5)))
    assert found["loss"] == 2.0
    assert found["mean_of_inputs"] == pytest.approx((X.mean() + Y.mean()).item(), rel=1e-6)


def test_evaluation_without_loss():
    with quiet(net(), F.mse_loss, metrics=[lambda p, t: p.mean()]) as trainer:
        assert list(trainer.test(loader(X, Y, 5), do_loss=False)) == ["<lambda>"]
        progress = trainer.fit(loader(X, Y, 5), loader(X, Y, 5), do_val_loss=False)
    assert list(progress["val"]) == ["<lambda>"]
    assert "loss" in progress["train"]


def test_a_misspelt_name_is_an_error():
    with pytest.raises(AttributeError, match="learning_rate"):
        EpochTask([(X, Y)]).learning_rate  # noqa: B018


def test_outside_of_a_stage_there_is_nothing_to_optimise():
    task = EpochTask([(X, Y)])
    trainer = quiet(net(), F.mse_loss)
    for each in (task, trainer):
        for call in (lambda each=each: each.loss(X, Y), each.optimize, each.do_metric):
            with pytest.raises(RuntimeError, match="while fit"):
                call()
    assert (task.batchs, EpochTask(iter_only()).batchs) == (1, None)


def iter_only():
    """An iterable that does not know its length."""

    class Only:
        def __iter__(self):
            return iter([(X, Y)])

    return Only()


def test_custom_steps_take_batches_of_any_type():
    seen = []

    class Own(EpochTask):
        def step(self, batch_x, batch_y, **step_args):
            seen.append((batch_x, batch_y))

    with quiet(net(), F.mse_loss) as trainer:
        trainer.test(tasks=Own(["text", X]))
    assert seen[0] == ("text", None)
    assert torch.equal(seen[1][0], X)
