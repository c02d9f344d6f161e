"""Gradients past data parallel (E5, E6): refused before they part the ranks' weights, and never by mistake."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import TrainerBase
from deepepochs.engine import Engine

from ..engine.references import flat, net, regression
from .together import run_together

X, Y = regression(12)


@pytest.fixture(scope="module")
def ranks():
    """What each function of this module returned on each rank, by its name."""
    return run_together(2, gan, accumulated, refused)


@dataclasses.dataclass
class Output:
    value: torch.Tensor


class Kept(TrainerBase):
    """Trains the module that it kept, not the one that the trainer prepared."""

    def __init__(self, model, *args, **options):
        super().__init__(model, *args, **options)
        self.kept = model

    def train_step(self, batch_x, batch_y):
        self.loss(self.kept(batch_x), batch_y)


class Twice(TrainerBase):
    """Two forwards, then two backwards: the second one has no forward of its own."""

    def train_step(self, batch_x, batch_y):
        first, second = self.model(batch_x), self.model(batch_x * 2)
        self.loss(first, batch_y, do_optimize=False)
        self.loss(second, batch_y)


def error_of(function):
    try:
        function()
    except RuntimeError as error:
        return str(error)
    return None


def fit(kind, **options):
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with kind(model, F.mse_loss, opt, device="cpu", show_info=False, log_batch=False, epochs=1, **options) as trainer:
        trainer.fit(DataLoader(TensorDataset(X, Y), batch_size=3))


def refused():
    return {
        "kept": error_of(lambda: fit(Kept)),
        "twice": error_of(lambda: fit(Twice)),
        "part of it": error_of(train_a_part),
        "changed by hand": error_of(change_by_hand),
        "static graph": error_of(hide_outputs),
    }


def train_a_part():
    with Engine(device="cpu") as engine:
        model, opt = net(), None
        opt = engine.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
        model = engine.prepare(model)
        with engine.accumulate(model):
            engine.backward(model.module[0](X).square().mean())
            engine.step(opt)


class Hidden(nn.Linear):
    """Hides its output in a dataclass, where torch does not look for a static graph's tensors."""

    def forward(self, x):
        return Output(super().forward(x))


def hide_outputs():
    with Engine(device="cpu", ddp_options={"static_graph": True}) as engine:
        engine.prepare(Hidden(4, 1))(X)


def change_by_hand():
    with Engine(device="cpu") as engine:
        model = engine.prepare(net())
        engine.check_replicas()
        with torch.no_grad():
            next(model.parameters()).flatten()[0] += engine.rank * 1e-6
        engine.check_replicas()


def test_gradients_of_one_rank_alone_are_an_error(ranks):
    for found in ranks["refused"]:
        assert "past its data-parallel forward" in found["kept"]
        assert "past its data-parallel forward" in found["twice"]
        assert "past its data-parallel forward" in found["part of it"]
        assert "have parted" in found["changed by hand"]
        assert "static_graph=True" in found["static graph"]
        assert "got Output" in found["static graph"]


def gan():
    """Both nets' losses reach both nets; gradients that nobody spends stay from batch to batch."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    with Engine(device="cpu") as engine:
        opts = engine.prepare(*[torch.optim.SGD(each.parameters(), lr=0.1) for each in (generator, critic)])
        makes, judges = engine.prepare(generator, critic)
        for start in range(engine.rank * 2, 12, 4):
            noise = X[start : start + 2, :1].repeat(1, 4)
            with engine.accumulate(critic):
                engine.backward(judges(makes(noise).detach()).mean() - judges(noise * 2).mean())
                engine.step(opts[1])
            if start % 8 < 4:
                with engine.accumulate(generator):
                    engine.backward(-judges(makes(noise)).mean())
                    engine.step(opts[0])
            else:  # a loss of the generator alone; the critic's gradients are of an earlier batch
                with engine.accumulate(generator):
                    engine.backward(makes(noise).square().mean())
                    engine.step(opts[0])
        engine.check_replicas()
    return flat(generator), flat(critic)


def accumulated():
    """Only the window's last forward announces the gradients of all."""
    model = net()
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        opt = engine.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
        prepared = engine.prepare(model)
        for x, y in engine.prepare(DataLoader(TensorDataset(X, Y), batch_size=2)):
            with engine.accumulate(prepared):
                engine.backward(F.mse_loss(prepared(x) + prepared(x * 2), y))
                engine.step(opt)
        engine.check_replicas()
    return flat(model)


def test_ordinary_loops_are_never_refused(ranks):
    for name in ("gan", "accumulated"):
        first, second = ranks[name]
        for one, other in zip(first, second):
            assert torch.equal(one, other)
