"""What a run owns: its id and folder, everything that its optimizers step, the order of its samples (R2, R3, C7)."""

import os
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from deepepochs import Callback, CallbackException, CheckCallback, EpochTask, Optimizer, Trainer
from deepepochs.checkpoints.files import newest
from deepepochs.engine import CheckpointError, load_file, save_file

X, Y = torch.linspace(-1, 1, 12).reshape(12, 1), torch.linspace(0, 3, 12).reshape(12, 1)


class Stop(Callback):
    """Notes the samples that come, and breaks off before a batch."""

    def __init__(self, at=None):
        super().__init__()
        self.seen, self.at = [], at

    def on_before_train_batch(self, batch_x, **others):
        if len(self.seen) == self.at:
            raise ZeroDivisionError
        self.seen.append(batch_x.flatten().tolist())


def run(loader, at=None, epochs=3, **options):
    torch.manual_seed(0)
    model, stop = nn.Linear(1, 1), Stop(at)
    opt = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    monitor = CheckCallback("loss", on_stage="train", every_n_steps=1, save_best=False)
    options = {"running_id": "r", "show_info": False, "log_batch": False, "device": "cpu", **options}
    trainer = Trainer(model, F.mse_loss, opt, epochs=epochs, callbacks=[stop, monitor], **options)
    given = {"train_tasks": loader} if isinstance(loader, list) else {"train_dl": loader}
    if at is None:
        trainer.fit(**given)
    else:
        with pytest.raises(ZeroDivisionError):
            trainer.fit(**given)
    trainer.close()
    return stop.seen, model.weight.item()


# ---- ids


def test_trainers_made_together_have_runs_of_their_own():
    ids = [Trainer(nn.Linear(1, 1), F.mse_loss, device="cpu", show_info=False).running_id for _ in range(50)]
    assert len(set(ids)) == 50
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{8}", each) for each in ids)


def test_a_relative_folder_is_fixed_when_the_monitor_is_made(tmp_path, monkeypatch):
    monitor = CheckCallback("loss", on_stage="train", ckpt_dir="runs")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    t = Trainer(
        nn.Linear(1, 1), F.mse_loss, epochs=1, device="cpu", callbacks=[monitor], running_id="r", show_info=False
    )
    t.fit(DataLoader(TensorDataset(X, Y), 4))
    assert (tmp_path / "runs" / "r" / "checkpoint.ckpt").is_file()


def test_of_one_run_the_file_that_has_come_furthest_is_the_newest():
    run(DataLoader(TensorDataset(X, Y), 4))
    os.utime("logs/r/checkpoint-step.ckpt")  # as a restored backup may have any time
    monitor = CheckCallback("loss", on_stage="train")
    t = Trainer(nn.Linear(1, 1), F.mse_loss, device="cpu", callbacks=[monitor], running_id="r", show_info=False)
    assert load_file("logs/r/checkpoint-step.ckpt")["epoch"] == 2
    assert newest(t, [monitor], "r").name == "checkpoint.ckpt"
    assert newest(t, [monitor], None).name == "checkpoint.ckpt"


# ---- the order of samples


@pytest.mark.parametrize("at", [1, 2, 4, 5, 7])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["shuffle", "replacement", "num_samples", "shared with others"])
def test_a_loaders_own_generator_goes_on(kind, workers, at):
    def loader():
        generator = torch.Generator().manual_seed(5)
        data = TensorDataset(X, Y)
        if kind == "shuffle":
            return DataLoader(data, 4, shuffle=True, generator=generator, num_workers=workers)
        if kind == "shared with others":
            return DataLoader(data, 4, sampler=RandomSampler(data, generator=generator), generator=generator)
        options = {"replacement": True} if kind == "replacement" else {"num_samples": 12}
        sampler = RandomSampler(data, generator=generator, **options)
        return DataLoader(data, 4, sampler=sampler, num_workers=workers)

    whole, weight = run(loader(), running_id="whole")
    first, _ = run(loader(), at)
    rest, resumed = run(loader(), resume="r")
    assert first + rest == whole
    assert resumed == weight


