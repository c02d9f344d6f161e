"""One `step` for all stages: an autoencoder, whose target is its input."""

from data import loaders
from torch import nn
from torch.nn import functional as F

from deepepochs import TrainerBase, ValuePatch, set_seed


class AutoencoderTrainer(TrainerBase):
    """`step` goes before train_step, val_step, test_step and evaluate_step."""

    def step(self, batch_x, batch_y, **step_args):
        rebuilt = self.model(batch_x)
        self.loss(rebuilt, batch_x)  # in training also gradients and update
        return {"largest error": ValuePatch(len(batch_x)).load((rebuilt - batch_x).abs().amax((1, 2, 3)).mean())}


if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    decoder = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid(), nn.Unflatten(1, (1, 8, 8)))
    with AutoencoderTrainer(nn.Sequential(encoder, decoder), F.mse_loss, epochs=5) as trainer:
        trainer.fit(train_dl, val_dl)
        print(trainer.test(test_dl))
