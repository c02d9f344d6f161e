"""Two processes (L1, L2): the same shards, updates and logged values as Lightning's DDP."""

import logging
import os
import warnings

import pytest
import torch

from ..helpers.ranks import run_ranks
from .parity import CASES, LightningTrainer, light, lightning, run
from .parity_modules import digits

KEPT = ("weights", "callback_metrics", "records", "steps", "returned")
NAMES = ("classifier", "gan", "measured", "accumulating", "plateau", "with_datamodule")


def both(names):
    """Each case with Lightning and here, on this rank."""
    os.environ["TORCHELASTIC_RUN_ID"] = "parity"  # how Lightning knows that torchrun started it
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    found = {}
    for name in names:
        unused = name == "gan"  # each of their backwards reaches a part of the module
        options = {"devices": 2, "strategy": "ddp_find_unused_parameters_true" if unused else "ddp"}
        _, expected = run(name, lightning(), lightning().Trainer, **options)
        _, own = run(name, lightning(), LightningTrainer, **options)
        _, own_light = run(name, light(), LightningTrainer, **options)
        found[name] = [{key: each[key] for key in KEPT} for each in (expected, own, own_light)]
    return found


def assert_close(found, expected, path):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6, msg=lambda text: f"{path}: {text}")
    elif isinstance(expected, dict):
        assert set(found) == set(expected), path
        for key in expected:
            assert_close(found[key], expected[key], f"{path}/{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), path
        for index, pair in enumerate(zip(found, expected)):
            assert_close(*pair, f"{path}/{index}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-6), path
    else:
        assert found == expected, path


def test_two_processes_give_lightnings_numbers():
    pytest.importorskip("lightning", reason="compares with Lightning")
    ranks = run_ranks(both, 2, NAMES, timeout_s=150)
    for rank, cases in enumerate(ranks):
        for name, (expected, own, own_light) in cases.items():
            assert_close(own, expected, f"{rank}/{name}")
            assert_close(own_light, expected, f"{rank}/{name} on the light base")
    for name in NAMES:
        first, second = (each[name][1]["weights"] for each in ranks)
        trained = [key for key in first if "running" not in key and "batches_tracked" not in key]
        assert all(torch.equal(first[key], second[key]) for key in trained), name


def whole_run(folder):
    """Everything that a script uses, on two ranks: files and logs of one of them, the same decisions on both."""
    warnings.simplefilter("ignore")
    from deepepochs import compat

    case = CASES["plateau"](light())
    save = compat.ModelCheckpoint(folder, "{epoch}", monitor="val_loss", save_last=True)
    logger = compat.TensorBoardLogger(folder)
    trainer = LightningTrainer(
        accelerator="cpu",
        devices=2,
        max_epochs=8,
        callbacks=[*case.callbacks, save],
        logger=logger,
        log_every_n_steps=1,
    )
    trainer.fit(case.module, case.train, case.val)
    best = trainer.validate(case.module, case.val, ckpt_path="best", verbose=False)
    case.module.predict_step = lambda batch, batch_idx: batch[1]
    predicted = trainer.predict(case.module, case.val)
    gathered = case.module.all_gather({"rank": trainer.global_rank})
    return {
        "stopped": (trainer.current_epoch, trainer.should_stop, save.best_model_path),
        "best": best,
        "labels": torch.cat(predicted).tolist(),
        "gathered": gathered["rank"].tolist(),
        "weights": dict(case.module.state_dict()),
    }


def test_files_logs_and_decisions_of_two_processes(tmp_path):
    first, second = run_ranks(whole_run, 2, str(tmp_path))
    assert first["stopped"] == second["stopped"]
    assert first["best"] == second["best"], "logged with sync_dist"
    assert first["gathered"] == second["gathered"] == [0, 1]
    assert all(torch.equal(first["weights"][name], second["weights"][name]) for name in first["weights"])
    labels = [int(label) for _, label in digits(25, 100)]
    assert first["labels"] == labels[::2]
    assert second["labels"] == labels[1::2]
    files = {path.name for path in tmp_path.glob("*.ckpt")}
    assert files == {"last.ckpt", os.path.basename(first["stopped"][2])}
    assert len(list(tmp_path.glob("lightning_logs/version_*/events*"))) >= 1
    assert len(list(tmp_path.glob("lightning_logs/*"))) == 1, "one run, whatever the number of processes"
