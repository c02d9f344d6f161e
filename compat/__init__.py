"""Compat: runs LightningModules, of Lightning or written on the light bases here, unchanged."""

from .callback import Callback
from .callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from .combined import Combined as CombinedLoader
from .loggers import Logger, TensorBoardLogger
from .shape import MisconfigurationException
from .trainer import LightningTrainer

__all__ = [
    "Callback",
    "CombinedLoader",
    "EarlyStopping",
    "LearningRateMonitor",
    "Logger",
    "MisconfigurationException",
    "ModelCheckpoint",
    "TensorBoardLogger",
    "LightningTrainer",
]
