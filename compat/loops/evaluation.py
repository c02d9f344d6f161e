"""Evaluation: the loops of validation, test and prediction."""

from __future__ import annotations

import inspect
import time
from collections import ChainMap
from typing import Any, ContextManager

import torch
import torch.distributed as dist

from deepepochs.engine import move

from ..data.combined import Fetcher, known_length
from ..data.loaders import Source, gather, limited, record_indices, set_epoch
from ..logs.results import Results
from ..overrides import MisconfigurationException, is_a, overrides_module, takes
from .progress import WITHIN, BatchProgress, PredictionProgress

NAMES = {"validate": "validation", "test": "test", "predict": "predict"}  # of the hooks, by stage
PREFIXES = {"validate": "val", "test": "test", "predict": "predict"}  # of loaders and limits


class EvaluationLoop:
    """Reads all batches of a stage without gradients.

    Args:
        trainer: who runs it.
        stage: 'validate', 'test' or 'predict'.
        inference_mode: whether tensors made in it can never need gradients; else they only have none.
        verbose: whether results are printed.
    """

    def __init__(self, trainer: Any, stage: str, inference_mode: bool, verbose: bool = True) -> None:
        self.trainer, self.stage, self.verbose = trainer, stage, verbose
        self.inference_mode = inference_mode
        self.name, self.prefix = NAMES[stage], PREFIXES[stage]
        self.step_name = f"{self.name}_step"
        self.batch_progress = BatchProgress()
        self._data_source = Source(f"{self.prefix}_dataloader")
        self._results: Results | None = Results(training=False)
        self._has_run = False
        self.is_restarting = False  # until the first validation after a checkpoint that was written within an epoch
        self.is_within_pass = False  # whether that one was written within a validation
        self._max_batches: list[int | float] = []
        self._combined_loader: Any = None
        self._data_fetcher: Any = None
        self._loaded_in_epoch = float("-inf")
        self._modes: dict[Any, bool] = {}
        self._seen: dict[int, int] = {}
        self._outputs: list[dict[str, Any]] = []
        self._takes_index = True
        self._passes_loader_index = False

    @property
    def max_batches(self) -> list[int | float]:
        """How many batches of each loader are read."""
        if not self.trainer.sanity_checking:
            return self._max_batches
        return [min(self.trainer.num_sanity_val_steps, batches) for batches in self._max_batches]

    @property
    def num_dataloaders(self) -> int:
        """The number of loaders."""
        return len(self._combined_loader.flattened)

    def no_grad(self) -> ContextManager[Any]:
        """The context without gradients; gloo cannot reduce tensors of inference mode."""
        gloo = dist.is_available() and dist.is_initialized() and "gloo" in str(dist.get_backend())
        return torch.inference_mode() if self.inference_mode and not gloo else torch.no_grad()

    def run(self) -> Any:
        """Runs the stage.

        Returns:
            What `self.log` gave for each loader.
        """
        with self.no_grad():
            self.setup_data()
            if sum(self.max_batches) == 0:
                return []
            self._begin()
            self._pass()
            return self._end()

    def pass_over(self) -> None:
        """Counts a validation that a resumed run leaves out; its loaders draw their random numbers all the same."""
        self.setup_data()
        batches = self.max_batches
        if sum(batches) > 0:
            self._open()
            if max(batches) != float("inf"):
                self.batch_progress.add(int(max(batches)))
                self.batch_progress.is_last_batch = True

    def _pass(self) -> None:
        previous = 0
        for batch, index, loader_index in iter(self._next, None):
            if loader_index != previous:
                self._end_loader()
            previous = loader_index
            self._batch(batch, index, loader_index)
        self._end_loader()

    def _next(self) -> Any:
        try:
            item = next(self._data_fetcher)
        except StopIteration:
            return None
        self.batch_progress.is_last_batch = self._data_fetcher.done
        return item

    # ---- data

    def setup_data(self) -> None:
        """Asks for the loaders, once a run or as often as the trainer is to reload them."""
        trainer = self.trainer
        fits = trainer.state.fn == "fit"
        if fits and self._combined_loader is not None and not self._must_reload():
            return
        limit = trainer.limits[self.prefix]
        if limit == 0 or (self.stage != "predict" and not overrides_module(trainer.lightning_module, self.step_name)):
            return
        if fits and (not trainer.sanity_checking or trainer.fit_loop.epoch_loop._should_check_val_epoch()):
            self._loaded_in_epoch = trainer.current_epoch
        self._combined_loader = gather(self._data_source, self.prefix, trainer)
        if not fits:
            set_epoch(self._combined_loader.flattened, trainer.fit_loop.epoch_progress.current.processed)
        self._max_batches = [
            limited(self.prefix, known_length(each), limit) for each in self._combined_loader.flattened
        ]
        self._seen = {}

    def _must_reload(self) -> bool:
        every = self.trainer.reload_dataloaders_every_n_epochs
        return bool(every and self.trainer.current_epoch - self._loaded_in_epoch >= every)

    # ---- a run's beginning and end

    def _begin(self) -> None:
        trainer = self.trainer
        self._outputs = []
        self._open()
        self._check_arguments()
        self._capture_modes()
        trainer.calls.module(f"on_{self.name}_model_eval")
        trainer.calls.both(f"on_{self.name}_start")
        trainer.calls.both(f"on_{self.name}_epoch_start")
        trainer.strategy.share_buffers()

    def _open(self) -> None:
        """Makes the reader; iterators are made now, their random draws with them."""
        self._has_run = False
        if self.is_restarting:
            self.batch_progress.current.rewind()
        else:
            self.batch_progress.begin_pass()
        if self.trainer.state.fn == "fit":
            set_epoch(self._combined_loader.flattened, self.trainer.fit_loop.epoch_progress.current.processed)
        self._combined_loader.limits = self.max_batches
        self._data_fetcher = Fetcher(self._combined_loader)
        self._data_fetcher.fetched += self.batch_progress.current.ready
        self.is_restarting = self.is_within_pass = False

    def find_place(self) -> None:
        """Notes whether the loaded checkpoint was written within a validation's step."""
        self.is_within_pass = self.is_restarting and self.batch_progress.total.place() == WITHIN

    def _check_arguments(self) -> None:
        """Decides what steps and hooks get, and refuses a step that cannot take it."""
        module, several = self.trainer.lightning_module, self.num_dataloaders > 1
        several = self._passes_loader_index = several and self._combined_loader.mode == "sequential"
        method = getattr(module, self.step_name)
        self._takes_index = takes(method, "batch_idx", at_least=2)
        has_index = takes(method, "dataloader_idx", explicit=True)
        has_default = several or "dataloader_idx" not in required_arguments(method)
        if several and not (has_index or takes(method, "dataloader_idx", at_least=3)):
            raise RuntimeError(
                f"there are {self.num_dataloaders} {self.prefix} loaders, so `{type(module).__name__}."
                f"{self.step_name}` must take `dataloader_idx` after batch and batch_idx"
            )
        if not has_default:
            raise RuntimeError(
                f"there is one {self.prefix} loader, so `{type(module).__name__}.{self.step_name}` must not need "
                "`dataloader_idx`; give it a default"
            )

    def _capture_modes(self) -> None:
        self._modes = {each: each.training for each in self.trainer.lightning_module.modules()}

    def _restore_modes(self) -> None:
        for module, mode in self._modes.items():
            module.training = mode
        self._modes = {}

    def _end_loader(self) -> None:
        self.trainer.logged.end_pass()
        self._outputs.append(self.trainer.logged.take_eval_epoch())

    def _end(self) -> list[dict[str, Any]]:
        trainer = self.trainer
        trainer.logged.end_pass()
        assert self._results is not None
        self._results.dataloader_idx = None
        trainer.calls.both(f"on_{self.name}_epoch_end")
        trainer.logged.on_epoch_end()
        outputs, self._outputs = self._outputs, []
        of_epoch = trainer.logged.take_eval_epoch()
        everything = {**ChainMap(*outputs), **of_epoch}
        for each in outputs:
            each.update(of_epoch)
        trainer.logged.log_eval_end(everything)
        trainer.calls.both(f"on_{self.name}_end")
        trainer.logged.reset_results()
        if overrides_module(trainer.lightning_module, f"on_{self.name}_model_train"):
            trainer.calls.module(f"on_{self.name}_model_train")
            self._modes = {}
        else:
            self._restore_modes()
        if self.verbose and trainer.is_global_zero:
            print_results(outputs, self.stage)
        trainer._last_val_time = time.monotonic()
        return outputs

    def teardown(self) -> None:
        """Lets go of the loaders' iterators."""
        if self._data_fetcher is not None:
            self._data_fetcher.teardown()
            self._data_fetcher = None

    # ---- a batch

    def _batch(self, batch: Any, index: int, loader_index: int) -> None:
        trainer, calls = self.trainer, self.trainer.calls
        given = (loader_index,) if self._passes_loader_index else ()
        batch = trainer.transfer(batch, loader_index)
        self.batch_progress.ready()
        self._note(batch, index, loader_index)
        calls.both(f"on_{self.name}_batch_start", batch, index, *given)
        self.batch_progress.started()
        arguments = (batch, index, *given) if self._takes_index else (batch, *given)
        output = trainer.strategy.run_step(self.step_name, *arguments)
        self.batch_progress.processed()
        calls.both(f"on_{self.name}_batch_end", output, batch, index, *given)
        self._keep(output, loader_index)

    def _note(self, batch: Any, index: int, loader_index: int) -> None:
        """A batch begins."""
        self.trainer.logged.on_batch_start(batch, loader_index if self._passes_loader_index else None)

    def _keep(self, output: Any, loader_index: int) -> None:
        """A batch's hooks are done."""
        trainer = self.trainer
        trainer.logged.on_batch_end()
        self.batch_progress.completed()
        if not trainer.sanity_checking:
            self._has_run = True
            seen = self._seen.get(loader_index, 0)
            trainer.logged.update_eval_step(seen)
            self._seen[loader_index] = seen + 1


