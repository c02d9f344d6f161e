"""Throughput of training a nine-layer convolution net on images of 224x224 held in memory.

    torchrun --standalone --nproc-per-node=2 tests/multigpu_benchmark.py --expected-world-size 2 --precision bf16 \
        --warmup 20 --steps 200 --batch-size 32 --output /tmp/benchmark-2-bf16.json

The batch size is that of each process. Times, throughput and peak memory of every rank go into the output. With
--device cpu and --image-size it runs anywhere.
"""

import argparse
import time

import smoke
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from deepepochs import Callback, Trainer
from deepepochs.engine import Engine


class Images(Dataset):
    """A few synthetic images, again and again."""

    def __init__(self, count, size):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.rand(64, 3, size, size, generator=generator)
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.images[index % 64], index % 100


def nine_layers():
    """Nine convolutions, each with a batch norm, and a classifier of 100 classes: 5,244,968 parameters."""
    layers, width = [], 3
    for index, out in enumerate((24, 24, 64, 128, 160, 160, 384, 512, 512)):
        stride = 2 if index % 2 else 1
        layers += [nn.Conv2d(width, out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100, bias=False))


class Clock(Callback):
    """Notes when each step has ended on the device."""

    def __init__(self, device):
        super().__init__()
        self.device, self.ends = device, []

    def on_after_optimize(self, **others):
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def main():
    """Trains the steps and writes what they took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--expected-world-size", type=int, required=True)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default=None)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    steps = arguments.warmup + arguments.steps
    with Engine(arguments.device, precision=arguments.precision) as engine:
        smoke.check(engine.world_size == arguments.expected_world_size, f"{engine.world_size} processes")
        torch.manual_seed(0)
        model = nine_layers()
        clock = Clock(engine.device)
        data = Images(steps * arguments.batch_size * engine.world_size, arguments.image_size)
        loader = DataLoader(data, batch_size=arguments.batch_size, pin_memory=engine.device.type == "cuda")
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
        start = time.perf_counter()
        with Trainer(
            model, F.cross_entropy, opt, epochs=1, engine=engine, callbacks=[clock], show_info=False, log_batch=False
        ) as trainer:
            trainer.fit(loader)
        ends = clock.ends[arguments.warmup - 1 :] if arguments.warmup else [start, *clock.ends]
        spent = ends[-1] - ends[0]
        own = {
            "rank": engine.rank,
            "seconds": spent,
            "step_ms": [1e3 * (b - a) for a, b in zip(ends, ends[1:])],
            "images_per_s": arguments.steps * arguments.batch_size / spent,
            "peak_memory_mb": torch.cuda.max_memory_allocated() / 2**20 if engine.device.type == "cuda" else None,
            "fit_seconds": time.perf_counter() - start,
        }
        ranks = engine.gather_object(own)
        samples = arguments.steps * arguments.batch_size * engine.world_size
        total = samples / max(each["seconds"] for each in ranks)
        if engine.is_main:
            parameters = sum(each.numel() for each in model.parameters())
            convolutions = sum(isinstance(each, nn.Conv2d) for each in model.modules())
            size = {"convolutions": convolutions, "parameters": parameters}
            found = {**vars(arguments), **size, "images_per_s": total, "ranks": ranks}
            smoke.write(".", arguments.output, found)
            print(f"PASSED: {total:.1f} images/s on {engine.world_size} processes, {parameters:,} parameters")


if __name__ == "__main__":
    main()
