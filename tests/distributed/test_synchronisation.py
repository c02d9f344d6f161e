"""When gradients are synchronised (E6, R1): several models in one scope, no_sync and accumulate in either order."""

import pytest
import torch
from torch import nn

from deepepochs.engine import Engine

from ..helpers.ranks import run_ranks
from .together import run_together

X = torch.linspace(-1, 1, 16).reshape(8, 2)


def shares(engine):
    return X[engine.rank :: engine.world_size]


def gan_in_one_scope():
    """A backward through the critic, then one through both; every second one closes a window."""
    found = []
    for steps in (1, 2):
        torch.manual_seed(0)
        maker, critic = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
        opts = [torch.optim.SGD(each.parameters(), 0.1) for each in (maker, critic)]
        with Engine(device="cpu", gradient_accumulation_steps=steps) as engine:
            maker, critic, *opts = engine.prepare(maker, critic, *opts)
            for noise in shares(engine).split(2):
                with engine.accumulate(n_samples=len(noise)):
                    fake = maker(noise)
                    engine.backward(critic(noise).mean() - critic(fake.detach()).mean())
                    engine.step(opts[1])
                    kept = [p.grad for p in critic.parameters()]
                    for p in critic.parameters():
                        p.requires_grad_(False)
                    engine.backward(-critic(fake).square().mean())
                    engine.step(opts[0])
                    for p, grad in zip(critic.parameters(), kept):
                        p.requires_grad_(True)
                        p.grad = grad
            found.append([each.tolist() for model in (maker, critic) for each in model.parameters()])
    return found


def nested():
    """Which micro-batches leave equal gradients on both ranks."""
    found = {}
    with Engine(device="cpu") as engine:
        torch.manual_seed(0)
        model = engine.prepare(nn.Linear(2, 1))
        x = X[engine.rank * 3 : engine.rank * 3 + 2]

        def backward(name):
            grad = model.module.weight.grad.clone()
            found[name] = torch.equal(*engine.gather(grad.unsqueeze(0)))
            model.zero_grad()

        with engine.no_sync(model):
            with engine.accumulate(model, n_samples=2):
                engine.backward(model(x).square().mean())
        backward("no_sync outside")
        with engine.accumulate(model, n_samples=2):
            with engine.no_sync(model):
                engine.backward(model(x).square().mean())
        backward("no_sync inside")
        with engine.accumulate(model, n_samples=2):
            engine.backward(model(x).square().mean())
        backward("neither")
    return found


def past_the_forward(steps):
    with Engine(device="cpu", gradient_accumulation_steps=steps) as engine:
        model = engine.prepare(nn.Linear(2, 1))
        engine.prepare(torch.optim.SGD(model.parameters(), 0.1))
        try:
            for index, x in enumerate(shares(engine).split(1)):
                with engine.accumulate(model, n_samples=1):
                    engine.backward((model if index == 0 and steps > 1 else model.module)(x).mean())
        except RuntimeError as error:
            return str(error)
    return ""


def past_with_one():
    return past_the_forward(1)


def past_with_two():
    return past_the_forward(2)


@pytest.fixture(scope="module")
def ranks():
    return run_together(2, gan_in_one_scope, nested, past_with_one, past_with_two)


def test_a_gan_in_one_scope_trains_alike_on_all_ranks(ranks):
    one, other = ranks["gan_in_one_scope"]
    assert one == other


def test_no_sync_holds_around_and_within_accumulate(ranks):
    for found in ranks["nested"]:
        assert found == {"no_sync outside": False, "no_sync inside": False, "neither": True}


def test_gradients_past_the_forward_are_found_with_accumulation_too(ranks):
    for name in ("past_with_one", "past_with_two"):
        assert all("past its data-parallel forward" in text for text in ranks[name]), name


def run_example(name):
    import contextlib
    import io
    import runpy
    import sys

    from ..helpers.ranks import ROOT

    sys.path.insert(0, str(ROOT / "examples"))
    with contextlib.redirect_stdout(io.StringIO()) as text:
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    return text.getvalue()


def test_the_gan_example_runs_on_two_ranks():
    texts = run_ranks(run_example, 2, "engine-01-gan.py")
    assert all("epoch 5: discriminator" in text for text in texts)
