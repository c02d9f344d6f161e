"""A callback of your own: initialises the model, prints the largest gradient, and stops when it is good enough."""

from data import loaders
from models import mlp
from torch import nn
from torch.nn import functional as F

from deepepochs import Callback, StopLoopException, Trainer, metrics, set_seed


class Coach(Callback):
    """Listens to the events that it defines; an event that nobody listens to costs nothing."""

    def __init__(self, enough):
        super().__init__(priority=1)  # a larger one runs earlier in `before` events, later in all others
        self.enough = enough

    def on_before_fit(self, trainer, epochs):
        for module in trainer.model.modules():
            if isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def on_before_epoch(self, **others):
        self.largest = 0.0

    def on_before_optimize(self, trainer, optimize_index):
        gradients = [each.grad.abs().max() for each in trainer.model.parameters()]
        self.largest = max(self.largest, float(max(gradients)))

    def on_after_epoch(self, trainer, val_metrics, **others):
        trainer.print(f"largest gradient: {self.largest:.3f}")
        if val_metrics["accuracy"] >= self.enough:
            raise StopLoopException(f"{val_metrics['accuracy']:.2%} is good enough")


if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, _ = loaders()
    with Trainer(mlp(), F.cross_entropy, epochs=20, metrics=[metrics.accuracy], callbacks=[Coach(0.94)]) as trainer:
        progress = trainer.fit(train_dl, val_dl)
    print("epochs:", len(progress["train"]["loss"]))