@pytest.mark.parametrize("at", [1, 4, 7, 8, 10])
def test_a_generator_beside_a_shared_one_goes_on_too(at):
    """Two tasks share one generator, and the second draws its order from another one."""

    def tasks():
        shared, other = torch.Generator().manual_seed(5), torch.Generator().manual_seed(6)
        data = TensorDataset(X, Y)
        samplers = [RandomSampler(data, generator=each) for each in (shared, other)]
        return [EpochTask(DataLoader(data, 4, sampler=each, generator=shared)) for each in samplers]

    whole, weight = run(tasks(), running_id="whole")
    first, _ = run(tasks(), at)
    rest, resumed = run(tasks(), resume="r")
    assert first + rest == whole
    assert resumed == weight


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch_size": 6}, "batch_size 4 -> 6"),
        ({"shuffle": True}, "sampler SequentialSampler -> RandomSampler"),
        ({"drop_last": True}, "drop_last False -> True"),
        ({"dataset": TensorDataset(X[:8], Y[:8])}, "samples 12 -> 8"),
    ],
)
def test_going_on_within_an_epoch_with_another_loader_is_refused(change, text):
    options = {"dataset": TensorDataset(X, Y), "batch_size": 4}
    run(DataLoader(**options), at=2)
    before = load_file("logs/r/checkpoint-step.ckpt")["model_state"]["weight"].item()
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    fresh = model.weight.item()
    monitor = CheckCallback("loss", on_stage="train")
    t = Trainer(model, F.mse_loss, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), epochs=3, device="cpu",
                callbacks=[monitor], running_id="r", resume="r", show_info=False)  # fmt: skip
    with pytest.raises(CheckpointError, match=text):
        t.fit(DataLoader(**{**options, **change}))
    assert (model.weight.item(), t.init_epoch) == (fresh, 0)
    assert before != fresh


def test_another_loader_from_an_epochs_end_on_is_fine():
    run(DataLoader(TensorDataset(X, Y), 4), epochs=1)
    os.remove("logs/r/checkpoint-step.ckpt")
    seen, _ = run(DataLoader(TensorDataset(X, Y), 6), epochs=2, resume="r")
    assert [len(each) for each in seen] == [6, 6]


# ---- what is trained


class Learnt(nn.Module):
    """A loss with a parameter, a buffer and a state that is no tensor."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, output, target):
        if self.training and torch.is_grad_enabled():
            self.seen += len(output)
        return ((output + self.shift - target) ** 2).mean()

    def get_extra_state(self):
        return {"kind": "learnt", "calls": int(self.seen)}

    def set_extra_state(self, state):
        assert state["kind"] == "learnt"


def with_loss(epochs, **options):
    torch.manual_seed(0)
    model, loss = nn.Linear(1, 1), Learnt()
    opt = torch.optim.SGD([*model.parameters(), *loss.parameters()], 0.05, momentum=0.9)
    monitor = CheckCallback("loss", on_stage="train", save_best=False)
    t = Trainer(model, loss, opt, epochs=epochs, device="cpu", callbacks=[monitor], show_info=False, log_batch=False,
                **options)  # fmt: skip
    t.fit(DataLoader(TensorDataset(X, Y), 4))
    return t, model, loss


def test_a_losss_parameters_are_saved_restored_and_part_of_the_best_weights():
    """R2, and as a bare loop computes them."""
    _, model, loss = with_loss(4, running_id="whole")
    torch.manual_seed(0)
    bare, theirs = nn.Linear(1, 1), Learnt()
    opt = torch.optim.SGD([*bare.parameters(), *theirs.parameters()], 0.05, momentum=0.9)
    for _ in range(4):
        for x, y in zip(X.split(4), Y.split(4)):
            theirs(bare(x), y).backward()
            opt.step()
            opt.zero_grad()
    assert (loss.shift.item(), model.weight.item(), loss.seen.item()) == (theirs.shift.item(), bare.weight.item(), 48.0)

    with_loss(2, running_id="r")
    t, resumed, again = with_loss(4, running_id="r", resume="r")
    assert (again.shift.item(), resumed.weight.item(), again.seen.item()) == (
        loss.shift.item(),
        model.weight.item(),
        48.0,
    )
    assert set(load_file("logs/r/checkpoint.ckpt")["loss_state"]) == {"shift", "seen", "_extra_state"}

    best = load_file("logs/r/checkpoint.ckpt")
    save_file("logs/r/checkpoint.ckpt", {**best, "loss_state": {**best["loss_state"], "shift": torch.tensor([100.0])}})
    with torch.no_grad():
        expected = ((resumed(X) + 100.0 - Y) ** 2).mean().item()
    assert t.test(DataLoader(TensorDataset(X, Y), 12))["loss"] == pytest.approx(expected, rel=1e-6)
    assert again.shift.item() == loss.shift.item()


class Unfreeze(Callback):
    """Adds the body's parameters in the second epoch; again after a resume, or not."""

    def __init__(self, body, remembers):
        super().__init__()
        self.body, self.remembers, self.added = body, remembers, False

    def on_before_epoch(self, trainer, epoch_idx, **others):
        self.body.zero_grad()  # as in a bare loop: no optimizer has freed these
        if epoch_idx >= 1 and not self.added:
            self.added = True
            trainer.opt[0].opt.add_param_group({"params": list(self.body.parameters()), "lr": 0.01})

    def state_dict(self):
        return {"added": self.added}

    def load_state_dict(self, state):
        self.added = self.remembers and state["added"]


