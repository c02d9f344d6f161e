"""Training on all ranks against one process on the union of their batches: accumulation, clipping, two optimizers.

    torchrun --standalone --nproc-per-node=4 tests/multigpu_training.py --expected-world-size 4 --precision fp16 \
        --output /tmp/training-4-fp16.json

Runs on gloo and the CPU with --device cpu.
"""

import argparse
import itertools

import smoke
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import GradClipCallback, Trainer
from deepepochs.engine import Engine

BOUNDS = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 5e-2}


class Halves(nn.Module):
    """Two models with an optimizer each; the output is their sum."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.one = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.other = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.one(x) + self.other(x)


def optimizers(model):
    """One for each half."""
    return [torch.optim.SGD(half.parameters(), lr=0.05) for half in (model.one, model.other)]


def reference(x, y, steps, drop_last, max_norm, world_size, batch_size, epochs):
    """One process in single precision: each update on the union of all ranks' batches."""
    model = Halves()
    opts = optimizers(model)
    count = len(x) // world_size if drop_last else -(-len(x) // world_size)
    order = (list(range(len(x))) * 2)[: count * world_size]
    size = batch_size * world_size
    rows = [order[start : start + size] for start in range(0, len(order), size)]
    rows = [each for each in rows if len(each) == size] if drop_last else rows
    for _ in range(epochs):
        for start in range(0, len(rows), steps):
            window = sum(rows[start : start + steps], [])
            F.mse_loss(model(x[window]), y[window]).backward()
            if max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            for opt in opts:
                opt.step()
                opt.zero_grad()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def main():
    """Every combination; the gaps to the reference go into the output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--expected-world-size", type=int, required=True)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default=None)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(61, 8, generator=generator)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(61, 1, generator=generator)
    gaps = {}
    for steps, drop_last, max_norm in itertools.product((1, 2, 3), (False, True), (None, 0.5)):
        model = Halves()
        options = {"precision": arguments.precision, "gradient_accumulation_steps": steps}
        with Engine(arguments.device, **options) as engine:
            smoke.check(engine.world_size == arguments.expected_world_size, f"{engine.world_size} processes")
            callbacks = [] if max_norm is None else [GradClipCallback(max_norm, 2)]
            with Trainer(
                model, F.mse_loss, optimizers(model), epochs=2, engine=engine, callbacks=callbacks, show_info=False
            ) as trainer:
                if arguments.precision == "fp16":
                    engine.load_state_dict({**engine.state_dict(), "scaler": small_scale(engine)})
                trainer.fit(DataLoader(TensorDataset(x, y), batch_size=4, drop_last=drop_last))
            found = torch.cat([each.detach().cpu().flatten() for each in model.parameters()])
            same = engine.gather_object(found)
            smoke.check(all(torch.equal(each, found) for each in same), "all ranks have the same weights")
            expected = reference(x, y, steps, drop_last, max_norm, engine.world_size, 4, 2)
            gap = float((found - expected).norm() / expected.norm())
            name = f"accumulation {steps}, drop_last {drop_last}, max_norm {max_norm}"
            smoke.check(gap <= BOUNDS[arguments.precision], f"{name}: differs by {gap:.1e}")
            gaps[name] = gap
            is_main, world_size, device = engine.is_main, engine.world_size, str(engine.device)
    if is_main:
        smoke.write(".", arguments.output, {"world_size": world_size, "device": device, "gaps": gaps})
        print(f"PASSED: {len(gaps)} checks on {world_size} processes, largest gap {max(gaps.values()):.1e}")


def small_scale(engine):
    """A loss scale that does not overflow at the start, so that every update is compared."""
    return {**engine.state_dict()["scaler"], "scale": 128.0}


if __name__ == "__main__":
    main()
