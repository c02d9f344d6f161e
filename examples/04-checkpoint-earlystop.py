"""Checkpoints: keep the best model, stop early, go on after an interruption, and test with the best weights."""

import sys
import tempfile

from data import loaders
from models import mlp
from torch import optim
from torch.nn import functional as F

from deepepochs import CheckCallback, Trainer, metrics, set_seed


def run(epochs, resume, folder):
    """Trains up to `epochs` epochs in total and tests the best model."""
    train_dl, val_dl, test_dl = loaders()
    model = mlp()
    best = CheckCallback("accuracy", on_stage="val", mode="max", patience=5, ckpt_dir=folder)
    newest = CheckCallback("loss", on_stage="val", mode="min", save_best=False, ckpt_dir=folder)
    with Trainer(
        model,
        F.cross_entropy,
        optim.Adam(model.parameters(), lr=1e-3),
        epochs=epochs,
        metrics=[metrics.accuracy],
        callbacks=[best, newest],
        resume=resume,  # True: the newest file, or from the start if there is none
        running_id="digits",
    ) as trainer:
        trainer.fit(train_dl, val_dl)
        return trainer.test(test_dl)  # with the best weights, which are given back afterwards


if __name__ == "__main__":
    set_seed(1)
    with tempfile.TemporaryDirectory() as own:
        folder = sys.argv[1] if len(sys.argv) > 1 else own
        run(4, True, folder)
        print(run(8, True, folder))  # goes on with the fifth epoch
