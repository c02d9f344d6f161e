"""Accumulation: the window of micro-batches that makes one update, and the weight of each in it.

In a window of micro-batches (n_i samples, mean loss L_i) on W ranks the update needs the gradient of sum(n_i L_i) / N
with N = sum(n_i) over all ranks. Data parallel averages over ranks, so a micro-batch weighs n_i W / N. N is known only
when the window's last micro-batch begins: the earlier ones are weighted as if all were like the first, and what they
left in the gradients is corrected before the last backward, if it differs.
"""

from __future__ import annotations

from typing import Any, Callable

import torch


class Window:
    """The present window.

    Args:
        steps: micro-batches in a full window.
        world_size: number of ranks.
        sum_later: starts the sum of a number over the ranks, gives back a function that waits for it.
        rescale: multiplies the gradients accumulated so far.
        drop: drops the gradients accumulated so far.

    Attributes:
        closes: the present micro-batch is the window's last: synchronise and step.
        ended: the loader has no batch after the present one.
        remaining: how many batches the loader still has, the present one included, if that is known.
        count: the loader's number of samples in the present batch, if it is equal on all ranks by construction.
    """

    def __init__(
        self,
        steps: int,
        world_size: int,
        sum_later: Callable[[float], Callable[[], float]],
        rescale: Callable[[float], None],
        drop: Callable[[], None],
    ) -> None:
        self.steps = steps
        self.is_single = steps == 1 and world_size == 1
        self._world_size = world_size
        self._sum_later = sum_later
        self._rescale = rescale
        self._drop = drop
        self.ended = False
        self.remaining: int | None = None
        self.count: int | None = None
        self.restart()

    def restart(self) -> None:
        """Starts a new window."""
        self.closes = True
        self.is_open = False
        self.index = 0
        self._total = 0.0
        self._weight = 1.0
        self._wait: Callable[[], float] | None = None

    def begin_pass(self, length: int | None) -> None:
        """Starts a pass over a loader: a window that the previous pass left unfinished is dropped.

        Args:
            length: the pass's number of batches, if it is known.
        """
        if self.index:
            self._drop()
        self.ended, self.remaining, self.count = False, length, None

    def begin(self, n_samples: float | None, last: bool | None) -> None:
        """Opens the next micro-batch.

        Args:
            n_samples: its weight; None takes the loader's count, or else equal weights.
            last: whether it ends the window; None leaves that to the window's length and the loader's end.
        """
        agreed = n_samples is None or self._world_size == 1
        samples = float((self.count or 1) if n_samples is None else n_samples)
        if samples < 0:
            raise ValueError(f"`n_samples` must not be negative, got {n_samples}")
        if self.index == 0:
            self._size = min(self.steps, self.remaining or self.steps)
            self._nominal = (samples or 1.0) * self._size
        self.is_open = True
        self.index += 1
        self._total += samples
        self._samples = samples
        self.closes = (self.index >= self.steps or self.ended) if last is None else last
        if not self.closes:
            self._weight = samples / self._nominal
        elif agreed:
            self._settle(self._total * self._world_size)
        else:
            self._wait = self._sum_later(self._total)  # the ranks' counts travel while the forward runs

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss with its weight in the window."""
        if not self.is_open:
            raise RuntimeError("backward() outside `with engine.accumulate(...)`: the window cannot weigh this loss")
        if self._wait is not None:
            total = self._wait()
            self._wait = None
            self._settle(total)
        return loss if self._weight == 1.0 else loss * self._weight

    def _settle(self, total: float) -> None:
        share = self._world_size / total if total else 0.0
        if self.index > 1:
            correction = self._nominal * self._world_size / total if total else 0.0
            if correction != 1.0:
                self._rescale(correction)
        self._weight = self._samples * share if self._samples * self._world_size != total else 1.0

    def end(self) -> None:
        """Closes the micro-batch, and with the last one the window."""
        self.is_open = False
        if self.closes:
            self.restart()


class Scope:
    """The context of one micro-batch; an exception in it drops the whole window.

    Args:
        end: called at its normal end; None where nothing waits for it.
        drop: called when an exception leaves it.
    """

    __slots__ = ("_drop", "_end")

    def __init__(self, end: Callable[[], None] | None, drop: Callable[[], None]) -> None:
        self._end, self._drop = end, drop

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._drop()
        elif self._end is not None:
            self._end()
