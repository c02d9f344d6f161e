"""A fit goes on from whatever moment its checkpoint was written in, where Lightning goes on (L1, L2)."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from deepepochs.compat import LightningTrainer

from ..parity import QUIET, assert_same, light, lightning

pytestmark = pytest.mark.filterwarnings("ignore")

HOOKS = [
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
    "on_train_end",
]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(row, torch.zeros(())) for row in values(7)])


def values(count):
    return torch.arange(float(count))[:, None].repeat(1, 3) / 10


def data(kind, **options):
    if kind == "stream":
        return DataLoader(Stream(), batch_size=1)
    return DataLoader(TensorDataset(values(7), torch.zeros(7)), batch_size=1, **options)


def net(bases, validates, plateau=None, manual=False):
    class Net(bases.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.events = []
            self.automatic_optimization = not manual

        def training_step(self, batch, batch_idx):
            self.events.append((batch_idx, float(batch[0][0, 0]), self.current_epoch, self.global_step))
            loss = (self.layer(batch[0]) - 1).pow(2).mean()
            self.log("loss", loss.detach() + torch.rand(()))
            if manual:
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), 0.01, momentum=0.9)
            rates = torch.optim.lr_scheduler
            if plateau:
                schedule = rates.ReduceLROnPlateau(optimizer, patience=0, threshold=9.0)
                return [optimizer], [{"scheduler": schedule, "interval": plateau, "monitor": "loss", "strict": False}]
            return [optimizer], [
                rates.StepLR(optimizer, 1, 0.9),
                {"scheduler": rates.StepLR(optimizer, 3, 0.9), "interval": "step"},
            ]

        def on_save_checkpoint(self, checkpoint):
            checkpoint["events"] = len(self.events)

    if validates:
        Net.validation_step = lambda self, batch, batch_idx: self.log("val_loss", self.layer(batch[0]).sum())
    for hook in HOOKS:
        setattr(Net, hook, lambda self, *args, _hook=hook: self.events.append(_hook))
    torch.manual_seed(5)
    return Net()


def saver(bases, moment, path):
    """A callback that writes one checkpoint, in the n-th call of a hook."""
    hook, number = moment

    class Saver(bases.Callback):
        calls = 0

    def save(self, trainer, *args):
        if trainer.sanity_checking:
            return
        self.calls += 1
        if self.calls == number:
            trainer.save_checkpoint(path)

    setattr(Saver, hook, save)
    return Saver()


def fit(trains, bases, module, kind, path=None, callbacks=(), shuffle=False, **options):
    options = {"max_epochs": -1 if "max_steps" in options else 2, **options}
    trainer = trains(**QUIET, logger=False, callbacks=list(callbacks), **options)
    torch.manual_seed(9)
    loaders = data(kind, shuffle=shuffle) if kind != "stream" else data(kind)
    trainer.fit(module, loaders, DataLoader(TensorDataset(values(3)), batch_size=1), ckpt_path=path)
    return trainer


def state(trainer, module, path):
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)
    saved.pop("pytorch-lightning_version")
    return {
        "events": module.events,
        "weights": dict(module.state_dict()),
        "steps": (trainer.global_step, trainer.current_epoch, trainer.fit_loop.epoch_loop._batches_that_stepped),
        "metrics": dict(trainer.callback_metrics),
        "random": torch.rand(()),
        "saved": {key: value for key, value in saved.items() if key != "callbacks"},
    }


def go_on(kind, first, then, moment, tmp_path, model=None):
    """Writes a file with Lightning, then goes on from it under Lightning and here."""
    pytest.importorskip("lightning", reason="compares with Lightning")
    bases, model = lightning(), {"validates": True, **(model or {})}
    path = tmp_path / "start.ckpt"
    fit(bases.Trainer, bases, net(bases, **model), kind, callbacks=[saver(bases, moment, path)], **first)
    found = []
    for trains, of in ((bases.Trainer, bases), (LightningTrainer, bases), (LightningTrainer, light())):
        module = net(of, **model)
        trainer = fit(trains, of, module, kind, path, **then)
        found.append(state(trainer, module, tmp_path / "end.ckpt"))
    assert_same(found[1], found[0])
    assert_same(found[2], found[0])
    return found[2]


MOMENTS = {
    "epoch's start": ("on_train_epoch_start", 2),
    "batch's start": ("on_train_batch_start", 10),
    "batch's end": ("on_train_batch_end", 3),
    "last batch's end": ("on_train_batch_end", 7),
    "validation's start": ("on_validation_start", 1),
    "within a validation": ("on_validation_batch_end", 2),
    "validation's end": ("on_validation_end", 1),
    "epoch's end": ("on_train_epoch_end", 1),
    "fit's end": ("on_train_end", 1),
}
WAYS = {
    "by epochs": ({}, {"max_epochs": 4}),
    "by updates": ({"max_steps": 12}, {"max_steps": 25}),
    "from epochs to updates": ({}, {"max_steps": 25}),
    "from updates to epochs": ({"max_steps": 12}, {"max_epochs": 4}),
    "by both": ({"max_steps": 12, "max_epochs": 3}, {"max_steps": 40, "max_epochs": 5}),
    "accumulated": ({"accumulate_grad_batches": 3}, {"accumulate_grad_batches": 3, "max_epochs": 4}),
    "accumulated by updates": (
        {"accumulate_grad_batches": 2, "max_steps": 7},
        {"accumulate_grad_batches": 2, "max_steps": 13},
    ),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("way", WAYS)
def test_a_fit_goes_on_where_lightning_goes_on(way, moment, tmp_path):
    go_on("sized", *WAYS[way], MOMENTS[moment], tmp_path)


@pytest.mark.parametrize("moment", ["batch's end", "epoch's end", "fit's end"])
@pytest.mark.parametrize("way", ["by updates", "from epochs to updates"])
@pytest.mark.parametrize("kind", ["no validation", "stream", "validates often", "plateau", "plateau by step", "manual"])
def test_other_modules_and_data_go_on_too(kind, way, moment, tmp_path):
    first, then = WAYS[way]
    model = {
        "no validation": {"validates": False},
        "plateau": {"plateau": "epoch"},
        "plateau by step": {"plateau": "step"},
        "manual": {"manual": True},
    }.get(kind)
    more = {"val_check_interval": 2} if kind == "validates often" else {}
    data_kind = "stream" if kind == "stream" else "sized"
    shuffle = {} if kind == "stream" else {"shuffle": True}
    go_on(data_kind, {**first, **more, **shuffle}, {**then, **more, **shuffle}, MOMENTS[moment], tmp_path, model)


def test_updates_go_on_within_the_epoch(tmp_path):
    """By hand: 7 batches an epoch, a file after 4 updates: three batches more end the first epoch."""
    found = go_on("sized", {"max_steps": 4}, {"max_steps": 9}, MOMENTS["fit's end"], tmp_path, {"validates": False})
    batches = [event[0] for event in found["events"] if isinstance(event, tuple)]
    assert batches == [4, 5, 6, 0, 1]
    assert found["steps"][0] == 9


def test_a_second_start_from_a_resumed_run_goes_on_too(tmp_path):
    pytest.importorskip("lightning", reason="compares with Lightning")
    bases = lightning()
    found = []
    for trains, of in ((bases.Trainer, bases), (LightningTrainer, light())):
        path = None
        for step in itertools.accumulate([4, 7, 9]):
            module = net(of, True)
            trainer = fit(trains, of, module, "sized", path, max_steps=step)
            path = tmp_path / f"{trains.__name__}{step}.ckpt"
            result = state(trainer, module, path)
        found.append(result)
    assert_same(found[1], found[0])
