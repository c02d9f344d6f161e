"""Hyper-parameters: several runs whose settings and test metrics stand side by side in TensorBoard."""

import sys

from data import loaders
from torch import nn, optim
from torch.nn import functional as F

from deepepochs import LogCallback, Trainer, make_runningid, metrics, set_seed

if __name__ == "__main__":
    log_dir = sys.argv[1] if len(sys.argv) > 1 else "logs"
    for lr in (1e-3, 1e-2):
        for hidden in (16, 64):
            set_seed(1)
            train_dl, val_dl, test_dl = loaders()
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
            with Trainer(
                model,
                F.cross_entropy,
                optim.Adam(model.parameters(), lr=lr),
                epochs=2,
                metrics=[metrics.accuracy],
                callbacks=[LogCallback(log_dir)],
                hyper_params={"lr": lr, "hidden": hidden},
                running_id=make_runningid("hparams", other_info=f"{lr}-{hidden}"),
                show_info=False,
            ) as trainer:
                trainer.fit(train_dl, val_dl)
                trainer.test(test_dl)
