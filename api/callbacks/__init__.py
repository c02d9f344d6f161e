"""The callbacks: the base and the ready ones."""

from .base import Callback, CallbackPool
from .console import make_console
from .grad_clip import GradClipCallback

__all__ = ["Callback", "CallbackPool", "GradClipCallback", "make_console"]
