"""AnalyzeCallback (C11): statistics of layers, and hooks that are gone afterwards."""

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.nn import functional as F

from deepepochs import AnalyzeCallback, Callback

from ...engine.references import net, regression
from ..helpers import loader, quiet, sgd

X, Y = regression(8)


def read(folder="logs/r"):
    log = EventAccumulator(folder, size_guidance={"scalars": 0, "histograms": 0})
    log.Reload()
    return log, {tag: [each.value for each in log.Scalars(tag)] for tag in log.Tags()["scalars"]}


def hooks(model):
    return sum(len(module._forward_hooks) + len(module._backward_hooks) for module in model.modules())


def test_outputs_of_every_layer():
    model = net()
    with quiet(model, F.mse_loss, sgd(model, 0.0), running_id="r", callbacks=[AnalyzeCallback("forward")]) as trainer:
        trainer.fit(loader(X, Y, 8))
    log, found = read()
    value = X
    for index, layer in enumerate(model):
        value = layer(value).detach()
        assert found[f"forward_mean/{index}"] == [pytest.approx(value.mean().item(), rel=1e-5)]
        assert found[f"forward_std/{index}"] == [pytest.approx(value.std(unbiased=False).item(), rel=1e-5)]
        assert log.Histograms(f"forward/{index}")[0].histogram_value.num == value.numel()
    assert hooks(model) == 0


def test_gradients_of_every_layer():
    model = net()
    model[0].requires_grad_(False)  # frozen: no gradient reaches it
    with quiet(
        model, F.mse_loss, sgd(model[2], 0.0), running_id="r", callbacks=[AnalyzeCallback("backward")]
    ) as trainer:
        trainer.fit(loader(X, Y, 8))
    _, found = read()
    out = model(X)
    gradient = 2 * (out - Y).detach() / 8
    assert found["backward_mean/2"] == [pytest.approx(gradient.mean().item(), rel=1e-5)]
    assert set(found) == {"backward_mean/2", "backward_std/2"}


class Odd(nn.Module):
    """Shared, unused and in-place layers, and outputs in containers."""

    def __init__(self):
        super().__init__()
        self.shared, self.unused, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU(inplace=True)
        self.rnn, self.last = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        x = self.act(self.shared(self.shared(x)))
        return self.last(self.rnn(x[:, None])[0][:, 0])


@pytest.mark.parametrize("mode", ["forward", "backward"])
def test_odd_models_and_a_frequency(mode):
    model = Odd()
    with quiet(model, F.mse_loss, sgd(model), running_id="r", callbacks=[AnalyzeCallback(mode, every=2)]) as trainer:
        trainer.fit(loader(X, Y, 2), loader(X, Y, 8))
    _, found = read()
    assert set(found) == {
        f"{mode}_{kind}/{name}" for kind in ("mean", "std") for name in ("shared", "act", "rnn", "last")
    }
    assert {len(values) for values in found.values()} == {2}


def test_outputs_are_seen_before_a_later_layer_changes_them():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    analyzer = AnalyzeCallback("forward")
    with quiet(model, F.mse_loss, sgd(model, 0.0), running_id="r", callbacks=[analyzer]) as trainer:
        trainer.fit(loader(X, Y, 4))
    _, found = read()
    expected = [model[0](each).mean().item() for each in X.split(4)]
    assert found["forward_mean/0"] == pytest.approx(expected, rel=1e-5)
    assert analyzer.state_dict() == {"batches": 2}


def test_hooks_are_gone_after_an_exception():
    class Fails(Callback):
        def on_after_backward(self, **others):
            raise ZeroDivisionError

    model = net()
    trainer = quiet(model, F.mse_loss, callbacks=[AnalyzeCallback("forward"), Fails()])
    with pytest.raises(ZeroDivisionError):
        trainer.fit(loader(X, Y, 8))
    assert hooks(model) == 0
    trainer.close()


def test_infinite_values_do_not_break_it():
    model = net()
    with torch.no_grad():
        model[0].weight.fill_(float("inf"))
    with quiet(model, F.mse_loss, running_id="r", callbacks=[AnalyzeCallback("forward")]) as trainer:
        trainer.fit(loader(X, Y, 8))
    assert "forward_mean/0" in read()[1]


@pytest.mark.parametrize("options", [{"mode": "both"}, {"every": 0}])
def test_arguments_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        AnalyzeCallback(**options)
