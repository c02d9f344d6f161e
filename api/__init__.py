"""DeepEpochs: a PyTorch training library that is exact, small, and nearly as fast as a bare loop."""

from deepepochs.engine import launch, set_seed

from . import metrics
from .callbacks import Callback, CheckCallback, GradClipCallback
from .exceptions import CallbackException, LoopException, StopLoopException
from .optimizer import Optimizer, Optimizers
from .patches import ConfusionMetrics, ConfusionPatch, MeanPatch, PatchBase, TensorPatch, ValuePatch
from .task import EpochTask
from .tools import batches, concat, groupby_apply, make_runningid, rename
from .trainer import Trainer, TrainerBase
from .version import __version__ as __version__

__all__ = [
    "Callback",
    "CallbackException",
    "CheckCallback",
    "ConfusionMetrics",
    "ConfusionPatch",
    "EpochTask",
    "GradClipCallback",
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
    "rename",
    "set_seed",
]
