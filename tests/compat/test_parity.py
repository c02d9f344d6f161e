"""Parity (L1, L2, R10): Lightning and this trainer from one seed, equal to the last bit in weights and all logs."""

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
def test_modules_give_lightnings_numbers_on_its_classes_and_on_the_light_ones(name):
    pytest.importorskip("lightning", reason="compares with Lightning")
    _, expected = run(name, lightning(), lightning().Trainer)
    for bases in (lightning(), light()):
        module, found = run(name, bases, LightningTrainer)
        assert_same(found, expected)
        assert module.training
