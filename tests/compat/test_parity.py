"""Parity (L1, L2): Lightning and this trainer from one seed, equal to the last bit in weights and all logs."""

import pytest
import torch

from deepepochs.compat import LightningTrainer

from .parity import CASES, assert_same, light, lightning, run

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_lightnings_modules_give_the_same_numbers(name):
    pytest.importorskip("lightning", reason="compares with Lightning")
    _, expected = run(name, lightning(), lightning().Trainer)
    module, found = run(name, lightning(), LightningTrainer)
    assert_same(found, expected)
    assert module.training == (name != "never")


@pytest.mark.parametrize("name", CASES)
def test_modules_on_the_light_bases_give_the_same_numbers(name):
    pytest.importorskip("lightning", reason="compares with Lightning")
    _, expected = run(name, lightning(), lightning().Trainer)
    _, found = run(name, light(), LightningTrainer)
    assert_same(found, expected)
