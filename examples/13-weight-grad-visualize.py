"""Layer analysis: the distribution of every layer's outputs and gradients, in TensorBoard."""

import sys

from data import loaders
from models import mlp
from torch.nn import functional as F

from deepepochs import AnalyzeCallback, Trainer, set_seed

if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, _ = loaders()
    log_dir = sys.argv[1] if len(sys.argv) > 1 else "logs"
    analyzers = [AnalyzeCallback("forward", log_dir=log_dir), AnalyzeCallback("backward", log_dir=log_dir)]
    with Trainer(mlp(), F.cross_entropy, epochs=2, callbacks=analyzers) as trainer:
        trainer.fit(train_dl, val_dl)
