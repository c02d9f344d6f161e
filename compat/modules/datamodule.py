"""LightningDataModule: the light base of data modules, with the contract of Lightning's."""

from __future__ import annotations

from typing import Any, Mapping

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from deepepochs.engine import move

from .hparams import Hyperparameters
from .loading import make_datamodule, refuse_hparams_file


class DataHooks:
    """The data hooks that modules and data modules share."""

    prepare_data_per_node = True
    allow_zero_length_dataloader_with_multiple_devices = False

    def prepare_data(self) -> None:
        """Downloads and the like, in one process of each machine; keep no state here."""

    def setup(self, stage: str) -> None:
        """Makes data sets, in each process; `stage` is 'fit', 'validate', 'test' or 'predict'."""

    def teardown(self, stage: str) -> None:
        """Cleans up."""

    def train_dataloader(self) -> Any:
        """The training loader, or several in any nesting.

        Raises:
            NotImplementedError: the class does not define it, nor the next three.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no `train_dataloader`")

    def val_dataloader(self) -> Any:
        """The validation loader, or several."""
        raise NotImplementedError(f"{type(self).__name__} defines no `val_dataloader`")

    def test_dataloader(self) -> Any:
        """The test loader, or several."""
        raise NotImplementedError(f"{type(self).__name__} defines no `test_dataloader`")

    def predict_dataloader(self) -> Any:
        """The prediction loader, or several."""
        raise NotImplementedError(f"{type(self).__name__} defines no `predict_dataloader`")

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Changes a batch before it moves to the device."""
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Moves a batch."""
        return move(batch, device)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Changes a batch on the device."""
        return batch


class LightningDataModule(DataHooks, Hyperparameters):
    """Base of data modules: loaders by stage, and how they are made.

    Attributes:
        trainer: who uses it, None before.
        name: for its author.
    """

    name: str | None = None

    CHECKPOINT_HYPER_PARAMS_KEY = "datamodule_hyper_parameters"
    CHECKPOINT_HYPER_PARAMS_NAME = "datamodule_hparams_name"

    def __init__(self) -> None:
        self.trainer: Any = None

    def on_exception(self, exception: BaseException) -> None:
        """An exception ends the run."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        weights_only: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Makes a data module with a checkpoint's hyper-parameters and state.

        Args:
            checkpoint_path: the file.
            map_location: not needed: a data module has no device.
            hparams_file: not supported.
            weights_only: False loads files of objects of any class, which may run code.
            kwargs: arguments that count more than the file's.

        Raises:
            CheckpointError: the file cannot be used.
            NotImplementedError: `hparams_file` is given.
        """
        refuse_hparams_file(hparams_file)
        return make_datamodule(cls, checkpoint_path, weights_only, kwargs)

    @classmethod
    def from_datasets(
        cls,
        train_dataset: Any = None,
        val_dataset: Any = None,
        test_dataset: Any = None,
        predict_dataset: Any = None,
        batch_size: int = 1,
        num_workers: int = 0,
        **options: Any,
    ) -> LightningDataModule:
        """Makes a data module of data sets; a list or dictionary of them gives several loaders."""
        datasets = {"train": train_dataset, "val": val_dataset, "test": test_dataset, "predict": predict_dataset}

        def loader(dataset: Any, shuffle: bool) -> Any:
            if isinstance(dataset, Mapping):
                return {key: loader(each, shuffle) for key, each in dataset.items()}
            if isinstance(dataset, (list, tuple)) and not isinstance(dataset, Dataset):
                return [loader(each, shuffle) for each in dataset]
            shuffle = shuffle and not isinstance(dataset, IterableDataset)
            return DataLoader(dataset, batch_size=batch_size, shuffle=shuffle, num_workers=num_workers)

        datamodule = cls(**options)
        for name, dataset in datasets.items():
            if dataset is not None:
                setattr(datamodule, f"{name}_dataloader", lambda name=name, data=dataset: loader(data, name == "train"))
        return datamodule
