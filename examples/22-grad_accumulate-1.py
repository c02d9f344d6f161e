"""Gradient accumulation by hand: each batch is cut into pieces that fit into memory, and makes one update."""

from data import loaders
from models import mlp
from torch.nn import functional as F

from deepepochs import TrainerBase, batches, concat, metrics, set_seed


class PiecewiseTrainer(TrainerBase):
    """The gradients of the pieces add up to those of the whole batch."""

    def train_step(self, batch_x, batch_y, size=16, **step_args):
        pieces = list(batches((batch_x, batch_y), size))
        outs = []
        with self.no_sync():  # several processes exchange gradients with the last piece only
            for x, y in pieces[:-1]:
                outs.append(self.train_piece(x, y, len(batch_x)))
        outs.append(self.train_piece(*pieces[-1], len(batch_x)))
        self.optimize()
        self.do_metric(F.cross_entropy(concat(outs), batch_y), concat(outs), batch_y)

    def train_piece(self, x, y, whole):
        """Adds a piece's gradients."""
        out = self.model(x.to(self.device))
        self.loss(out, y.to(self.device), loss_adjust=len(x) / whole, do_optimize=False, do_metric=False)
        return out.detach()


if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders(batch_size=64)
    with PiecewiseTrainer(
        mlp(), F.cross_entropy, epochs=3, metrics=[metrics.accuracy], auto_traindata_to_device=False
    ) as trainer:
        trainer.fit(train_dl, val_dl)
        print(trainer.test(test_dl))
