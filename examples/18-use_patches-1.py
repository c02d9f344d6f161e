"""Built-in patches through the trainer: the same metric accumulated in three ways."""

from data import loaders
from models import mlp
from torch.nn import functional as F

from deepepochs import Trainer, metrics, set_seed


def accuracy(preds, targets):
    """A mean over samples: each way of accumulation is right for it."""
    return (preds.argmax(1) == targets).float().mean()


def train(metric_patch, metric):
    """Trains the same model on the same batches; returns its test metrics."""
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()
    with Trainer(mlp(), F.cross_entropy, epochs=2, metrics=[metric], metric_patch=metric_patch) as trainer:
        trainer.fit(train_dl, val_dl)
        return trainer.test(test_dl)


if __name__ == "__main__":
    print(train("tensor", accuracy))  # keeps predictions and targets
    print(train("mean", accuracy))  # keeps a weighted sum
    print(train("confusion", metrics.accuracy))  # keeps the confusion matrix, and the metric gets it
