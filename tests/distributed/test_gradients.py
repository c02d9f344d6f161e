"""Gradients on several ranks (E5, E6): uneven windows with two models, and losses that share a graph."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from deepepochs.engine import Engine

from ..engine.references import flat, regression
from .together import run_together

SIZES = ([3, 1, 2, 6], [1, 4, 5, 2])  # of each rank's micro-batches
X, Y = regression(24)


def own_parts(rank):
    x, y = (each.split([sum(sizes) for sizes in SIZES])[rank].split(SIZES[rank]) for each in (X, Y))
    return list(zip(x, y))


def two_models_in_uneven_windows():
    """The first model's backward rescales what the second has, before the second's own backward."""
    torch.manual_seed(0)
    models = [nn.Linear(4, 1), nn.Linear(4, 1)]
    opts = [torch.optim.SGD(each.parameters(), 0.1) for each in models]
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        *prepared, first, second = engine.prepare(*models, *opts)
        for x, y in own_parts(engine.rank):
            with engine.accumulate(n_samples=len(x)):
                engine.backward(F.mse_loss(prepared[0](x), y))
                engine.backward(F.mse_loss(prepared[1](x), y))
                engine.step(first), engine.step(second)
        engine.check_replicas()
    return [flat(each) for each in models]


def left_out():
    """A micro-batch without a backward, at a window's beginning and at its end."""
    texts = []
    with Engine(device="cpu", gradient_accumulation_steps=2) as engine:
        model, opt = nn.Linear(4, 1), None
        model, opt = engine.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        for n_samples, last in ((None, False), (2, True)):
            try:
                with engine.accumulate(n_samples=n_samples, last=last):
                    pass
            except RuntimeError as error:
                texts.append(str(error))
    return texts


def forgotten():
    """A model that is trained, forgotten, and trained as another engine's preparation."""
    torch.manual_seed(0)
    bare = nn.Linear(4, 1)
    found = {}
    with Engine(device="cpu") as engine:

        def train():
            model, opt = engine.prepare(bare, torch.optim.SGD(bare.parameters(), 0.1))
            for x, y in own_parts(engine.rank):
                with engine.accumulate(n_samples=len(x)):
                    engine.backward(F.mse_loss(model(x), y))
                    engine.step(opt)
            engine.check_replicas()
            engine.forget(model)
            assert model.process_group is None
            assert torch.equal(model(x), bare(x))
            return weakref.ref(model), weakref.ref(opt)

        first = train()
        gc.collect()
        found["freed"] = [each() is None for each in first]
        train()
        found["weights"] = flat(bare)
    return found


@pytest.fixture(scope="module")
def ranks():
    return run_together(2, two_models_in_uneven_windows, left_out, forgotten)


def test_a_forgotten_replica_is_freed_and_trains_on_when_prepared_again(ranks):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    for index in [0, 1, 2, 3] * 2:
        x, y = (torch.cat(each) for each in zip(*[own_parts(rank)[index] for rank in (0, 1)]))
        opt.zero_grad()
        F.mse_loss(model(x), y).backward()
        opt.step()
    for found in ranks["forgotten"]:
        assert found["freed"] == [True, True]
        torch.testing.assert_close(found["weights"], flat(model), rtol=1e-5, atol=1e-6)


def test_a_batch_that_a_rank_leaves_out_is_an_error_that_names_the_rank(ranks):
    for rank, texts in enumerate(ranks["left_out"]):
        assert len(texts) == 2
        for text in texts:
            assert f"micro-batch 1 of a window had no backward on rank {rank}, and the other ranks count on it" in text


def both_ranks(start):
    """What both ranks read in a window."""
    parts = [own_parts(rank)[index] for rank in (0, 1) for index in (start, start + 1)]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def test_two_models_in_uneven_windows_train_as_on_the_whole_batch(ranks):
    torch.manual_seed(0)
    models = [nn.Linear(4, 1), nn.Linear(4, 1)]
    for index, model in enumerate(models):
        opt = torch.optim.SGD(model.parameters(), 0.1)
        for start in (0, 2):
            x, y = both_ranks(start)
            opt.zero_grad()
            F.mse_loss(model(x), y).backward()
            opt.step()
        for found in ranks["two_models_in_uneven_windows"]:
            torch.testing.assert_close(found[index], flat(model), rtol=1e-5, atol=1e-6)
