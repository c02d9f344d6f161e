"""Evaluation (T12): leaves no trace in what is trained."""

import random

import numpy
import torch
from torch import nn
from torch.nn import functional as F

import deepepochs as de

from ...engine.references import regression
from ..helpers import loader, quiet

X, Y = regression(22)


def test_evaluation_leaves_modes_generators_and_gradients_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[1].eval()
    model(X).sum().backward()
    gradients = [each.grad.clone() for each in model.parameters()]
    buffers = [each.clone() for each in model.buffers()]

    def draw():
        return random.random(), numpy.random.rand(), torch.rand(1).item()

    class Noisy(de.TrainerBase):
        def evaluate_step(self, batch_x, batch_y, **step_args):
            draw()
            self.loss(self.model(batch_x), batch_y)

    de.set_seed(1)
    expected = draw()
    de.set_seed(1)
    with Noisy(model, F.mse_loss, device="cpu", show_info=False) as trainer:
        trainer.test(loader(X, Y, 8, shuffle=True))
        trainer.predict(loader(X, Y, 8))
    assert draw() == expected
    assert [each.training for each in model] == [True, False, True, True]
    assert all(torch.equal(a, each.grad) for a, each in zip(gradients, model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(buffers, model.buffers()))


def test_parts_frozen_in_evaluation_mode_stay_frozen_in_training():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model[1].eval()
    with quiet(model, F.mse_loss, epochs=2) as trainer:
        trainer.fit(loader(X, Y, 8), loader(X, Y, 8))
    assert not model[1].running_mean.any()
    model.eval()
    with quiet(model, F.mse_loss, epochs=1) as trainer:
        trainer.fit(loader(X, Y, 8))  # a model that comes in evaluation mode is trained in training mode
    assert model[1].running_mean.any()
