"""The summary of a model: layers, shapes, parameters (T17)."""

import torch
from torch import nn

from deepepochs.summary import summarise

from ..engine.references import net


def table(summary):
    return [(x.name, x.kind, x.shape, x.parameters, x.trainable) for x in summary.layers]


def test_layers_shapes_and_parameters():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 1))
    model[0].weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    summary = summarise(model, torch.ones(5, 4))
    assert torch.equal(torch.rand(1), expected)
    assert table(summary) == [
        ("0", "Linear", "(5, 8)", 40, 8),
        ("1", "BatchNorm1d", "(5, 8)", 16, 16),
        ("2", "Dropout", "(5, 8)", 0, 0),
        ("3", "Linear", "(5, 1)", 9, 9),
    ]
    assert (summary.parameters, summary.trainable) == (65, 33)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(each._forward_hooks for each in model.modules())


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first
        self.head = nn.Linear(3, 3, bias=False)
        self.head.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, a, b):
        return {"out": self.head(self.second(a + b)), "scale": self.scale}


def test_shared_parameters_count_once_and_several_inputs():
    model, x = Shared(), torch.ones(2, 3)
    for example in ((x, x), {"a": x, "b": x}):
        summary = summarise(model, example)
        assert summary.parameters == sum(each.numel() for each in model.parameters()) == 14
        assert ("(model)", "Shared", "(2, 3) (2,)", 2, 2) in table(summary)
        assert ("head", "Linear", "(2, 3)", 0, 0) in table(summary)


def test_the_table_as_text():
    lines = str(summarise(net())).splitlines()
    assert lines[0].split() == ["layer", "kind", "output", "parameters", "trainable"]
    assert lines[-1].split() == ["total", "49", "49"]
    assert len({len(line) for line in lines}) == 1
