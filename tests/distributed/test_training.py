"""Training on several ranks (E9, T13, T14): schedules, pieces of batches, interruptions and tasks, alike on all."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import Callback, EpochTask, Optimizer, Trainer, TrainerBase, set_seed

from ..engine.references import assert_close, flat, net
from .references import X, Y, make
from .together import run_together


@pytest.fixture(scope="module")
def ranks():
    """What each function of this module returned on each rank, by its name."""
    return run_together(2, train_together, several_tasks)


class Pieces(TrainerBase):
    def train_step(self, batch_x, batch_y, **step_args):
        half = len(batch_x) // 2
        with self.no_sync():
            self.loss(self.model(batch_x[:half]), batch_y[:half], loss_adjust=half / len(batch_x), do_optimize=False)
        rest = len(batch_x) - half
        self.loss(self.model(batch_x[half:]), batch_y[half:], loss_adjust=rest / len(batch_x), do_optimize=False)
        self.optimize()


class Interrupt(Callback):
    """Interrupts all ranks in the middle of the second window, once."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_after_backward(self, **others):
        self.seen += 1
        if self.seen == 3:
            raise KeyboardInterrupt


def train_together():
    found = {}
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.9)
    with make(model, opt=Optimizer(opt, plateau, sched_with_loss=True), epochs=4) as trainer:
        trainer.fit(
            DataLoader(TensorDataset(X, Y), batch_size=4), DataLoader(TensorDataset(X[:2], Y[:2]), batch_size=1)
        )
        found["lr"] = trainer.opt.get_current_lr()
    models = []
    for trainer_class in (Trainer, Pieces):
        model = net()
        options = {"device": "cpu", "show_info": False, "epochs": 2}
        with trainer_class(model, F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), **options) as trainer:
            trainer.fit(DataLoader(TensorDataset(X[:16], Y[:16]), batch_size=4))
        models.append(flat(model))
    found["pieces"] = models
    model = net()
    with make(model, gradient_accumulation_steps=2, callbacks=[Interrupt()], epochs=1) as trainer:
        dl = DataLoader(TensorDataset(X[:16], Y[:16]), batch_size=2)
        found["interrupted"] = trainer.fit(dl)
        before = flat(model).clone()
        assert all(each.grad is None for each in model.parameters())
        trainer.fit(dl)
    other = net()
    nn.utils.vector_to_parameters(before, other.parameters())
    with make(other, gradient_accumulation_steps=2, epochs=1) as trainer:
        trainer.fit(dl)
    found["after"] = (flat(model), flat(other))
    return found


def test_schedules_pieces_and_interrupted_windows(ranks):
    results = ranks["train_together"]
    assert results[0]["lr"] == results[1]["lr"]
    assert results[0]["lr"][0] < 0.1
    for result in results:
        assert_close(result["pieces"][1], result["pieces"][0])
        assert result["interrupted"] == {"train": {}, "val": {}}
        assert torch.equal(*result["after"])


def several_tasks():
    set_seed(5)
    model = net()
    tasks = [EpochTask(DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)) for _ in range(2)]
    with make(model, epochs=2) as trainer:
        progress = trainer.fit(train_tasks=tasks, val_tasks=[EpochTask(DataLoader(TensorDataset(X[:1], Y[:1])))])
    return progress, flat(model)


def test_several_tasks_and_a_shard_without_data(ranks):
    results = ranks["several_tasks"]
    assert results[0][0] == results[1][0]
    assert list(results[0][0]["train"]) == ["loss", "loss/1"]
    assert torch.equal(results[0][1], results[1][1])
