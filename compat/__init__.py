"""Compat: runs LightningModules, of Lightning or written on the light bases here, unchanged."""

from .callback import Callback
from .callbacks import LearningRateMonitor
from .combined import Combined as CombinedLoader
from .datamodule import LightningDataModule
from .early_stopping import EarlyStopping
from .loggers import Logger, TensorBoardLogger
from .model_checkpoint import ModelCheckpoint
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
