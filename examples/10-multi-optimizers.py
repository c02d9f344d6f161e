"""Several optimizers: each trains a part of the model, with a schedule of its own."""

from data import loaders
from torch import nn, optim
from torch.nn import functional as F

from deepepochs import Optimizer, Trainer, metrics, set_seed

if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU())
    head = nn.Linear(64, 10)
    body_opt = optim.Adam(body.parameters(), lr=1e-3)
    head_opt = optim.SGD(head.parameters(), lr=0.1)
    opt = [Optimizer(body_opt, optim.lr_scheduler.ExponentialLR(body_opt, 0.9)), head_opt]
    with Trainer(nn.Sequential(body, head), F.cross_entropy, opt, epochs=4, metrics=[metrics.accuracy]) as trainer:
        trainer.fit(train_dl, val_dl)
        trainer.test(test_dl)
        print("learning rates:", trainer.opt.get_current_lr())
