"""Collector: accumulates a stage's metrics as its batches come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Callable, Iterator, Sequence

import torch

from deepepochs.engine import Engine

from .merging import merge_over_ranks
from .metric_functions import MetricSet, add_values, flatten, is_stateful, metric_name
from .patches import ConfusionPatch, MeanPatch, PatchBase, TensorPatch, ValuePatch, detach, merge

PatchClass = Callable[..., PatchBase]  # called with (metric=..., batch_size=...)
PATCHES: dict[str, PatchClass] = {"tensor": TensorPatch, "mean": MeanPatch, "confusion": ConfusionPatch}


def patch_class(metric_patch: Any) -> PatchClass:
    """The patch class that a trainer's `metric_patch` names.

    Raises:
        ValueError: it is neither a known name nor a subclass of PatchBase.
    """
    if isinstance(metric_patch, str) and metric_patch in PATCHES:
        return PATCHES[metric_patch]
    if isinstance(metric_patch, type) and issubclass(metric_patch, PatchBase):
        return metric_patch
    raise ValueError(
        f"`metric_patch` must be one of {sorted(PATCHES)} or a subclass of PatchBase, got {metric_patch!r}"
    )


class Collector:
    """The totals of one stage of one task: the loss, the metrics, and what steps return.

    Args:
        metrics: functions and torchmetrics objects.
        patch: the class that accumulates the functions.
        device: where torchmetrics objects keep their state.
    """

    def __init__(self, metrics: Sequence[Any], patch: PatchClass, device: torch.device) -> None:
        functions = [each for each in metrics if not is_stateful(each)]
        self._objects = [each.to(device) for each in metrics if is_stateful(each)]
        for each in self._objects:
            each.reset()
        self._patch = patch
        self._functions: dict[str, Callable[..., Any]] = {}
        if functions and patch in PATCHES.values():  # one pass and one total for all of them together
            self._functions = {"": MetricSet(functions)}
        elif functions:
            self._functions = {metric_name(each): each for each in functions}
        self._templates = {
            f"metric {name}": patch(metric=function, batch_size=1) for name, function in self._functions.items()
        }
        self._loss: ValuePatch | None = None
        self._totals: dict[str, PatchBase] = {}
        self._returned: dict[str, PatchBase] = {}
        self._saved: dict[str, Any] = {}

    @property
    def has_metrics(self) -> bool:
        """Whether model outputs are needed."""
        return bool(self._functions or self._objects)

    def start_loss(self, loss: torch.Tensor, batch_size: Any) -> ValuePatch:
        """Takes in the first batch's mean loss.

        Returns:
            The total, to which the step adds the others.
        """
        self._loss = ValuePatch(batch_size).load(loss)
        return self._loss

    def add_output(self, model_out: Any, batch_y: Any, batch_size: Any) -> None:
        """Adds a batch's outputs and targets to the metrics."""
        for metric in self._objects:
            metric.update(detach(model_out), detach(batch_y))
        total = self._totals.get("metric ")
        if type(total) is TensorPatch:  # the usual case, without a patch for each batch
            total.update(model_out, batch_y)
            return
        for key, patch in self._load(model_out, batch_y, batch_size):
            if key in self._totals:
                self._totals[key] = merge(self._totals[key], patch)
            else:
                self._totals[key] = patch

    def _load(self, model_out: Any, batch_y: Any, batch_size: Any) -> Iterator[tuple[str, PatchBase]]:
        model_out, batch_y = detach(model_out), detach(batch_y)  # a patch that kept them would keep their graph
        for name, function in self._functions.items():
            patch = self._patch(metric=function, batch_size=batch_size)
            yield f"metric {name}", check_loaded(patch, patch.load(model_out, batch_y))

    def add_returned(self, patches: Any, step: Callable[..., Any]) -> None:
        """Adds what a step returned: None or {name: patch}.

        Raises:
            TypeError: it is something else.
        """
        check_returned(patches, step)
        for name, patch in patches.items():
            total = self._returned.get(name)
            with torch.no_grad():
                if total is None and name in self._saved:
                    total = patch.copy()
                    vars(total).update(self._saved.pop(name))
                self._returned[name] = patch.copy() if total is None else merge(total, patch)

    @property
    def loss_total(self) -> ValuePatch | None:
        """The total of the losses so far."""
        return self._loss

    def state_dict(self) -> dict[str, Any]:
        """The totals so far, for a checkpoint within an epoch."""
        return {
            "loss": None if self._loss is None else patch_state(self._loss),
            "totals": {key: patch_state(patch) for key, patch in self._totals.items()},
            "returned": {key: patch_state(patch) for key, patch in {**self._saved, **self._returned}.items()},
            "objects": [object_state(each) for each in self._objects],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave; what steps return joins it with the first patch of its name."""
        if state["loss"] is not None:
            self._loss = ValuePatch(0)
            vars(self._loss).update(state["loss"])
        for key, values in state["totals"].items():
            self._totals[key] = self._templates[key].copy()
            vars(self._totals[key]).update(values)
        self._saved = dict(state["returned"])
        for each, values in zip(self._objects, state["objects"]):
            load_object_state(each, values)

    def values(self, engine: Engine) -> dict[str, Any]:
        """The stage's results over all ranks, by their full names; the loss comes first."""
        if self._saved:
            raise RuntimeError(f"the checkpoint holds totals of {sorted(self._saved)}, which no step returned since")
        patches = dict(self._totals)
        if self._loss is not None:
            check_samples(self._loss.batch_size)
            patches["loss"] = self._loss
        patches.update({f"step {name}": patch for name, patch in self._returned.items()})
        merged = merge_over_ranks(engine, patches, self._templates)
        loss = {"loss": merged["loss"]()} if "loss" in merged else {}
        computed = {key[7:]: patch() for key, patch in merged.items() if key.startswith("metric ")}
        computed.update({metric_name(each): each.compute() for each in self._objects})
        returned = {name_of(key[5:], patch): patch() for key, patch in merged.items() if key.startswith("step ")}
        return named(loss, computed, returned)

    def batch_values(self, records: Sequence[Any], returned: Mapping[str, PatchBase]) -> dict[str, Any]:
        """The results of one batch alone.

        Args:
            records: what its step handed over, each (loss, model output, target, samples).
            returned: what its step returned.
        """
        computed: dict[str, Any] = {}
        loads = [dict(self._load(out, y, size)) for _, out, y, size in records]
        for key in loads[0] if loads else ():
            total = loads[0][key]
            for each in loads[1:]:
                total = merge(total, each[key])
            computed[key[7:]] = total()
        for metric in self._objects if records else ():
            own = metric.clone()
            own.reset()
            for _, out, y, _ in records:
                own.update(out, y)
            computed[metric_name(metric)] = own.compute()
        return named(batch_loss(records), computed, {name_of(key, patch): patch() for key, patch in returned.items()})


def check_samples(total: Any) -> None:
    """Refuses a stage whose samples were counted on the device, where nothing waited to look, and add up to none."""
    if isinstance(total, torch.Tensor) and not bool(((total >= 0) & total.isfinite()).all()):
        raise ValueError(f"the `batch_size` function must return a number of at least 0, they sum up to {total}")


def patch_state(patch: Any) -> Any:
    """What a patch has summed up: everything but its functions."""
    if isinstance(patch, dict):
        return patch
    return {name: value for name, value in vars(patch).items() if not callable(value)}


def object_state(metric: Any) -> dict[str, Any]:
    """What a torchmetrics object has summed up."""
    if type(metric).__name__ == "MetricCollection":
        return {name: object_state(each) for name, each in metric.items(keep_base=True, copy_state=False)}
    state = {name: getattr(metric, name) for name in metric._defaults}
    return {"state": state, "count": metric._update_count}


def load_object_state(metric: Any, state: Mapping[str, Any]) -> None:
    """Restores what `object_state` gave."""
    if type(metric).__name__ == "MetricCollection":
        for name, each in metric.items(keep_base=True, copy_state=False):
            load_object_state(each, state[name])
        return
    for name, value in state["state"].items():
        setattr(
            metric,
            name,
            [each.to(metric.device) for each in value] if isinstance(value, list) else value.to(metric.device),
        )
    metric._update_count = state["count"]


def named(loss: dict[str, Any], computed: dict[str, Any], returned: dict[str, Any]) -> dict[str, Any]:
    """Puts results together; what a step returns takes the place of what was computed under the same name."""
    values = dict(loss)
    for name, value in computed.items():
        add_values(values, flatten(name, value))
    own: dict[str, Any] = {}
    for name, value in returned.items():
        add_values(own, flatten(name, value))
    values.update(own)
    return values


def batch_loss(records: Sequence[Any]) -> dict[str, Any]:
    """The loss of one batch: the mean over the parts that its step computed it for."""
    losses = [(loss, size) for loss, _, _, size in records if loss is not None]
    if not losses:
        return {}
    if len(losses) == 1:
        return {"loss": losses[0][0]}
    return {"loss": sum(loss * size for loss, size in losses) / sum(size for _, size in losses)}


def name_of(key: str, patch: PatchBase) -> str:
    """The patch's own name, else its key."""
    name = getattr(patch, "name", None)
    return key if name is None else name


def check_loaded(patch: PatchBase, loaded: Any) -> PatchBase:
    """Refuses a patch class whose `load` does not return the patch."""
    if not isinstance(loaded, PatchBase):
        raise TypeError(f"{type(patch).__name__}.load must return the patch itself, got {type(loaded).__name__}")
    return loaded


def check_returned(patches: Any, step: Callable[..., Any]) -> None:
    """Refuses what a step must not return."""
    if isinstance(patches, dict) and all(isinstance(each, PatchBase) for each in patches.values()):
        return
    got = (
        {key: type(value).__name__ for key, value in patches.items()}
        if isinstance(patches, dict)
        else type(patches).__name__
    )
    name = getattr(step, "__qualname__", repr(step))
    raise TypeError(
        f"{name} must return None or a dictionary of patches, such as {{'acc': ValuePatch(n).load(v)}}, got {got}"
    )
