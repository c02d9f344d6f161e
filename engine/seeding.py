"""Seeds: set every random number generator, take their states out and put them back."""

from __future__ import annotations

import contextlib
import operator
import random
from typing import Any, Iterator

import numpy
import torch


def set_seed(seed: float) -> None:
    """Seeds Python, numpy and torch on all devices.

    Args:
        seed: 0 to 2**64 - 1; a float without a fraction will do.

    Raises:
        TypeError: the seed is not a whole number.
        ValueError: the seed is out of that range.
    """
    seed = check_seed(seed)
    random.seed(seed)
    # numpy takes 32 bits as a number, more as a list of words
    numpy.random.seed(seed if seed < 2**32 else [seed & 0xFFFFFFFF, seed >> 32])
    torch.manual_seed(seed)


def check_seed(seed: Any) -> int:
    """Refuses a seed that the generators cannot take.

    Raises:
        TypeError: the seed is not a whole number.
        ValueError: the seed is not within 0 and 2**64 - 1.
    """
    try:
        whole = int(seed) if isinstance(seed, float) and seed.is_integer() else seed  # 1.0, as old scripts have it
        number = operator.index(whole)  # numpy's integers pass; text and fractions, which int() would cut, do not
    except TypeError:
        raise TypeError(f"`seed` must be a whole number, got {seed!r}") from None
    if not 0 <= number < 2**64:
        raise ValueError(f"`seed` must be within 0 and 2**64 - 1, got {seed!r}")
    return number


def mix_seed(seed: int, *numbers: int) -> int:
    """A seed for (seed, epoch, rank, ...) that differs for each combination.

    Args:
        seed: the run's seed.
        numbers: what to mix in, such as the epoch.

    Returns:
        63 bits, which every generator takes.
        The steps are those of SplitMix64 (Steele, Lea, Flood 2014, https://doi.org/10.1145/2660193.2660195).
    """
    mixed = seed
    for number in numbers:
        mixed = (mixed + 0x9E3779B97F4A7C15 * (number + 1)) % 2**64
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return mixed % 2**63


def rng_state() -> dict[str, Any]:
    """The states of all generators as tensors and plain values, for a checkpoint.

    Returns:
        `python`, `numpy`, `torch` and, where CUDA or MPS is in use, `cuda` (a tensor a device) and `mps`.
    """
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [str(name), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def load_rng_state(state: dict[str, Any]) -> None:
    """Puts back what `rng_state` gave.

    Args:
        state: the states; CUDA's are skipped where the number of devices differs.
    """
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if len(state.get("cuda", ())) == torch.cuda.device_count() > 0:
        torch.cuda.set_rng_state_all([part.cpu() for part in state["cuda"]])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"].cpu())


@contextlib.contextmanager
def preserved_rng() -> Iterator[None]:
    """Leaves all generators as they were, whatever the block draws."""
    before = rng_state()
    try:
        yield
    finally:
        load_rng_state(before)
