"""Stopping: several ranks stop at the same place, whoever of them was asked to."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import Any, Iterator

import torch

from deepepochs.engine import Engine

ASK_EVERY_S = 0.5
MEET_S = 5.0


class Stopper:
    """Lets all ranks leave the training loop together after a Ctrl-C on any of them.

    A rank that left alone would let the others wait for its gradients for ever. So the signal is only noted, and about
    twice a second, after a number of updates that all ranks know, they ask each other whether one of them has noted it.

    Args:
        engine: the ranks.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked_to = False
        self._left, self._interval = 1, 1
        self._since = time.perf_counter()

    def note(self, number: int, frame: Any) -> None:
        """Notes Ctrl-C; the second one interrupts at once."""
        if self._asked_to:
            raise KeyboardInterrupt
        self._asked_to = True

    def after_update(self) -> None:
        """Called after each update on every rank.

        Raises:
            KeyboardInterrupt: some rank was asked to stop; on all ranks after the same update.
        """
        self._left -= 1
        if self._left == 0:
            self.ask()

    def ask(self) -> None:
        """Asks all ranks, and settles when to ask again.

        Raises:
            KeyboardInterrupt: some rank was asked to stop.
        """
        spent = max(time.perf_counter() - self._since, 1e-6)
        asked, slowest = self._engine.reduce(
            torch.tensor([float(self._asked_to), spent], dtype=torch.float64), "max"
        ).tolist()
        if asked:
            raise KeyboardInterrupt
        self._interval = max(1, min(int(self._interval * ASK_EVERY_S / slowest), 2 * self._interval + 8))
        self._left, self._since = self._interval, time.perf_counter()


@contextlib.contextmanager
def interrupts_noted(engine: Engine) -> Iterator[Stopper | None]:
    """While several ranks train: Ctrl-C is noted for a stop of all; None where an interrupt needs no agreement."""
    if engine.world_size == 1:
        yield None
        return
    stopper = Stopper(engine)
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield stopper
        return
    signal.signal(signal.SIGINT, stopper.note)
    try:
        yield stopper
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def confirm_stop(engine: Engine, stop: BaseException) -> None:
    """Makes sure that a stop in the middle of an epoch is one of all ranks.

    Args:
        engine: the ranks.
        stop: what stops this rank.

    Raises:
        RuntimeError: other ranks go on; the job cannot, and ends with this error.
    """
    if engine.world_size > 1 and not engine.meet("stop", MEET_S):
        raise RuntimeError(
            f"rank {engine.rank} stopped within an epoch ({type(stop).__name__}: {stop}) and others did not; "
            "stop on all ranks at the same batch, or in on_after_epoch, where one rank is enough"
        ) from stop
