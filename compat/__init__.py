"""Compat: runs LightningModules, of Lightning or written on the light bases here, unchanged."""

from .callback import Callback
from .callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from .combined import Combined as CombinedLoader
from .datamodule import LightningDataModule
from .loggers import Logger, TensorBoardLogger
from .module import LightningModule
from .shape import MisconfigurationException
from .trainer import LightningTrainer

__all__ = [
    "Callback",
    "CombinedLoader",
    "EarlyStopping",
    "LearningRateMonitor",
    "LightningDataModule",
    "LightningModule",
    "LightningTrainer",
    "Logger",
    "MisconfigurationException",
    "ModelCheckpoint",
    "TensorBoardLogger",
]
