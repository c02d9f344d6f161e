"""Stopping: several ranks stop at the same place, whoever of them was asked to."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any, Iterator

import torch

from .engine import Engine

ASK_EVERY_S = 0.5
MEET_S = 5.0
TERM_S = 10.0
SAME_S = 1.0


class Stopper:
    """Lets all ranks leave the training loop together after a Ctrl-C or SIGTERM on any of them.

    A rank that left alone would let the others wait for its gradients for ever. So a signal is only noted, and about
    twice a second, between two windows and after a number of batches that all ranks know, they ask each other whether
    one of them has noted it. One process alone looks after each window.

    Args:
        engine: the ranks.
        limit_s: how long after SIGTERM the process may take to get to a place where it can stop; then it ends as it is.
    """

    def __init__(self, engine: Engine, limit_s: float = TERM_S) -> None:
        self._engine = engine
        self._limit_s = limit_s
        self._asked = 0  # 1 by Ctrl-C, 2 by SIGTERM
        self._asked_at = 0.0
        self._left, self._interval = 1, 1
        self._since = time.perf_counter()
        self._deadline: threading.Timer | None = None

    def note_interrupt(self, number: int, frame: Any) -> None:
        """Notes Ctrl-C; a second one interrupts at once.

        A terminal signals all processes, and launchers pass on what they get: what comes close behind is the same one.
        """
        if not self._asked:
            self._asked, self._asked_at = 1, time.monotonic()
        elif time.monotonic() - self._asked_at > SAME_S:
            raise KeyboardInterrupt

    def note_termination(self, number: int, frame: Any) -> None:
        """Notes SIGTERM, and ends the process if it does not get to a place where it can stop soon."""
        if self._asked < 2:
            self._asked = 2
            self._deadline = threading.Timer(self._limit_s, os._exit, [128 + number])
            self._deadline.daemon = True
            self._deadline.start()

    def is_terminated(self) -> bool:
        """Called after each batch on every rank: whether some rank was told to end.

        Raises:
            KeyboardInterrupt: some rank was interrupted; on all ranks after the same batch.
        """
        if not self._engine.is_between_windows:
            return False
        self._left -= 1
        return self._left <= 0 and self.ask()

    def is_terminated_alone(self) -> bool:
        """Whether this process was told to end, and is the only one: several would have to agree first."""
        return self._asked == 2 and self._engine.world_size == 1

    def ask(self) -> bool:
        """Asks all ranks, and settles when to ask again.

        Raises:
            KeyboardInterrupt: some rank was interrupted.
        """
        spent = max(time.perf_counter() - self._since, 1e-6)
        asked, slowest = float(self._asked), spent
        if self._engine.world_size > 1:
            own = torch.tensor([asked, spent], dtype=torch.float64)
            asked, slowest = self._engine.reduce(own, "max").tolist()
            self._interval = max(1, min(int(self._interval * ASK_EVERY_S / slowest), 2 * self._interval + 8))
        self._left, self._since = self._interval, time.perf_counter()
        if asked == 1:
            raise KeyboardInterrupt
        if asked == 2:
            self.release()
        return asked == 2

    def release(self) -> None:
        """Takes back the limit: the training has ended in good order, what comes now may take its time."""
        if self._deadline is not None:
            self._deadline.cancel()


@contextlib.contextmanager
def signals_noted(engine: Engine, notes_termination: bool, limit_s: float = TERM_S) -> Iterator[Stopper | None]:
    """While a fit runs: signals that need an agreement or a save are noted; None where none is.

    Args:
        engine: the ranks.
        notes_termination: whether SIGTERM is to end the training after a save.
        limit_s: how long after SIGTERM the process may take to get to a place where it can stop.
    """
    stopper = Stopper(engine, limit_s)
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        if engine.world_size > 1 and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            handlers[signal.SIGINT] = stopper.note_interrupt
        if notes_termination and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            handlers[signal.SIGTERM] = stopper.note_termination
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stopper if handlers or engine.world_size > 1 else None
    finally:
        stopper.release()
        for number, handler in before.items():
            signal.signal(number, handler)


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
