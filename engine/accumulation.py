"""Accumulation: the window of micro-batches that makes one update, and the weight of each in it.

In a window of micro-batches (n_i samples, mean loss L_i) on W ranks the update needs the gradient of sum(n_i L_i) / N
with N = sum(n_i) over all ranks. Data parallel averages over ranks, so a micro-batch weighs n_i W / N. N is known only
when the window's last micro-batch begins: the earlier ones are weighted as if all were like the first, and what they
left in the gradients is corrected before the last backward, if it differs.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Callable

import torch


def check_steps(steps: int) -> int:
    """The number of micro-batches in an update.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise ValueError(f"`gradient_accumulation_steps` must be a whole number of at least 1, got {steps!r}")
    return steps


class Window:
    """The present window.

    Args:
        steps: micro-batches in a full window.
        rank: this rank, for messages.
        world_size: number of ranks.
        sum_later: starts the sum of a number over the ranks, gives back a function that waits for it.
        rescale: multiplies the gradients accumulated so far.
        drop: drops the gradients accumulated so far.

    Attributes:
        closes: the present micro-batch is the window's last: synchronise and step.
        ended: the loader has no batch after the present one.
        is_trained: the present micro-batch had a backward.
        trained: how many micro-batches of the window had one.
        remaining: how many batches the loader still has, the present one included, if that is known.
        count: the loader's number of samples in the present batch, if it is equal on all ranks by construction.
    """

    def __init__(
        self,
        steps: int,
        rank: int,
        world_size: int,
        sum_later: Callable[[float], Callable[[], float]],
        rescale: Callable[[float], None],
        drop: Callable[[], None],
    ) -> None:
        self.steps = steps
        self.is_single = steps == 1 and world_size == 1
        self._rank, self._world_size = rank, world_size
        self._sum_later = sum_later
        self._rescale = rescale
        self._drop = drop
        self.ended = False
        self.remaining: int | None = None
        self.count: int | None = None
        self._reader: Any = None
        self.restart()

    def restart(self) -> None:
        """Starts a new window."""
        self.closes = True
        self.is_open = False
        self.index = 0
        self.trained = 0
        self.is_trained = False
        self._total = 0.0
        self._weight = 1.0
        self._wait: Callable[[], float] | None = None

    def begin_pass(self, reader: Any, length: int | None) -> bool:
        """Starts a pass over a loader: a window that the previous pass left unfinished is dropped.

        Args:
            reader: who reads; the window listens to one at a time, and only to the first of nested ones.
            length: the pass's number of batches, if it is known.

        Returns:
            Whether the window listens to this one.
        """
        if self._reader is not None:
            return False
        if self.index:
            warnings.warn(
                f"the previous pass over a loader was left within a window: the gradients of its last {self.index} "
                "micro-batches are dropped; end a loop between two windows, or pass `last=True` where it ends",
                stacklevel=4,
            )
            self._drop()
        self._reader = reader
        self.look_ahead(False, length, None)
        return True

    def look_ahead(self, ended: bool, remaining: int | None, count: int | None) -> None:
        """Notes what the loader knows of the batch that comes next.

        Args:
            ended: it is the last.
            remaining: how many there still are, this one included, if that is known.
            count: its samples, if they are equal on all ranks by construction.
        """
        self.ended, self.remaining, self.count = ended, remaining, count

    def abandon(self, reader: Any) -> None:
        """Drops the window of a reader whose loader has failed."""
        if self._reader is reader and self.index:
            self._drop()

    def end_pass(self, reader: Any) -> None:
        """Ends what `begin_pass` started, if it was this reader's."""
        if self._reader is reader:
            self._reader = None
            self.look_ahead(False, None, None)

    def begin(self, n_samples: float | None, last: bool | None) -> None:
        """Opens the next micro-batch.

        Args:
            n_samples: its weight; None takes the loader's count, or else equal weights.
            last: whether it ends the window; None leaves that to the window's length and the loader's end.
        """
        agreed = self._is_agreed = n_samples is None or self._world_size == 1
        samples = float((self.count or 1) if n_samples is None else n_samples)
        if not 0 <= samples < math.inf:
            wanted = "not be negative" if samples < 0 else "be finite"
            raise ValueError(f"`n_samples` must {wanted}, got {n_samples}")
        if self.index == 0:
            self._size = min(self.steps, self.remaining or self.steps)
            self._nominal = (samples or 1.0) * self._size
        self.is_open, self.is_trained = True, False
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
        if not self.is_trained:
            self.is_trained = True
            self.trained += 1
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

    def leave_out(self) -> bool:
        """Takes the present micro-batch, which had no backward, out of its window.

        Returns:
            Whether the window ends here with gradients of earlier ones, which are settled now and wait for an update.

        Raises:
            RuntimeError: other ranks wait for its gradients, or count on its samples.
        """
        if self._world_size > 1 and (self.closes or self._is_agreed):
            raise RuntimeError(
                f"micro-batch {self.index} of a window had no backward on rank {self._rank}, and the other "
                "ranks count on it; on several ranks train each batch, one that is to have no effect with its loss "
                "times 0"
            )
        settled = self._total
        self._total -= self._samples
        self.is_trained = True  # told once
        if not (self.closes and self.trained):
            return False
        if self._total and self._total != settled:  # `begin` has settled them with the samples that are left out now
            self._rescale(settled / self._total)
        return True

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
