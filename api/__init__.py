"""DeepEpochs: a PyTorch training library that is exact, small, and nearly as fast as a bare loop."""

from deepepochs.engine import launch, set_seed

from . import metrics
from .aggregation.patches import ConfusionMetrics, ConfusionPatch, MeanPatch, PatchBase, TensorPatch, ValuePatch
from .board import run_tensorboard
from .callbacks import (
    AnalyzeCallback,
    Callback,
    CheckCallback,
    GradClipCallback,
    InterpreteCallback,
    LogCallback,
    LRFindCallback,
)
from .exceptions import CallbackException, LoopException, StopLoopException
from .loop.task import EpochTask
from .optimizer import Optimizer, Optimizers
from .plotting import plot_confusion
from .tools import batches, concat, groupby_apply, make_runningid, rename
from .trainer import Trainer, TrainerBase
from .version import __version__ as __version__

__all__ = [
    "AnalyzeCallback",
    "Callback",
    "CallbackException",
    "CheckCallback",
    "ConfusionMetrics",
    "ConfusionPatch",
    "EpochTask",
    "GradClipCallback",
    "InterpreteCallback",
    "LRFindCallback",
    "LogCallback",
    "LoopException",
    "MeanPatch",
    "Optimizer",
    "Optimizers",
    "PatchBase",
    "StopLoopException",
    "TensorPatch",
    "Trainer",
    "TrainerBase",
    "ValuePatch",
    "batches",
    "concat",
    "groupby_apply",
    "launch",
    "make_runningid",
    "metrics",
    "plot_confusion",
    "rename",
    "run_tensorboard",
    "set_seed",
]
