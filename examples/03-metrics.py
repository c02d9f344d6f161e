"""Metrics: functions, dictionaries, other names, torchmetrics functions and objects."""

from functools import partial

import torch
from data import loaders
from models import mlp
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAUROC
from torchmetrics.functional import accuracy

from deepepochs import Trainer, metrics, rename, set_seed


@rename("acc")
def torchmetrics_accuracy(preds, targets):
    """A function of torchmetrics with its arguments filled in."""
    return accuracy(preds, targets, task="multiclass", num_classes=10)


@rename("")  # the keys alone are the names
def precision_and_recall(preds, targets):
    """Several values at once."""
    return {
        "p": metrics.precision(preds, targets, average="macro"),
        "r": metrics.recall(preds, targets, average="macro"),
    }


def per_class(preds, targets):
    """A vector: the part of each digit's images that was recognised; results hold it as a numpy array."""
    matrix = metrics.confusion_matrix(preds, targets)
    return matrix.diagonal() / matrix.sum(1).clamp(min=1)


if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()
    with Trainer(mlp(), F.cross_entropy, epochs=3, metrics=[torchmetrics_accuracy, precision_and_recall]) as trainer:
        trainer.fit(train_dl, val_dl, val_metrics=[partial(metrics.f1, average="macro")])
        results = trainer.test(test_dl, metrics=[per_class, MulticlassAUROC(num_classes=10)])
    print({name: torch.as_tensor(value).tolist() for name, value in results.items()})
