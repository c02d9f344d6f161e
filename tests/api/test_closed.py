"""What a trainer refuses at once (T18, R1): use after its end, and optimizers that need a closure."""

import pytest
import torch
from torch.nn import functional as F

from deepepochs import Trainer
from deepepochs.engine import Engine

DATA = [(torch.ones(2, 1), torch.ones(2, 1))]


@pytest.mark.parametrize("use", [lambda t: t.fit(DATA), lambda t: t.test(DATA), lambda t: t.predict(DATA)])
def test_a_closed_trainer_says_so(use):
    with Trainer(torch.nn.Linear(1, 1), F.mse_loss, epochs=1, device="cpu", show_info=False) as trainer:
        trainer.fit(DATA)
    trainer.close()
    with pytest.raises(RuntimeError, match="this trainer is closed"):
        use(trainer)


def test_an_engine_of_the_callers_keeps_its_trainers_open():
    with Engine(device="cpu") as engine:
        trainer = Trainer(torch.nn.Linear(1, 1), F.mse_loss, epochs=1, show_info=False, engine=engine)
        trainer.close()
        assert len(trainer.fit(DATA)["train"]["loss"]) == 1


def test_an_optimizer_that_needs_a_closure_is_refused_before_training():
    model = torch.nn.Linear(1, 1)
    with pytest.raises(TypeError, match="LBFGS evaluates the model several times"):
        Trainer(model, F.mse_loss, torch.optim.LBFGS(model.parameters()), device="cpu", show_info=False)
    with Engine(device="cpu") as engine, pytest.raises(TypeError, match="LBFGS"):
        engine.prepare(torch.optim.LBFGS(model.parameters()))


def test_updates_that_an_overflow_skips_are_counted():
    """C7: `every_n_steps` and logs count ended windows, whatever became of them."""
    model = torch.nn.Linear(1, 1)
    options = {"epochs": 1, "device": "cpu", "precision": "fp16", "show_info": False, "log_batch": False}
    with Trainer(model, F.mse_loss, torch.optim.SGD(model.parameters(), 0.1), **options) as trainer:
        before = model.weight.item()
        trainer.fit([(torch.full((2, 1), 1e4), torch.ones(2, 1))] * 3)
        assert (trainer.global_step, model.weight.item()) == (3, before)
