"""A load is all or nothing (R3, C5): whatever is wrong in a file is an error, and the trainer is as before."""

import copy

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import Callback, CheckCallback, Trainer
from deepepochs.engine import CheckpointError, load_file, save_file

X, Y = torch.arange(12.0).reshape(12, 1) / 12, torch.ones(12, 1)
DL = DataLoader(TensorDataset(X, Y), 4)


class Counts(Callback):
    """A callback with a state that it checks."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def on_after_train_batch(self, **others):
        self.count += 1

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def trainer():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    opt = torch.optim.Adam(model.parameters(), 0.01)
    callbacks = [Counts(), CheckCallback("loss", on_stage="train", every_n_steps=2, ckpt_dir="logs")]
    return Trainer(model, F.mse_loss, opt, epochs=2, device="cpu", callbacks=callbacks, running_id="r", show_info=False)


def whole_state(t):
    return copy.deepcopy(
        {
            "model": t.engine.model_state(t.model),
            "opt": t.opt.state_dict(),
            "numbers": (t.init_epoch, t.global_step, t.history),
            "monitors": [(each.state_dict(), each.found) for each in t.monitors],
            "count": next(each.count for each in t.callbacks if isinstance(each, Counts)),
            "waiting": [t.checkpointer.position, t.checkpointer.rng_state, t.checkpointer.generator_states],
            "rng": torch.get_rng_state(),
        }
    )


WRONG = {
    "progress": [[], {"train": 5}, {"train": {"loss": 3}}, {"train": {}, "val": []}],
    "monitors": [
        {}, [1], [{"monitor": "loss", "on_stage": "train", "mode": "min", "best_value": "x", "worse_times": 0}],
    ],
    "callbacks": [{}, [1], [["Counts", {}]], [["Counts", None]]],
    "rng_state": [{}, [1], [{"torch": torch.zeros(3)}], [None]],
    "position": [
        5, {}, {"start": 1, "totals": [], "loader": []}, {"start": [1, 1], "totals": [1, 1], "loader": [1, 1]},
        {"start": [{}], "totals": [{}], "loader": [None], "task": 0, "batches": 1, "finished": {}},
        {"start": [{}], "totals": [{}], "loader": [None], "task": -1, "batches": 1, "finished": {}},
    ],
    "epoch": [None, "1", -3, True, 1.5],
    "step": ["1", -1],
    "opt_state": [5, [], [{}], [{"opt_state": {}, "sched_state": None}]],
    "opt_params": [[[["model.0.weight"]]]],
    "model_state": [5, {}, {"0.weight": torch.zeros(2)}],
    "loader": [{}],
    "seed": ["x", -1, 1.5],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["checkpoint.ckpt", "checkpoint-step.ckpt"])
def test_whatever_is_wrong_leaves_the_trainer_as_it_was(kind):
    trainer().fit(DL)
    content = load_file(f"logs/r/{kind}")
    save_file("whole.ckpt", content)
    t = trainer()
    t.fit(DL, epochs=1)
    before = whole_state(t)
    for name, values in WRONG.items():
        for value in values:
            save_file("wrong.ckpt", {**content, name: value})
            with pytest.raises(CheckpointError, match=r"wrong\.ckpt"):
                t.load_checkpoint("wrong.ckpt")
            assert str(whole_state(t)) == str(before), (name, value)
    t.load_checkpoint("whole.ckpt")
    assert (t.init_epoch, t.global_step) == (content["epoch"], content["step"])


def test_a_monitors_file_of_another_model_is_an_error_that_names_it():
    t = trainer()
    t.fit(DL)
    content = load_file("logs/r/checkpoint.ckpt")
    save_file("logs/r/checkpoint.ckpt", {**content, "model_state": {"weight": torch.zeros(1)}})
    before = whole_state(t)
    with pytest.raises(CheckpointError, match=r"checkpoint\.ckpt.* do not fit this model"):
        t.test(DL)
    assert str(whole_state(t)["model"]) == str(before["model"])
