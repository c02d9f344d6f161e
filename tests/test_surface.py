"""The public surface (S5, S6): these names, and a light import."""

import subprocess
import sys

import deepepochs
import deepepochs.engine

NAMES = {
    "AnalyzeCallback", "Callback", "CallbackException", "CheckCallback", "ConfusionMetrics", "ConfusionPatch",
    "EpochTask", "GradClipCallback", "InterpreteCallback", "LRFindCallback", "LogCallback", "LoopException",
    "MeanPatch", "Optimizer", "Optimizers", "PatchBase", "StopLoopException", "TensorPatch", "Trainer", "TrainerBase",
    "ValuePatch", "batches", "concat", "groupby_apply", "launch", "make_runningid", "metrics", "plot_confusion",
    "rename", "run_tensorboard", "set_seed",
}  # fmt: skip
HEAVY = ["tensorboard", "matplotlib", "torchmetrics", "rich", "lightning", "sklearn", "pandas"]


def test_the_public_names():
    assert set(deepepochs.__all__) == NAMES
    assert all(hasattr(deepepochs, name) for name in NAMES)
    assert deepepochs.__all__ == sorted(deepepochs.__all__)
    assert deepepochs.engine.__all__ == sorted(deepepochs.engine.__all__)
    assert all(hasattr(deepepochs.engine, name) for name in deepepochs.engine.__all__)


def test_every_public_object_is_documented():
    for name in NAMES - {"metrics"}:
        assert len(getattr(deepepochs, name).__doc__) > 20, name


def test_importing_brings_nothing_heavy():
    code = (
        "import sys, torch; before = set(sys.modules); import deepepochs; "
        f"print([name for name in {HEAVY!r} if name in set(sys.modules) - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
