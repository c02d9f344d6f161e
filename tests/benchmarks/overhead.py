"""What a training step costs beyond a bare PyTorch loop: ratios from interleaved rounds in one process (F1, F2).

    python tests/benchmarks/overhead.py [--steps 2000] [--rounds 5] [NAME ...]

The model is small on purpose: what is left is what the library itself costs.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import resource
import statistics
import sys
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from deepepochs import GradClipCallback, Trainer, metrics
from deepepochs.engine import Engine

torch.set_num_threads(1)


class Batches(Dataset):
    """Ready batches, so that the loader's own cost stays small."""

    def __init__(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(16, 32, 32, generator=generator)
        self.y = torch.randint(0, 10, (16, 32), generator=generator)
        self.steps = steps

    def __len__(self):
        return self.steps

    def __getitem__(self, index):
        if index >= self.steps:
            raise IndexError
        return self.x[index % 16], self.y[index % 16]


def loader(steps):
    """A loader of ready batches."""
    return DataLoader(Batches(steps), batch_size=None)


def parts():
    """A model and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def bare(steps, window=1, max_norm=None):
    """The loop that everybody writes."""
    model, opt = parts()
    batches = loader(steps)
    model.train()
    total, samples = torch.zeros(()), 0
    start = time.perf_counter()
    opt.zero_grad()
    for index, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x), y)
        (loss / window if window > 1 else loss).backward()
        if index % window == 0 or index == steps:
            if max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            opt.step()
            opt.zero_grad()
        total += loss.detach() * len(x)
        samples += len(x)
    (total / samples).item()
    return time.perf_counter() - start


def engine(steps):
    """The engine in a custom loop."""
    model, opt = parts()
    with Engine(device="cpu") as it:
        model, opt, batches = it.prepare(model, opt, loader(steps))
        model.train()
        total, samples = torch.zeros(()), 0
        start = time.perf_counter()
        for x, y in batches:
            with it.accumulate(model, n_samples=len(x)):
                with it.autocast():
                    loss = F.cross_entropy(model(x), y)
                it.backward(loss)
                it.step(opt)
            total += loss.detach() * len(x)
            samples += len(x)
        (total / samples).item()
        return time.perf_counter() - start


def trainer(steps, **options):
    """The Trainer."""
    model, opt = parts()
    options = {"log_batch": False, "show_info": False, "device": "cpu", "epochs": 1, **options}
    with Trainer(model, F.cross_entropy, opt, **options) as it:
        start = time.perf_counter()
        it.fit(loader(steps))
        return time.perf_counter() - start


class Terminal(io.StringIO):
    """An output that says it is a terminal."""

    def isatty(self):
        return True


def in_terminal(steps):
    """The Trainer with its default console, in a terminal."""
    with contextlib.redirect_stdout(Terminal()):
        return trainer(steps, log_batch=True, show_info=True)


def accumulated(steps):
    return trainer(steps, gradient_accumulation_steps=4)


def clipped(steps):
    return trainer(steps, callbacks=[GradClipCallback(1.0, 2)])


def with_metric(patch):
    return lambda steps: trainer(steps, metrics=[metrics.accuracy], metric_patch=patch)


# each with the bare loop that does the same work
CANDIDATES = {
    "engine": (engine, bare),
    "trainer": (trainer, bare),
    "trainer, default console": (in_terminal, bare),
    "accumulation 4": (accumulated, lambda steps: bare(steps, window=4)),
    "clipping": (clipped, lambda steps: bare(steps, max_norm=1.0)),
    "accuracy, tensor patch": (with_metric("tensor"), bare),
    "accuracy, mean patch": (with_metric("mean"), bare),
    "accuracy, confusion patch": (with_metric("confusion"), bare),
}


def quietly(function, steps):
    """Runs a candidate without its output and without the collector's pauses of others."""
    gc.collect()
    with contextlib.redirect_stdout(io.StringIO()):
        return function(steps)


def memory_mb():
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-steps", type=int, default=0, help="also measure how memory grows over so many steps")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {arguments.rounds} rounds of {arguments.steps}")
    for name, (candidate, reference) in CANDIDATES.items():
        if arguments.names and name not in arguments.names:
            continue
        quietly(reference, 200), quietly(candidate, 200)
        ratios, costs = [], []
        for _ in range(arguments.rounds):
            base = quietly(reference, arguments.steps)
            spent = quietly(candidate, arguments.steps)
            ratios.append(spent / base)
            costs.append((spent - base) / arguments.steps * 1e6)
        print(
            f"{name:28} ratio {statistics.median(ratios):.3f} (min {min(ratios):.3f} max {max(ratios):.3f})"
            f"  {statistics.median(costs):+6.1f} us a step",
            flush=True,
        )
    if arguments.memory_steps:
        for patch in ("mean", "confusion"):
            quietly(with_metric(patch), 1000)
            before = memory_mb()
            quietly(with_metric(patch), arguments.memory_steps)
            print(f"memory, {patch} patch, {arguments.memory_steps} steps: {memory_mb() - before:+.1f} MB")


if __name__ == "__main__":
    main()
