"""Results: the values that a loop's `self.log` calls gave, and what becomes of them by batch and by epoch."""

from __future__ import annotations

from typing import Any, Callable, Iterator

import torch
from torchmetrics import Metric

from ..data.batches import batch_size
from ..overrides import MisconfigurationException

REDUCTIONS: dict[str, Any] = {
    "mean": torch.mean,
    "avg": torch.mean,
    "min": torch.min,
    "max": torch.max,
    "sum": torch.sum,
}


class Entry:
    """One logged name of one hook: its value in this batch and its reduction over the epoch.

    Args:
        meta: what the call asked for besides the value; equal in each call.
        value: the first value.
        sync: reduces a tensor over the ranks, by the reduction's name.
    """

    __slots__ = (
        "cache",
        "computed",
        "fx",
        "graph",
        "index",
        "is_reset",
        "logger",
        "meta",
        "metric",
        "name",
        "on_epoch",
        "on_step",
        "prog_bar",
        "reduction",
        "size",
        "suffix",
        "sync",
        "total",
    )

    def __init__(self, meta: tuple[Any, ...], value: Any, sync: Callable[[torch.Tensor, str], torch.Tensor]) -> None:
        self.meta = meta
        (self.fx, self.name, self.prog_bar, self.logger, self.on_step, self.on_epoch, reduce_fx, self.graph) = meta[:8]
        self.index: int | None = meta[8]
        self.suffix = "" if self.index is None or not meta[9] else f"/dataloader_idx_{self.index}"
        self.reduction = reduction_name(reduce_fx)
        if not self.on_step and not self.on_epoch:
            raise MisconfigurationException("`self.log(on_step=False, on_epoch=False)` would log nothing; leave it out")
        self.metric: Metric | None = value if isinstance(value, Metric) else None
        self.sync = sync
        self._begin()

    def reset(self) -> None:
        """Forgets the epoch's values, a metric's own state with them."""
        if self.metric is not None:
            self.metric.reset()
        self._begin()

    def _begin(self) -> None:
        start = {"max": float("-inf"), "min": float("inf")}.get(self.reduction, 0.0)
        self.total = torch.tensor(start, dtype=default_dtype())
        self.size: Any = 0
        self.cache: Any = None
        self.computed: Any = None
        self.is_reset = True

    def update(self, value: Any, size: Any) -> None:
        """Takes a batch's value.

        Args:
            value: a 0-dim tensor, or a metric.
            size: the samples that a mean is over.
        """
        self.is_reset, self.computed = False, None
        if self.metric is not None:
            self.metric, self.cache = value, value._forward_cache
            return
        if value.dtype not in (torch.float32, torch.float64):
            value = value.to(default_dtype())
        if self.on_step:
            self.cache = self.sync(value.clone(), self.reduction)
            if not self.on_epoch:
                return
        if self.total.device != value.device:
            self.total = self.total.to(value.device)
        if self.reduction == "mean":
            self.total = self.total + value * size
            self.size = self.size + size
        elif self.reduction == "sum":
            self.total = self.total + value
        else:
            self.total = REDUCTIONS[self.reduction](self.total, value)

    def value(self, on_step: bool) -> torch.Tensor | None:
        """The batch's value, or the epoch's; None where it was not asked for."""
        if on_step:
            found = self.cache if self.on_step else None
        else:
            found = self._epoch() if self.on_epoch else None
        if found is None:
            return None
        if not isinstance(found, torch.Tensor):
            raise ValueError(f"the metric logged as {self.name!r} must compute a tensor, got {found!r}")
        return found if self.graph else found.detach()

    def _epoch(self) -> Any:
        if self.computed is None:
            if self.metric is not None:
                self.computed = self.metric.compute()
            else:
                self.computed = self.sync(self.total.clone(), self.reduction)
                if self.reduction == "mean":
                    size = torch.as_tensor(self.size, device=self.computed.device)
                    self.computed = self.computed / self.sync(size, self.reduction)
        return self.computed

    def forked(self, on_step: bool) -> str:
        """The name with what tells the batch's value from the epoch's, where there are both."""
        if self.on_step and self.on_epoch:
            return f"{self.name}_{'step' if on_step else 'epoch'}{self.suffix}"
        return f"{self.name}{self.suffix}"


