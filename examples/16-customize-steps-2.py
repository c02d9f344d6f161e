"""Steps of your own through EpochTask: each task computes differently, and gets arguments of its own."""

import torch
from data import loaders
from models import mlp
from torch.nn import functional as F

from deepepochs import EpochTask, Trainer, metrics, set_seed


class NoisyTask(EpochTask):
    """Adds noise to the images; `noise` is one of the task's step arguments."""

    def train_step(self, batch_x, batch_y, noise, **step_args):
        self.loss(self.model(batch_x + noise * torch.randn_like(batch_x)), batch_y)

    def evaluate_step(self, batch_x, batch_y, noise, **step_args):
        self.loss(self.model(batch_x + noise * torch.randn_like(batch_x)), batch_y)


if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()
    with Trainer(mlp(), F.cross_entropy, epochs=4, metrics=[metrics.accuracy]) as trainer:
        trainer.fit(
            train_tasks=NoisyTask(train_dl, noise=0.2), val_tasks=[EpochTask(val_dl), NoisyTask(val_dl, noise=0.5)]
        )
        results = trainer.test(tasks=[NoisyTask(test_dl, noise=noise) for noise in (0.0, 0.3, 0.6)])
    print({name: round(value, 3) for name, value in results.items() if name.startswith("accuracy")})
