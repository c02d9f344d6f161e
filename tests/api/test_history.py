"""History: lists of equal length, and the epochs that they are of (C8, T2)."""

import math
import pickle

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import CheckCallback, Trainer
from deepepochs.history import History
from deepepochs.plotting import plot_history


def test_names_that_come_and_go_are_nan_where_they_are_missing():
    history = History()
    history.append("train", {"loss": 1.0}, 1)
    history.append("train", {"loss": 2.0, "late": 5.0}, 2)
    history.append("train", {"late": 6.0}, 3)
    found = history.as_dict()["train"]
    assert found["loss"][:2] == [1.0, 2.0]
    assert math.isnan(found["loss"][2])
    assert math.isnan(found["late"][0])
    assert found["late"][1:] == [5.0, 6.0]


def test_an_existing_history_goes_on():
    stages = {"train": {"loss": [1.0]}, "val": {}}
    History(stages).append("train", {"loss": 2.0}, 2)
    assert stages == {"train": {"loss": [1.0, 2.0]}, "val": {}}


DL = DataLoader(TensorDataset(torch.ones(4, 1), torch.ones(4, 1)), 4)


def drawn(progress):
    lines = plot_history(progress).axes[0].get_lines()
    return {line.get_label(): [int(value) for value in line.get_xdata()] for line in lines}


@pytest.mark.parametrize(("val_freq", "validated"), [(1, [1, 2, 3, 4, 5]), (2, [2, 4]), (3, [3])])
def test_curves_stand_at_the_epochs_that_they_are_of(val_freq, validated):
    """Also in a second fit's own result, after a resume, and by way of another process."""

    def trainer(epochs, **options):
        callbacks = [CheckCallback("loss", on_stage="train", save_best=False)]
        options = {"device": "cpu", "show_info": False, "log_batch": False, "running_id": "r", **options}
        return Trainer(torch.nn.Linear(1, 1), F.mse_loss, epochs=epochs, callbacks=callbacks, **options)

    t = trainer(5)
    progress = t.fit(DL, DL, val_freq=val_freq)
    assert drawn(progress) == drawn(t.history) == {"train": [1, 2, 3, 4, 5], "val": validated}
    assert drawn(pickle.loads(pickle.dumps(progress))) == drawn(progress)
    more = t.fit(DL, DL, val_freq=1, epochs=2)
    assert drawn(more) == {"train": [6, 7], "val": [6, 7]}
    assert drawn(t.history) == {"train": [1, 2, 3, 4, 5, 6, 7], "val": [*validated, 6, 7]}
    resumed = trainer(8, resume="r")
    resumed.fit(DL, DL)
    assert drawn(resumed.history) == {"train": list(range(1, 9)), "val": [*validated, 6, 7, 8]}


def test_a_plain_dictionary_is_drawn_from_the_first_epoch_on():
    assert drawn({"train": {"loss": [3.0, 2.0, 1.0]}}) == {"train": [1, 2, 3]}
