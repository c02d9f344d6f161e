"""Hyper-parameters (L1): what save_hyperparameters keeps is what Lightning's keeps."""

import argparse

import pytest

from ..parity import light, lightning


def classes(bases):
    """Modules that keep their arguments in different ways."""

    class All(bases.LightningModule):
        def __init__(self, a, b=2, *args, c=3, **kwargs):
            super().__init__()
            local = a  # noqa: F841
            self.save_hyperparameters()

    class Some(bases.LightningModule):
        def __init__(self, a, b=2):
            super().__init__()
            self.save_hyperparameters("b")

    class Ignoring(bases.LightningModule):
        def __init__(self, a, b=2):
            super().__init__()
            self.save_hyperparameters(ignore="a")

    class Whole(bases.LightningModule):
        def __init__(self, conf, b=1):
            super().__init__()
            self.save_hyperparameters(conf)

    class Child(All):
        def __init__(self, d=4, **kwargs):
            super().__init__(1, **kwargs)

    class Late(All):
        def __init__(self, d=4):
            super().__init__(7, e=8)
            self.save_hyperparameters(logger=False)

    return {
        "all": lambda: All(1, c=5, extra=6),
        "some": lambda: Some(1, 3),
        "ignoring": lambda: Ignoring(1, 3),
        "dictionary": lambda: Whole({"x": 1}),
        "namespace": lambda: Whole(argparse.Namespace(y=2)),
        "empty": lambda: Whole({}),
        "child": lambda: Child(d=9, b=8),
        "late": lambda: Late(),
        "data": lambda: data(bases),
    }


def data(bases):
    class Data(bases.LightningDataModule):
        def __init__(self, size=4, shuffle=True):
            super().__init__()
            self.save_hyperparameters()

    return Data(size=5)


@pytest.mark.parametrize(
    "name", ["all", "some", "ignoring", "dictionary", "namespace", "empty", "child", "late", "data"]
)
def test_what_is_kept_is_lightnings(name):
    pytest.importorskip("lightning", reason="compares with Lightning")
    expected, found = (classes(bases)[name]() for bases in (lightning(), light()))
    assert dict(found.hparams) == dict(expected.hparams)
    assert dict(found.hparams_initial) == dict(expected.hparams_initial)
    assert found._log_hyperparams == expected._log_hyperparams
    assert getattr(found, "_hparams_name", None) == getattr(expected, "_hparams_name", None)


def test_they_can_be_read_and_changed_as_attributes():
    module = classes(light())["all"]()
    module.hparams.b = 10
    assert module.hparams["b"] == 10
    assert module.hparams_initial.b == 2
    with pytest.raises(AttributeError, match="'lr'.*'a', 'b'"):
        module.hparams.lr  # noqa: B018


def test_what_has_no_names_is_an_error():
    module = classes(light())["all"]()
    with pytest.raises(ValueError, match="got int"):
        module.save_hyperparameters(3)
