"""Basic training: a convolution net learns handwritten digits, and is tested on digits it has not seen."""

from data import loaders
from torch import nn, optim
from torch.nn import functional as F

from deepepochs import Trainer, metrics, set_seed

if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()

    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    model(next(iter(train_dl))[0])  # lets the lazy layer see its input's size

    opt = optim.Adam(model.parameters(), lr=2e-3)

    with Trainer(model, F.cross_entropy, opt, epochs=8, metrics=[metrics.accuracy]) as trainer:
        progress = trainer.fit(train_dl, val_dl)
        results = trainer.test(test_dl)

    print(f"test accuracy after {len(progress['train']['loss'])} epochs: {results['accuracy']:.2%}")