class Results(dict):  # type: ignore[type-arg]
    """All entries of one loop.

    Args:
        training: whether the batches' values reach the callbacks.
    """

    def __init__(self, training: bool) -> None:
        super().__init__()
        self.training = training
        self.batch: Any = None
        self.batch_size: int | None = None
        self.dataloader_idx: int | None = None

    def log(
        self,
        fx: str,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool = True,
        on_step: bool = False,
        on_epoch: bool = True,
        reduce_fx: Any = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_fn: Any = None,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: Any = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
    ) -> None:
        """Takes a value; the arguments are those of `LightningModule.log`, after the hook's name."""
        if not enable_graph and isinstance(value, torch.Tensor):
            value = value.detach()
        index = self.dataloader_idx
        place = fx if index is None or not add_dataloader_idx else f"{fx}.{index}"
        key = (place, name)
        meta: tuple[Any, ...] = (
            place,
            name,
            prog_bar,
            logger,
            on_step,
            on_epoch,
            reduce_fx,
            enable_graph,
            index,
            add_dataloader_idx,
        )
        meta += (metric_attribute, sync_dist, rank_zero_only)
        entry = self.get(key)
        if entry is None:
            sync = synchroniser(sync_dist_fn, sync_dist_group) if sync_dist and not rank_zero_only else unchanged
            entry = self[key] = Entry(meta, value, sync)
        elif entry.meta != meta:
            raise MisconfigurationException(
                f"`self.log({name!r}, ...)` was called twice in `{fx}` with different arguments; use one set of them"
            )
        entry.update(value, self._size(entry, batch_size))

    def _size(self, entry: Entry, given: Any) -> Any:
        if given is not None:
            return given
        is_mean = entry.metric is None and entry.on_epoch and entry.reduction == "mean"
        if is_mean and self.batch_size is None and self.batch is not None:
            self.batch_size = batch_size(self.batch)
        return 1 if self.batch_size is None else self.batch_size

    def valid(self) -> Iterator[Entry]:
        """The entries with values of the present data loader."""
        return (each for each in self.values() if not each.is_reset and each.index == self.dataloader_idx)

    def metrics(self, on_step: bool) -> dict[str, dict[str, Any]]:
        """What callbacks, loggers and the progress bar get to see."""
        found: dict[str, dict[str, Any]] = {"callback": {}, "log": {}, "pbar": {}}
        if not self:
            return found
        for entry in self.valid():
            value = entry.value(on_step)
            if value is None:
                continue
            forked = entry.forked(on_step)
            if entry.logger:
                found["log"][forked] = value
            if self.training or (entry.on_epoch and not on_step):
                found["callback"][f"{entry.name}{entry.suffix}"] = value
                found["callback"][forked] = value
            if entry.prog_bar:
                found["pbar"][forked] = value
        return found

    def reset(self, metrics: bool | None = None, fx: str | None = None) -> None:
        """Forgets values.

        Args:
            metrics: only those of torchmetrics objects, or only the others; None means both.
            fx: only those of this hook.
        """
        for entry in self.values():
            if (metrics is None or metrics is (entry.metric is not None)) and fx in (None, entry.fx):
                entry.reset()


def reduction_name(reduce_fx: Any) -> str:
    """'mean', 'min', 'max' or 'sum', from a name or the function.

    Raises:
        MisconfigurationException: it is another one.
    """
    builtin = reduce_fx in (min, max, sum)
    name = reduce_fx.lower() if isinstance(reduce_fx, str) else str(getattr(reduce_fx, "__name__", ""))
    if name not in REDUCTIONS or not (builtin or isinstance(reduce_fx, str) or reduce_fx is REDUCTIONS[name]):
        raise MisconfigurationException(
            f"`reduce_fx` must be 'mean', 'min', 'max' or 'sum', got {reduce_fx!r}; "
            "log a torchmetrics object for others"
        )
    return "mean" if name == "avg" else name


def synchroniser(function: Any, group: Any) -> Callable[[torch.Tensor, str], torch.Tensor]:
    """A function that reduces a tensor over the ranks."""

    def sync(value: torch.Tensor, op: str) -> torch.Tensor:
        reduced: torch.Tensor = function(value, group=group, reduce_op=op)
        return reduced

    return sync


def unchanged(value: torch.Tensor, op: str) -> torch.Tensor:
    """What stays on its rank."""
    return value


def default_dtype() -> torch.dtype:
    """The dtype of logged numbers: torch's default, at least float32."""
    dtype = torch.get_default_dtype()
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32