@pytest.mark.parametrize("saved", [1, 2, 3])
@pytest.mark.parametrize("remembers", [True, False])
def test_parameter_groups_that_a_callback_adds_come_back(saved, remembers):
    def train(epochs, **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 1))
        opt = torch.optim.SGD(model[1].parameters(), 0.05, momentum=0.9)
        callbacks = [Unfreeze(model[0], remembers), CheckCallback("loss", on_stage="train", save_best=False)]
        t = Trainer(
            model, F.mse_loss, opt, epochs=epochs, device="cpu", callbacks=callbacks, show_info=False, **options
        )
        t.fit(DataLoader(TensorDataset(X, Y), 4))
        return torch.cat([each.flatten() for each in model.parameters()]).tolist(), [g["lr"] for g in opt.param_groups]

    whole = train(5, running_id="whole")
    train(saved, running_id="r")
    assert train(5, running_id="r", resume="r") == whole
    assert whole[1] == [0.05, 0.01]


def test_groups_in_another_order_are_refused():
    def trainer(turned):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        layers = [model[1], model[0]] if turned else [model[0], model[1]]
        opt = torch.optim.Adam([{"params": layer.parameters()} for layer in layers])
        return Trainer(model, F.mse_loss, opt, epochs=1, device="cpu", show_info=False, running_id="r",
                       callbacks=[CheckCallback("loss", on_stage="train")])  # fmt: skip

    trainer(False).fit([(torch.ones(2, 2), torch.ones(2, 2))])
    with pytest.raises(CheckpointError, match=r"group 0 of an optimizer trains other parameters .*model\.0\.weight"):
        trainer(True).load_checkpoint("logs/r/checkpoint.ckpt")


# ---- who waits for a validation


@pytest.mark.parametrize("val_freq", [1, 2, 3])
def test_a_plateau_scheduler_waits_for_the_validation_that_it_follows(val_freq):
    """T13: against torch's own, given the validation losses alone."""
    model = nn.Linear(1, 1)
    opt = torch.optim.SGD(model.parameters(), 1e-9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1, factor=0.5)
    data = DataLoader(TensorDataset(X, Y), 12)
    t = Trainer(
        model, F.mse_loss, Optimizer(opt, scheduler, sched_with_loss=True), epochs=12, device="cpu", show_info=False
    )
    val = t.fit(data, DataLoader(TensorDataset(X + 1, Y), 12), val_freq=val_freq)["val"]["loss"]
    theirs = torch.optim.SGD(nn.Linear(1, 1).parameters(), 1e-9)
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, patience=1, factor=0.5)
    for value in val:
        reference.step(value)
    assert len(val) == 12 // val_freq
    assert scheduler.state_dict()["last_epoch"] == len(val)
    assert opt.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]


def test_a_scheduler_gets_the_training_loss_where_validation_has_none():
    model = nn.Linear(1, 1)
    opt = torch.optim.SGD(model.parameters(), 1e-9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt)
    data = DataLoader(TensorDataset(X, Y), 12)
    t = Trainer(
        model, F.mse_loss, Optimizer(opt, scheduler, sched_with_loss=True), epochs=4, device="cpu", show_info=False
    )
    t.fit(data, data, val_freq=2, do_val_loss=False)
    assert scheduler.state_dict()["last_epoch"] == 4


@pytest.mark.parametrize(
    ("options", "text"),
    [({}, "no validation data"), ({"val": True, "val_freq": 5}, "with val_freq=5 none comes in epochs 1 to 4")],
)
def test_a_monitor_that_can_never_see_its_stage_is_an_error_before_training(options, text):
    model = nn.Linear(1, 1)
    before = model.weight.item()
    data = DataLoader(TensorDataset(X, Y), 4)
    t = Trainer(model, F.mse_loss, epochs=4, device="cpu", callbacks=[CheckCallback("loss")], show_info=False)
    with pytest.raises(CallbackException, match=text):
        t.fit(data, data if options.get("val") else None, val_freq=options.get("val_freq", 1))
    assert model.weight.item() == before
