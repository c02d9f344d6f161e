"""Evaluation on all ranks: global metrics, empty shards, schedules, early stop, checkpoints, interpretation.

    torchrun --standalone --nproc-per-node=4 tests/multigpu_evaluation.py --expected-world-size 4 --precision fp16 \
        --output /tmp/evaluation-4-fp16

Leaves checkpoints in OUTPUT/checkpoints/multiple, which tests/single_gpu_checkpoint.py takes up. Runs on gloo and the
CPU with --device cpu.
"""

import argparse
import math

import smoke
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

from deepepochs import CheckCallback, InterpreteCallback, Optimizer, Trainer, metrics
from deepepochs.engine import Engine


def model():
    """A small classifier with the same weights everywhere."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def sample_loss(preds, targets):
    """One score for each sample."""
    return F.cross_entropy(preds.float(), targets, reduction="none")


def evaluate_sizes(engine, data, tolerance):
    """Every metric on data sets down to one sample, where some ranks have none."""
    count = 0
    for size in (1, 2, 3, 5, 101):
        part = Subset(data, range(size))
        x, y = next(iter(DataLoader(part, batch_size=size)))
        for patch in ("tensor", "confusion"):
            net = model()
            options = {"engine": engine, "show_info": False, "metrics": [metrics.accuracy, metrics.f1]}
            with Trainer(net, F.cross_entropy, metric_patch=patch, **options) as trainer:
                found = trainer.test(DataLoader(part, batch_size=2))
                outputs = trainer.predict(DataLoader(part, batch_size=2, shuffle=True)).float()
            with torch.no_grad():
                expected = model()(x)
            smoke.check(torch.allclose(outputs, expected, atol=tolerance), f"predictions of {size} samples")
            loss = F.cross_entropy(expected, y).item()
            smoke.check(math.isclose(found["loss"], loss, rel_tol=tolerance, abs_tol=tolerance), f"loss of {size}")
            smoke.check(found["accuracy"] == metrics.accuracy(outputs, y).item(), f"accuracy of {size} samples")
            smoke.check(engine.gather_object(found) == [found] * engine.world_size, "all ranks agree")
            count += 4
    return count


def train(engine, data, output):
    """Schedule, early stop, several monitors and interpretation decide alike on all ranks."""
    net = model()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.2)
    folder = f"{output}/checkpoints"
    monitors = [
        CheckCallback("loss", ckpt_dir=folder, save_best=False),
        CheckCallback("accuracy", mode="max", patience=2, ckpt_dir=folder),
    ]
    keeper = InterpreteCallback(sample_loss, k=9, stages="test", log_dir=output)
    with Trainer(
        net,
        F.cross_entropy,
        Optimizer(opt, plateau, sched_with_loss=True),
        epochs=6,
        engine=engine,
        metrics=[metrics.accuracy],
        callbacks=[*monitors, keeper],
        running_id="multiple",
        show_info=False,
    ) as trainer:
        trainer.fit(
            DataLoader(Subset(data, range(1000)), batch_size=25, shuffle=True),
            DataLoader(Subset(data, range(1000, 1100)), batch_size=16),
        )
        results = trainer.test(DataLoader(Subset(data, range(1100, 1150)), batch_size=16))
        state = (trainer.init_epoch, trainer.opt.get_current_lr(), results, [each[0] for each in keeper.top_samples()])
    smoke.check(engine.gather_object(state) == [state] * engine.world_size, "all ranks decide alike")
    smoke.check(len(state[3]) == 9, "nine samples are kept over all ranks")
    return 2


def main():
    """All checks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--expected-world-size", type=int, required=True)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default=None)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    data = smoke.digits()
    with Engine(arguments.device, precision=arguments.precision) as engine:
        smoke.check(engine.world_size == arguments.expected_world_size, f"{engine.world_size} processes")
        tolerance = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 5e-2}[arguments.precision]
        count = evaluate_sizes(engine, data, tolerance) + train(engine, data, arguments.output)
        if engine.is_main:
            found = {"world_size": engine.world_size, "device": str(engine.device), "checks": count}
            smoke.write(arguments.output, "result.json", found)
            print(f"PASSED: {count} checks on {engine.world_size} processes")


if __name__ == "__main__":
    main()
