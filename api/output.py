"""Output: what is printed, on a stream that may be missing, closed or full; it never ends training."""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any


class Output:
    """A file for `print` that writes to a stream as well as that goes, and tells once when it does not.

    Args:
        stream: where to write; None looks `sys.stdout` up at each write.
        is_bare: write past what stands before the stream while a progress bar of rich is shown: for the bar itself.
    """

    def __init__(self, stream: Any = None, is_bare: bool = False) -> None:
        self._stream, self._is_bare = stream, is_bare
        self._has_told = False

    @property
    def encoding(self) -> str:
        """The stream's encoding; rich asks for it."""
        return str(getattr(self._target(), "encoding", None) or "utf-8")

    def write(self, text: str) -> int:
        """Writes a text; letters that the stream's encoding lacks are written as their escapes."""
        stream = self._target()
        if stream is not None:  # as without a console on Windows: `print` is silent then too
            try:
                try:
                    stream.write(text)
                except UnicodeEncodeError:
                    stream.write(text.encode(self.encoding, "backslashreplace").decode(self.encoding))
            except Exception as error:  # streams that stand for sys.stdout have errors of their own
                self._tell(error)
        return len(text)

    def flush(self) -> None:
        """Brings what was written to where it goes."""
        try:
            getattr(self._target(), "flush", nothing)()
        except Exception as error:  # see `write`
            self._tell(error)

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        try:
            return bool(getattr(self._target(), "isatty", nothing)())
        except Exception:  # a closed stream is no terminal
            return False

    def _target(self) -> Any:
        stream = sys.stdout if self._stream is None else self._stream
        return getattr(stream, "rich_proxied_file", stream) if self._is_bare else stream

    def _tell(self, error: Exception) -> None:
        if not self._has_told:
            self._has_told = True
            tell(f"training goes on, its output cannot be written: {type(error).__name__}: {error}")


def nothing() -> None:
    """What a stream that lacks a method does instead."""


def tell(message: str) -> None:
    """Warns, where that is possible: neither a filter that makes warnings errors nor a broken stderr ends training."""
    with contextlib.suppress(Exception):
        warnings.warn(message, UserWarning, stacklevel=3)
