"""Distributed training with mixed precision: one process for each GPU, or as many on the CPU as you say.

python examples/21-distributed.py                                        # a process for each visible GPU
python examples/21-distributed.py 2                                      # two processes
torchrun --standalone --nproc-per-node=2 examples/21-distributed.py      # started from outside
"""

import sys

from data import loaders
from models import mlp
from torch import optim
from torch.nn import functional as F

from deepepochs import Trainer, launch, metrics, set_seed


def main():
    """What each process runs: model, data and trainer are made here."""
    set_seed(42)
    model = mlp()
    opt = optim.Adam(model.parameters(), lr=1e-3)
    with Trainer(
        model,
        F.cross_entropy,
        opt,
        epochs=2,
        precision="bf16",
        split_batches=True,  # the loader's batch size is that of all processes together
        metrics=[metrics.accuracy],
        metric_patch="confusion",
    ) as trainer:
        with trainer.main_process_first():  # the place for downloads and caches
            train_dl, val_dl, test_dl = loaders(batch_size=64)
        trainer.fit(train_dl, val_dl)
        return trainer.test(test_dl)


if __name__ == "__main__":
    results = launch(main, int(sys.argv[1]) if len(sys.argv) > 1 else None)
    print(results)
