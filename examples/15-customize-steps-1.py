"""Steps of your own through TrainerBase: mix-up in training, test-time flipping in evaluation."""

import torch
from data import loaders
from models import mlp
from torch.nn import functional as F

from deepepochs import TrainerBase, ValuePatch, metrics, set_seed


class MixUpTrainer(TrainerBase):
    """Trains on mixed pairs (Zhang et al. 2018, https://arxiv.org/abs/1710.09412)."""

    def train_step(self, batch_x, batch_y, **step_args):
        share = torch.distributions.Beta(0.3, 0.3).sample().item()
        order = torch.randperm(len(batch_x))
        out = self.model(share * batch_x + (1 - share) * batch_x[order])
        labels = F.one_hot(batch_y, 10).float()
        self.loss(out, share * labels + (1 - share) * labels[order], do_metric=False)  # loss, gradients, update
        self.do_metric(model_out=out, batch_y=batch_y)
        return {"share": ValuePatch(len(batch_x)).load(share)}

    def evaluate_step(self, batch_x, batch_y, **step_args):
        out = self.model(batch_x) + self.model(batch_x.roll(1, -1)) + self.model(batch_x.roll(-1, -1))
        self.loss(out / 3, batch_y)


if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()
    with MixUpTrainer(mlp(), F.cross_entropy, epochs=5, metrics=[metrics.accuracy]) as trainer:
        trainer.fit(train_dl, val_dl)
        trainer.test(test_dl)
