"""Gradient accumulation over batches, on any number of processes: four batches of each process, one update.

python examples/23-grad_accumulate-2.py [PROCESSES]
"""

import sys

from data import loaders
from models import mlp
from torch import optim
from torch.nn import functional as F

from deepepochs import Trainer, launch, metrics, set_seed


def main():
    """Effective batch: batch_size x processes x 4; the last window of an epoch may be shorter."""
    set_seed(42)
    train_dl, val_dl, test_dl = loaders(batch_size=16)
    model = mlp()
    opt = optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    with Trainer(
        model, F.cross_entropy, opt, epochs=2, gradient_accumulation_steps=4, metrics=[metrics.accuracy]
    ) as trainer:
        trainer.fit(train_dl, val_dl)
        return trainer.test(test_dl)


if __name__ == "__main__":
    results = launch(main, int(sys.argv[1]) if len(sys.argv) > 1 else None)
    print(results)
