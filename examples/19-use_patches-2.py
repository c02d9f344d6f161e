"""Built-in patches in steps: values, means, tensors, and several metrics of one confusion matrix."""

from data import loaders
from models import mlp
from torch.nn import functional as F

from deepepochs import ConfusionMetrics, MeanPatch, TensorPatch, TrainerBase, ValuePatch, metrics, set_seed


def confidence(preds, targets):
    """The mean probability of the right class."""
    return preds.softmax(1).gather(1, targets[:, None]).mean()


class PatchTrainer(TrainerBase):
    """Returns {name: patch}; the patches of all batches add up to the epoch's metrics."""

    def evaluate_step(self, batch_x, batch_y, **step_args):
        out = self.model(batch_x)
        loss = self.loss(out, batch_y, do_metric=False)
        size = len(batch_x)
        return {
            "loss": ValuePatch(size).load(loss),
            "confidence": MeanPatch(confidence, size).load(out, batch_y),
            "f1": TensorPatch(metrics.f1).load(out, batch_y),
            "matrix": ConfusionMetrics(["accuracy", "precision", "recall"], average="macro").load(out, batch_y),
        }


if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()
    with PatchTrainer(mlp(), F.cross_entropy, epochs=3) as trainer:
        trainer.fit(train_dl, val_dl)
        print(trainer.test(test_dl))
