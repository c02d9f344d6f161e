"""The callbacks: the base and the ready ones."""

from .base import Callback, CallbackPool
from .check import CheckCallback, number_monitors
from .console import make_console
from .grad_clip import GradClipCallback

__all__ = ["Callback", "CallbackPool", "CheckCallback", "GradClipCallback", "make_console", "number_monitors"]
