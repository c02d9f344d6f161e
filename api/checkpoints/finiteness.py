"""Finiteness: whether a trainer's weights are worth to take the place of an earlier file's."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable

import torch

from deepepochs.engine import unwrap

from ..modules import given_modules
from ..protocols import Run

SUFFIX = "-not-finite"


def beside(path: Path) -> Path:
    """Where a state that is not finite is kept: beside the file that it must not replace."""
    return path.with_name(f"{path.stem}{SUFFIX}{path.suffix}")


def is_beside(path: Path) -> bool:
    """Whether a file is one of those."""
    return path.stem.endswith(SUFFIX)


def first_not_finite(trainer: Run) -> str | None:
    """The name of a weight that holds NaN or inf, the same on all ranks; None where all are finite (a sync point).

    Parameters that are trained must be finite. Frozen ones and buffers must not be NaN: an infinite one is often meant,
    as in an attention mask. Rank 0 looks, since its state is what files hold.

    Args:
        trainer: whose model and loss.
    """
    name = _first_not_finite(given_modules(trainer).values()) if trainer.main_process else None
    found: str | None = trainer.engine.broadcast_object(name)
    return found


def _first_not_finite(modules: Iterable[torch.nn.Module]) -> str | None:
    flags: dict[str, torch.Tensor] = {}
    for module in modules:
        bare = unwrap(module)
        trained = {name for name, each in bare.named_parameters(remove_duplicate=False) if each.requires_grad}
        for name, value in bare.state_dict().items():
            if has_numbers(value):
                flags.setdefault(name, _is_wrong(value.detach(), name in trained))
    for device in {flag.device for flag in flags.values()}:  # one wait for each
        names = [name for name, flag in flags.items() if flag.device == device]
        for name, is_wrong in zip(names, torch.stack([flags[each] for each in names]).tolist()):
            if is_wrong:
                return name
    return None


def has_numbers(value: object) -> bool:
    """Whether it is a tensor of numbers that may be other than finite."""
    if not isinstance(value, torch.Tensor) or torch.nn.parameter.is_lazy(value) or value.is_meta:
        return False
    return value.is_floating_point() or value.is_complex()


def _is_wrong(value: torch.Tensor, is_trained: bool) -> torch.Tensor:
    """Whether a tensor holds NaN, or where it is trained inf; 0-dim, on its device."""
    if value.layout != torch.strided:
        value = value.to_dense()
    if value.element_size() == 1:  # torch has no such questions for numbers of eight bits
        value = value.float()
    return (~value.isfinite()).any() if is_trained else value.isnan().any()
