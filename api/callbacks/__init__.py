"""The callbacks: the base and the ready ones."""

from .analyze import AnalyzeCallback
from .base import Callback, CallbackPool
from .check import CheckCallback, number_monitors
from .console import make_console
from .grad_clip import GradClipCallback
from .interprete import InterpreteCallback
from .log import LogCallback
from .lr_find import LRFindCallback

__all__ = [
    "AnalyzeCallback",
    "Callback",
    "CallbackPool",
    "CheckCallback",
    "GradClipCallback",
    "InterpreteCallback",
    "LRFindCallback",
    "LogCallback",
    "make_console",
    "number_monitors",
]