class PredictionLoop(EvaluationLoop):
    """Reads all batches and keeps what the module predicts for them."""

    def __init__(self, trainer: Any, inference_mode: bool) -> None:
        super().__init__(trainer, "predict", inference_mode)
        self.batch_progress = PredictionProgress()
        self._results = None  # nothing is logged here
        self.return_predictions = True
        self._predictions: list[list[Any]] = []
        self._noted: list[list[Any]] = []
        self.epoch_batch_indices: list[list[Any]] = []
        self.current_batch_indices: list[int] | None = None

    @property
    def predictions(self) -> Any:
        """By batch; by loader and batch where there are several loaders."""
        return self._predictions[0] if len(self._predictions) == 1 else self._predictions

    def run(self) -> Any:
        """Runs the stage.

        Returns:
            The predictions, None where they are not to be returned.
        """
        trainer = self.trainer
        with self.no_grad():
            self.setup_data()
            if sum(self.max_batches) == 0:
                return None
            if self._combined_loader.mode != "sequential":
                raise ValueError("predict() reads one loader after the other; pass CombinedLoader(mode='sequential')")
            writers = [each for each in trainer.callbacks if is_a(each, "BasePredictionWriter")]
            self._noted = [record_indices(each) if writers else [] for each in self._combined_loader.flattened]
            self._predictions = [[] for _ in self._noted]
            self.epoch_batch_indices = [[] for _ in self._noted]
            self._begin()
            for item in iter(self._next, None):
                self._batch(*item)
            trainer.calls.both("on_predict_epoch_end")
            results = self.predictions if self.return_predictions else None
            trainer.calls.both("on_predict_end")
            self._restore_modes()
            return results

    def _note(self, batch: Any, index: int, loader_index: int) -> None:
        if self._noted[loader_index]:
            self.current_batch_indices = self._noted[loader_index][index]
            self.epoch_batch_indices[loader_index].append(self.current_batch_indices)

    def _keep(self, output: Any, loader_index: int) -> None:
        self.batch_progress.completed()
        if self.return_predictions or any(self._noted):
            self._predictions[loader_index].append(move(output, torch.device("cpu")))


def required_arguments(method: Any) -> list[str]:
    """The names of a method's arguments without default."""
    return [each.name for each in inspect.signature(method).parameters.values() if each.default is each.empty]


def print_results(outputs: list[dict[str, Any]], stage: str) -> None:
    """Prints the metrics of each loader as a table."""
    from rich.console import Console
    from rich.table import Table

    names = [name for output in outputs for name in output]
    if not names:
        return
    table = Table("metric", *[f"loader {index}" if len(outputs) > 1 else stage for index in range(len(outputs))])
    for name in dict.fromkeys(names):
        table.add_row(name, *[f"{float(output[name]):.6g}" if name in output else "" for output in outputs])
    Console().print(table)


def check_evaluation(module: Any, stage: str) -> None:
    """Refuses to evaluate a module that has no step for it.

    Raises:
        MisconfigurationException: it lacks the method.
    """
    step = f"{NAMES[stage]}_step"
    if stage == "predict":
        if not overrides_module(module, step) and not overrides_module(module, "forward"):
            raise MisconfigurationException("predict() needs the method `predict_step` or `forward`")
    elif not overrides_module(module, step):
        raise MisconfigurationException(f"{stage}() needs the method `{step}`, {type(module).__name__} has none")
