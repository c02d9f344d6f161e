"""Events: TensorBoard's files, written without a thread, so that what cannot be written ends nothing."""

from __future__ import annotations

import io
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any, Callable, Iterable

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.writer import FileWriter

Append = Callable[[Path, bytes, bytes], None]
FLUSH_S, FLUSH_BYTES = 30.0, 1 << 20  # so old, or so many, events are written though nobody asks for it


class Board(SummaryWriter):
    """A SummaryWriter whose every event goes into an EventFile.

    Args:
        folder: the run's.
        append: (path, data, head of a new file) writes at a file's end, and raises no OSError.
    """

    file_writer: Any
    all_writers: Any

    def __init__(self, folder: Path, append: Append) -> None:
        self._folder, self._append = folder, append
        super().__init__(str(folder))

    def _get_file_writer(self) -> Any:
        if self.file_writer is None:
            self.file_writer = EventWriter(self._folder, self._append)
            self.all_writers = {str(self._folder): self.file_writer}
        return self.file_writer


class EventWriter(FileWriter):
    """A FileWriter of torch that writes to an EventFile."""

    def __init__(self, folder: Path, append: Append) -> None:
        self.event_writer = EventFile(folder, append)  # instead of that of FileWriter, which opens a file of its own


class EventFile:
    """One file of events; it has the methods of TensorBoard's EventFileWriter, and makes the file at the first flush.

    Args:
        folder: the run's.
        append: see Board.
    """

    def __init__(self, folder: Path, append: Append) -> None:
        self._folder, self._append = folder, append
        self.reopen()

    def get_logdir(self) -> str:
        """The folder."""
        return str(self._folder)

    def reopen(self) -> None:
        """Begins another file, with a name behind those of all before."""
        now = time.time_ns()
        name = f"events.out.tfevents.{now // 10**9:010d}.{socket.gethostname()}.{os.getpid()}.{now % 10**9:09d}"
        self._path = self._folder / name
        self._waiting: list[bytes] = []
        self._size, self._due = 0, time.monotonic() + FLUSH_S

    def add_event(self, event: Event) -> None:
        """Takes an event."""
        data = event.SerializeToString()
        self._waiting.append(data)
        self._size += len(data)
        if self._size > FLUSH_BYTES or time.monotonic() > self._due:
            self.flush()

    def flush(self) -> None:
        """Writes what waits."""
        waiting, self._waiting = self._waiting, []
        self._size, self._due = 0, time.monotonic() + FLUSH_S
        if waiting:
            version = Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString()
            self._append(self._path, records(waiting), records([version]))

    def close(self) -> None:
        """Writes what waits."""
        self.flush()


def records(events: Iterable[bytes]) -> bytes:
    """Events as they stand in a file."""
    stream = io.BytesIO()
    writer = RecordWriter(stream)
    for event in events:
        writer.write(event)
    return stream.getvalue()


def later_dropped(content: bytes, is_later: Callable[[str, int], bool]) -> bytes | None:
    """A file of events without later values.

    Args:
        content: the file's.
        is_later: (tag, step) -> whether a value goes.

    Returns:
        What is left, each record as it was where it loses nothing; None where nothing goes.
    """
    left, position, has_changed = [], 0, False
    while position + 16 <= len(content):
        end = position + 16 + int(struct.unpack_from("<Q", content, position)[0])  # length, checksum, data, checksum
        if end > len(content):
            break
        try:
            event = Event.FromString(content[position + 12 : end - 4])
        except DecodeError:
            break
        values = [value for value in event.summary.value if not is_later(value.tag, event.step)]
        if len(values) == len(event.summary.value):
            left.append(content[position:end])
        else:
            has_changed = True
            del event.summary.value[:]
            event.summary.value.extend(values)
            left.append(records([event.SerializeToString()]) if values else b"")
        position = end
    return b"".join([*left, content[position:]]) if has_changed else None  # what is damaged stays as it is
