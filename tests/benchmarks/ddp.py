"""What data-parallel training costs beyond a bare DistributedDataParallel loop: ratios on two gloo processes (F3).

    python tests/benchmarks/ddp.py [--steps 300] [--rounds 5]

Accelerate and Fabric are measured beside it where they are installed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from deepepochs import Trainer, launch
from deepepochs.engine import Engine


def data(steps):
    """Samples for so many steps of two ranks."""
    generator = torch.Generator().manual_seed(0)
    count = 64 * steps
    return TensorDataset(
        torch.randn(count, 32, generator=generator), torch.randint(0, 10, (count,), generator=generator)
    )


def parts():
    """A model and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def loop(model, opt, batches, backward):
    """The loop that everybody writes; returns the seconds that it took."""
    total, samples = torch.zeros(()), 0
    dist.barrier()
    start = time.perf_counter()
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        backward(loss)
        opt.step()
        total += loss.detach() * len(x)
        samples += len(x)
    (total / samples).item()
    return time.perf_counter() - start


def bare(dataset):
    model, opt = parts()
    batches = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset, shuffle=False))
    return loop(DistributedDataParallel(model), opt, batches, lambda loss: loss.backward())


def trainer(dataset):
    model, opt = parts()
    with Trainer(model, F.cross_entropy, opt, epochs=1, device="cpu", show_info=False, log_batch=False) as it:
        dist.barrier()
        start = time.perf_counter()
        it.fit(DataLoader(dataset, batch_size=32))
        return time.perf_counter() - start


def accelerate(dataset):
    from accelerate import Accelerator

    it = Accelerator(cpu=True)
    model, opt, batches = it.prepare(*parts(), DataLoader(dataset, batch_size=32))
    return loop(model, opt, batches, it.backward)


def fabric(dataset):
    from lightning.fabric import Fabric

    it = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    it.launch()
    model, opt = it.setup(*parts())
    batches = it.setup_dataloaders(DataLoader(dataset, batch_size=32))
    return loop(model, opt, batches, it.backward)


def main():
    """Interleaved rounds on each rank; rank 0's medians come back."""
    torch.set_num_threads(1)
    arguments = parse()
    found = {}
    with Engine(device="cpu"):
        dataset, small = data(arguments.steps), data(20)
        for candidate in (trainer, accelerate, fabric):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    bare(small), candidate(small)
            except ImportError:
                continue
            ratios = []
            for _ in range(arguments.rounds):
                gc.collect()
                base = bare(dataset)
                gc.collect()
                with contextlib.redirect_stdout(io.StringIO()):
                    ratios.append(candidate(dataset) / base)
            found[candidate.__name__] = (
                statistics.median(ratios),
                min(ratios),
                max(ratios),
                base / arguments.steps * 1e6,
            )
    return found


def parse():
    """The command line, which each process reads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    parse()
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, two gloo processes")
    for name, (ratio, low, high, step) in launch(main, 2).items():
        print(f"{name:12} ratio {ratio:.3f} (min {low:.3f} max {high:.3f})  bare {step:.0f} us a step")
