"""What an atomic checkpoint costs beyond torch.save and fsync of the same data: ratios from interleaved rounds.

python tests/benchmarks/saving.py [--megabytes 200] [--rounds 7]
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from deepepochs.engine import save_file


def plain(path, content):
    """What everybody writes, made to last."""
    with open(path, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def timed(function, path, content):
    start = time.perf_counter()
    function(path, content)
    return time.perf_counter() - start


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    tensors = {f"layer{index}": torch.randn(arguments.megabytes * 2**20 // 4 // 50) for index in range(50)}
    content = {"model_state": tensors, "epoch": 1}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        ratios = []
        for _ in range(arguments.rounds):
            base = timed(plain, Path(folder, "plain"), content)
            ratios.append(timed(save_file, Path(folder, "atomic"), content) / base)
    spread = f"(min {min(ratios):.3f} max {max(ratios):.3f})"
    print(f"{arguments.megabytes} MB: ratio {statistics.median(ratios):.3f} {spread}, plain {base:.2f} s")
