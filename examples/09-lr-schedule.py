"""Learning-rate schedules: one that moves with every update, and one that waits for the validation loss."""

from data import loaders
from models import mlp
from torch import optim
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

from deepepochs import Optimizer, Trainer, metrics, set_seed

if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()

    model = mlp()
    opt = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    cycle = OneCycleLR(opt, max_lr=0.2, total_steps=3 * len(train_dl))
    with Trainer(
        model, F.cross_entropy, Optimizer(opt, cycle, sched_on="step"), epochs=3, metrics=[metrics.accuracy]
    ) as trainer:
        trainer.fit(train_dl, val_dl)
        print("learning rate at the end of the cycle:", trainer.opt.get_last_lr())

    model = mlp()
    opt = optim.SGD(model.parameters(), lr=0.1)
    plateau = ReduceLROnPlateau(opt, patience=0, threshold=0.1)
    with Trainer(model, F.cross_entropy, Optimizer(opt, plateau, sched_with_loss=True), epochs=4) as trainer:
        trainer.fit(train_dl, val_dl)
        print("learning rate after the plateaus:", trainer.opt.get_current_lr())
