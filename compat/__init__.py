"""Compat: runs LightningModules, of Lightning or written on the light bases here, unchanged."""

from .callbacks.base import Callback
from .callbacks.defaults import LearningRateMonitor
from .callbacks.early_stopping import EarlyStopping
from .callbacks.model_checkpoint import ModelCheckpoint
from .data.combined import Combined as CombinedLoader
from .logs.loggers import Logger, TensorBoardLogger
from .modules.datamodule import LightningDataModule
from .modules.module import LightningModule
from .overrides import MisconfigurationException
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
