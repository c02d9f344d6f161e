"""The learning-rate finder: raises the rate exponentially, watches the loss, and suggests a rate."""

from data import loaders
from models import mlp
from torch import optim
from torch.nn import functional as F

from deepepochs import LRFindCallback, Trainer, set_seed

if __name__ == "__main__":
    set_seed(1)
    train_dl, _, _ = loaders()
    model = mlp()
    finder = LRFindCallback(max_batch=60, min_lr=1e-6, max_lr=5)
    with Trainer(
        model, F.cross_entropy, optim.SGD(model.parameters(), lr=0.1), epochs=2, callbacks=[finder]
    ) as trainer:
        trainer.fit(train_dl)
    print(f"suggested learning rate: {finder.suggestion:.2e}")
