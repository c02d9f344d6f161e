"""TensorBoard: metrics, learning rates and the model's graph; look at them with `tensorboard --logdir logs`."""

import sys

from data import loaders
from models import mlp
from torch import optim
from torch.nn import functional as F

from deepepochs import LogCallback, Trainer, metrics, set_seed

if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()
    model = mlp()
    logger = LogCallback(log_dir=sys.argv[1] if len(sys.argv) > 1 else "logs", log_graph=True)
    with Trainer(
        model,
        F.cross_entropy,
        optim.Adam(model.parameters(), lr=1e-3),
        epochs=3,
        metrics=[metrics.accuracy],
        callbacks=[logger],
    ) as trainer:
        trainer.fit(train_dl, val_dl)
        trainer.test(test_dl)  # goes into the same log
