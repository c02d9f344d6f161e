"""Merging: patches of all ranks into one, the same on each."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import torch

from deepepochs.engine import Engine, leaves, map_nested

from .patches import PatchBase, TensorPatch, merge


def merge_over_ranks(
    engine: Engine, patches: dict[str, PatchBase], templates: dict[str, PatchBase]
) -> dict[str, PatchBase]:
    """Merges the patches of a stage over the ranks.

    Everything that adds up travels in one exchange; the predictions that a TensorPatch keeps follow in a gather.

    Args:
        engine: the ranks.
        patches: this rank's totals; a rank without data has none.
        templates: empty patches of the same keys, for the functions that a rank without data needs.

    Returns:
        The totals, in the order of the first rank that has them, the same on all ranks.
    """
    if engine.world_size == 1:
        return patches
    packed = {key: _pack(patch) for key, patch in patches.items()}
    exchanged = engine.gather_object(packed)
    merged: dict[str, PatchBase] = {}
    for key in dict.fromkeys(key for each in exchanged for key in each):
        parts = [each[key] for each in exchanged if key in each]
        own = patches.get(key, templates.get(key))
        if any(part is _GATHERED for part in parts):
            merged[key] = _gathered(engine, patches.get(key), own)
            continue
        loaded = [_unpack(part, own, key, engine.device) for part in parts]
        total = loaded[0]
        for patch in loaded[1:]:
            total = merge(total, patch)
        merged[key] = total
    return merged


class _Gathered:
    """Stands for tensors that follow in a gather."""

    def __reduce__(self) -> str:
        return "_GATHERED"


_GATHERED = _Gathered()


class _Function:
    """Stands for a function that cannot be pickled: the receiver has it already."""


def _pack(patch: PatchBase) -> Any:
    if type(patch) is TensorPatch and all(
        leaf is None or isinstance(leaf, torch.Tensor) for leaf in leaves(patch.joined())
    ):
        return _GATHERED
    packed = copy.copy(patch)
    for name, value in vars(patch).items():
        if callable(value) and not _travels(value):
            vars(packed)[name] = _Function()
        elif not callable(value):
            vars(packed)[name] = map_nested(_to_cpu, value)
    return packed


def _to_cpu(leaf: Any) -> Any:
    return leaf.detach().cpu() if isinstance(leaf, torch.Tensor) else leaf


def _travels(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # pickle has many errors for what it cannot take
        return False
    return True


def _unpack(patch: Any, own: PatchBase | None, key: str, device: torch.device) -> Any:
    for name, value in vars(patch).items():
        if callable(value) and own is not None:
            vars(patch)[name] = vars(own)[name]
        elif isinstance(value, _Function):
            if own is None:
                raise RuntimeError(
                    f"this rank has no data for {key!r} and cannot receive its attribute {name!r}; "
                    "make it a function at the top level of a module"
                )
            vars(patch)[name] = vars(own)[name]
        else:
            vars(patch)[name] = map_nested(
                lambda leaf: leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf, value
            )
    return patch


def _gathered(engine: Engine, patch: Any, own: Any) -> PatchBase:
    preds, targets = engine.gather(None if patch is None else patch.joined())
    if own is None:
        raise RuntimeError("a TensorPatch was returned on some ranks only; return it on all, or use metrics=[...]")
    merged: PatchBase = TensorPatch(own.metric, name=own.name).load(preds, targets)
    return merged
