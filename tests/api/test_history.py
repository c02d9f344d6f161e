"""History: lists of equal length."""

import math

from deepepochs.history import History


def test_names_that_come_and_go_are_nan_where_they_are_missing():
    history = History()
    history.append("train", {"loss": 1.0})
    history.append("train", {"loss": 2.0, "late": 5.0})
    history.append("train", {"late": 6.0})
    found = history.as_dict()["train"]
    assert found["loss"][:2] == [1.0, 2.0]
    assert math.isnan(found["loss"][2])
    assert math.isnan(found["late"][0])
    assert found["late"][1:] == [5.0, 6.0]


def test_an_existing_history_goes_on():
    stages = {"train": {"loss": [1.0]}, "val": {}}
    History(stages).append("train", {"loss": 2.0})
    assert stages == {"train": {"loss": [1.0, 2.0]}, "val": {}}
