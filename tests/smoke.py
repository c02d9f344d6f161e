"""What the smoke scripts share: a small training on real digits whose every result is checked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from deepepochs import CheckCallback, LogCallback, Trainer, metrics, set_seed


def digits(samples: int | None = None) -> TensorDataset:
    """scikit-learn's digits: (1, 8, 8) float within [0, 1], and 0 to 9."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return TensorDataset(images[:samples], torch.tensor(labels)[:samples])


def check(is_good: bool, what: str) -> None:
    """Ends the script with an error that says what does not hold."""
    if not is_good:
        raise SystemExit(f"FAILED: {what}")


def train(output: str, device: str | None, precision: str, epochs: int = 3) -> dict[str, Any]:
    """Trains, validates, saves the best model and tests it; checks the results and writes them as JSON.

    Args:
        output: the folder for checkpoints, logs and `result.json`.
        device: as the Trainer takes it.
        precision: as the Trainer takes it.
        epochs: how many.
    """
    set_seed(7)
    data = digits()
    train_set, val_set = torch.utils.data.random_split(data, [1397, 400], torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    checker = CheckCallback("loss", ckpt_dir=output)
    with Trainer(
        model,
        F.cross_entropy,
        torch.optim.Adam(model.parameters(), lr=5e-3),
        epochs=epochs,
        device=device,
        precision=precision,
        metrics=[metrics.accuracy],
        callbacks=[checker, LogCallback(output)],
        running_id="smoke",
    ) as trainer:
        engine = trainer.engine
        progress = trainer.fit(DataLoader(train_set, batch_size=32, shuffle=True), DataLoader(val_set, batch_size=64))
        present = [each.clone() for each in model.parameters()]
        results = trainer.test(DataLoader(val_set, batch_size=50))
        check(all(torch.equal(a, b) for a, b in zip(present, model.parameters())), "test() gives the weights back")
        best = min(progress["val"]["loss"])
        tolerance = 1e-4 if precision == "fp32" else 5e-2
        check(
            math.isclose(results["loss"], best, rel_tol=tolerance), f"test() uses the best: {results['loss']}, {best}"
        )
        check(results["accuracy"] > 0.8, f"accuracy {results['accuracy']}")
        found = {
            "progress": progress,
            "results": results,
            "world_size": engine.world_size,
            "device": str(engine.device),
        }
        everywhere = engine.gather_object((found["progress"], found["results"]))
        check(all(each == everywhere[0] for each in everywhere), "all ranks have the same metrics")
        weights = engine.gather_object(torch.cat([each.detach().cpu().flatten() for each in model.parameters()]))
        check(all(torch.equal(each, weights[0]) for each in weights), "all ranks have the same weights")
        if trainer.main_process:
            write(output, "result.json", found)
    return found


def write(folder: str, name: str, found: Any) -> None:
    """Writes results as JSON."""
    path = Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1))
