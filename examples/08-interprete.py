"""Interpretation: the samples with the largest loss, as records and as images in TensorBoard."""

import sys

from data import loaders
from models import mlp
from torch.nn import functional as F

from deepepochs import InterpreteCallback, Trainer, metrics, set_seed


def sample_loss(preds, targets):
    """One score for each sample."""
    return F.cross_entropy(preds, targets, reduction="none")


if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()
    log_dir = sys.argv[1] if len(sys.argv) > 1 else "logs"
    hardest = InterpreteCallback(
        sample_loss, k=5, mode="max", stages=("test",), class_num=10, log_dir=log_dir, image_data=True
    )
    with Trainer(mlp(), F.cross_entropy, epochs=5, metrics=[metrics.accuracy], callbacks=[hardest]) as trainer:
        trainer.fit(train_dl, val_dl)
        trainer.test(test_dl)
        for value, pred, label, image in hardest.top_samples():
            print(f"loss {float(value):.3f}: {label} taken for {pred.argmax()}, image {tuple(image.shape)}")
