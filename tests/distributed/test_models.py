"""Models of all kinds on several ranks (E14, T12, T15): tied, frozen and unused parameters, outputs in containers."""

import dataclasses
from typing import Dict

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import Trainer
from deepepochs.engine import Engine

from ..engine.references import assert_close, big_batch_loop, flat, net, windows_of
from .references import X, Y, make, padded
from .together import run_together


@pytest.fixture(scope="module")
def ranks():
    """What each function of this module returned on each rank, by its name."""
    return run_together(2, train_odd, train_structured)


class Odd(nn.Module):
    """Unused, frozen and tied parameters, buffers, and outputs in containers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)  # ranks begin differently
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        self.unused, self.frozen = nn.Linear(2, 2), nn.Linear(4, 1)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return {"out": (self.frozen(self.last(self.norm(self.first(x)))),)}


def train_odd():
    with Engine(device="cpu", ddp_options={"find_unused_parameters": True, "timeout": 60}) as engine:
        model = Odd()
        loss = lambda out, y: F.mse_loss(out["out"][0], y)  # noqa: E731
        opt = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
        trainer = Trainer(model, loss, opt, epochs=2, engine=engine, show_info=False)
        trainer.fit(
            DataLoader(TensorDataset(X, Y), batch_size=4), DataLoader(TensorDataset(X[:2], Y[:2]), batch_size=4)
        )
        names = list(trainer.model.state_dict())
        predictions = trainer.predict(DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True))
    with Engine(device="cpu", ddp_options={"sync_batchnorm": True}) as engine:
        try:
            engine.prepare_model(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        except ValueError as error:
            refusal = str(error)
    return flat(trainer.model), names, predictions["out"][0], refusal


def test_models_of_all_kinds(ranks):
    """E14, T15"""
    results = ranks["train_odd"]
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == list(Odd().state_dict())
    assert torch.equal(results[0][2], results[1][2])
    assert results[0][2].shape == (23, 1)
    assert "needs CUDA devices, got cpu" in results[0][3]


@dataclasses.dataclass
class Output:
    """What a model returns; the parameters behind `mean` and `others` are reached only through it."""

    mean: torch.Tensor
    others: Dict[str, torch.Tensor]
    name: str = "output"


class Structured(nn.Module):
    def __init__(self, unused=False):
        super().__init__()
        self.body, self.head = net(1, outputs=4), net(2, inputs=4)
        if unused:
            self.unused = nn.Linear(2, 2)

    def forward(self, x):
        hidden = self.body(x)
        return Output(self.head(hidden), {"width": hidden.square().mean(1, keepdim=True)})


def structured_loss(out, y):
    return F.mse_loss(out.mean, y) + 0.1 * F.mse_loss(out.others["width"], y)


def width(out, y):
    return (out.others["width"] * y).mean()


STRUCTURED_STEPS = (1, 2)


def train_structured():
    """Trainer and bare Engine, with one and two batches a window; the last also with parameters that get nothing."""
    found = {}
    loader = DataLoader(TensorDataset(X, Y), batch_size=3)
    for steps in STRUCTURED_STEPS:
        model = Structured()
        options = {"gradient_accumulation_steps": steps, "metrics": [width]}
        with make(model, structured_loss, **options) as trainer:
            progress = trainer.fit(loader, loader)
            predicted = trainer.predict(loader)
        found["trainer", steps] = flat(model)
        found["values", steps] = progress["val"]
        found["predicted", steps] = (type(predicted) is Output, predicted.mean, predicted.others["width"])
        model = Structured(unused=True)
        options = {"ddp_options": {"find_unused_parameters": True}}
        with Engine(device="cpu", gradient_accumulation_steps=steps, **options) as engine:
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            prepared, opt, batches = engine.prepare(model, opt, loader)
            for _ in range(2):
                for x, y in batches:
                    with engine.accumulate(prepared, n_samples=len(x)):
                        engine.backward(structured_loss(prepared(x), y))
                        engine.step(opt)
        del model.unused
        found["engine", steps] = flat(model)
    return found


def test_a_model_that_returns_a_dataclass_trains_as_in_one_process(ranks):
    results = ranks["train_structured"]
    order = padded(len(X), 2, False)
    batches = [(X[order[start : start + 6]], Y[order[start : start + 6]]) for start in range(0, len(order), 6)]
    for steps in STRUCTURED_STEPS:
        model = Structured()
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        values = {"loss": [], "width": []}
        for _ in range(2):
            big_batch_loop(model, opt, windows_of(batches, steps), 1, structured_loss)
            with torch.no_grad():
                out = model(X)
                values["loss"].append(structured_loss(out, Y).item())
                values["width"].append(width(out, Y).item())
        for result in results:
            assert_close(result["trainer", steps], flat(model))
            assert_close(result["engine", steps], flat(model))
            assert result["values", steps] == {name: pytest.approx(each, rel=1e-6) for name, each in values.items()}
            is_output, mean, widths = result["predicted", steps]
            assert is_output
            torch.testing.assert_close(mean, out.mean)
            torch.testing.assert_close(widths, out.others["width"])
