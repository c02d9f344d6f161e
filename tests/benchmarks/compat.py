"""What a LightningModule costs over the bare loop: with Lightning, and here; prints ratios.

Run: python tests/benchmarks/compat.py [--steps 1500] [--rounds 5] [--base lightning|light]
"""

import argparse
import logging
import statistics
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import compat

QUIET = {
    "max_epochs": 1,
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))


def loader(steps):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(steps * 32, 32, generator=generator)
    return DataLoader(TensorDataset(x, torch.randint(10, (len(x),), generator=generator)), batch_size=32)


def bare(steps):
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    total, data = torch.zeros(()), loader(steps)
    begin = time.perf_counter()
    for x, y in data:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach() * len(x)
    total.item()
    return time.perf_counter() - begin


def module(base, logs):
    class Module(base):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = F.cross_entropy(self.net(x), y)
            if logs:
                self.log("loss", loss, on_step=False, on_epoch=True, batch_size=len(x))
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Module()


def fit(trainer_class, base, logs):
    def run(steps):
        made, data = module(base, logs), loader(steps)
        trainer = trainer_class(**QUIET)
        begin = time.perf_counter()
        trainer.fit(made, data)
        return time.perf_counter() - begin

    return run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    import lightning.pytorch as pl

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    kinds = {
        f"{name}, {'logging' if logs else 'silent'}": fit(trainer_class, base, logs)
        for logs in (True, False)
        for name, trainer_class, base in (
            ("Lightning", pl.Trainer, pl.LightningModule),
            ("here, Lightning's class", compat.LightningTrainer, pl.LightningModule),
            ("here, the light class", compat.LightningTrainer, compat.LightningModule),
        )
    }
    times = {name: [] for name in ("bare", *kinds)}
    for _ in range(options.rounds):
        for name, run in {"bare": bare, **kinds}.items():
            times[name].append(run(options.steps))
    base = statistics.median(times["bare"])
    print(f"bare loop: {base / options.steps * 1e6:.0f} us a step")
    for name in kinds:
        print(f"{name:36s} {statistics.median(times[name]) / base:.2f}")


if __name__ == "__main__":
    main()
