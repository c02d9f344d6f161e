"""State dicts (E14): the same names whatever wraps a module."""

import pytest
import torch
from torch import nn

from deepepochs.engine import load_model_state, model_state, unwrap

from .references import flat, net


class Parts(nn.Module):
    """A model with an attribute that is really called `module`, and a compiled part."""

    def __init__(self, compiled):
        super().__init__()
        torch.manual_seed(2)
        self.module = nn.Linear(2, 2)
        part = nn.Linear(2, 2)
        self.part = torch.compile(part, backend="eager") if compiled else part


def test_compiled_and_bare_modules_load_each_others_states():
    bare = net(1)
    compiled = torch.compile(net(2), backend="eager")
    assert list(model_state(compiled)) == list(bare.state_dict())
    load_model_state(compiled, model_state(bare))
    assert torch.equal(flat(compiled), flat(bare))
    other = net(3)
    load_model_state(other, compiled.state_dict())  # a file with the wrapper's own names
    assert torch.equal(flat(other), flat(bare))
    assert unwrap(compiled) is compiled._orig_mod


def test_compiled_parts_have_plain_names():
    plain, compiled = Parts(False), Parts(True)
    assert list(model_state(compiled)) == list(plain.state_dict())
    with torch.no_grad():
        plain.part.weight.fill_(3.0)
    load_model_state(compiled, model_state(plain))
    assert torch.equal(compiled.part.weight, plain.part.weight)


def test_an_attribute_called_module_keeps_its_name():
    state = model_state(Parts(False))
    assert "module.weight" in state
    other = Parts(False)
    load_model_state(other, {name: torch.zeros_like(value) for name, value in state.items()})
    assert not flat(other).any()


def test_the_prefix_of_a_data_parallel_file_is_taken_off():
    one, other = net(1), net(2)
    load_model_state(other, {f"module.{name}": value for name, value in one.state_dict().items()})
    assert torch.equal(flat(one), flat(other))


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    load_model_state(model, {name: torch.ones_like(value) for name, value in model_state(model).items()})
    assert model[1].weight is model[0].weight


def test_names_and_shapes_that_do_not_fit_are_refused():
    with pytest.raises(RuntimeError, match="Missing key"):
        load_model_state(net(), {})
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_model_state(net(inputs=4), model_state(net(inputs=5)))


def test_a_data_parallel_file_of_a_model_with_an_attribute_called_module():
    one, other = Parts(False), Parts(True)
    with torch.no_grad():
        one.module.weight.fill_(5.0)
    load_model_state(other, {f"module.{name}": value for name, value in one.state_dict().items()})
    assert torch.equal(flat(one), flat(other))


def test_a_name_that_is_not_expected_is_refused_unless_told():
    state = {**model_state(net()), "extra": torch.zeros(1)}
    with pytest.raises(RuntimeError, match="Unexpected key"):
        load_model_state(net(), state)
    assert load_model_state(net(), state, strict=False).unexpected_keys == ["extra"]
