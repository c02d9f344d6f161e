"""Writer: the one TensorBoard writer of a trainer, made when it is first needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Sequence

from deepepochs.engine import replaced

from .appending import append_whole, drop_half_line
from .output import tell

LastStep = Callable[[str, int], "int | None"]


class Writer:
    """Writes a run's log; all callbacks share it, and only the main process has one that writes.

    What cannot be written, because the disk is full or the folder has gone, is lost and told of once; it is tried anew
    at the next write.

    Args:
        running_id: the run, a folder below the log folder.
        is_main: whether this process writes.
    """

    def __init__(self, running_id: str, is_main: bool) -> None:
        self._running_id, self._is_main = running_id, is_main
        self._folder: Path | None = None
        self._writer: Any = None
        self._has_told = False
        self._counters: list[LastStep] = []

    def open(self, log_dir: str, last_step: LastStep | None = None) -> None:
        """Chooses the folder, before the first write.

        Args:
            log_dir: the folder of all runs.
            last_step: (tag, finished epochs) -> the last step of that curve that the callback has counted; None for
                curves of others. For `purge`.

        Raises:
            ValueError: another callback has chosen another one.
        """
        folder = Path(log_dir).resolve() / self._running_id
        if self._folder not in (None, folder):
            raise ValueError(
                f"log callbacks share one writer: give all of them the same `log_dir`, got {self._folder} and {folder}"
            )
        self._folder = folder
        if last_step is not None and last_step not in self._counters:
            self._counters.append(last_step)

    def purge(self, epochs: int) -> None:
        """Takes out of the run's log what lies behind the state that was loaded: it will be written again.

        Args:
            epochs: how many are finished in that state.
        """
        self.close()
        if self._folder is None or not self._is_main or not self._folder.is_dir():
            return
        from .events import later_dropped

        def is_later(tag: str, step: int) -> bool:
            return self._is_later(tag, step, epochs)

        try:
            for path in self._folder.glob("*tfevents*"):
                rewrite(path, lambda content: later_dropped(content, is_later))
            path = self._folder / "scalars.jsonl"
            if path.is_file():
                rewrite(path, lambda content: self._lines_left(content, epochs))
        except OSError as error:
            self._tell(error)

    def _is_later(self, tag: str, step: int, epochs: int) -> bool:
        limits = [limit for limit in [last_step(tag, epochs) for last_step in self._counters] if limit is not None]
        return bool(limits) and step > limits[0]

    def _lines_left(self, lines: bytes, epochs: int) -> bytes:
        """The lines of a scalars.jsonl without later values; a line that is none of its own stays as it is."""
        left = []
        for line in lines.splitlines(keepends=True):
            if not line.endswith(b"\n"):  # of a process that was killed
                continue
            try:
                record = json.loads(line)
                step = record["step"]
                kept = {tag: value for tag, value in record.items() if not self._is_later(tag, step, epochs)}
            except (ValueError, TypeError, KeyError, AttributeError):
                left.append(line)
                continue
            if kept == record:
                left.append(line)
            elif set(kept) - {"step", "hyper_params"}:
                left.append(json.dumps(kept).encode() + b"\n")
        return b"".join(left)

    @property
    def folder(self) -> Path | None:
        """Where the log lies; None before it was chosen."""
        return self._folder

    @property
    def board(self) -> Any:
        """The SummaryWriter, for text, figures and whatever else it writes; None in other processes.

        Raises:
            RuntimeError: no log callback has chosen a folder.
        """
        if self._folder is None:
            raise RuntimeError("there is no log yet: add a LogCallback, or call trainer.writer.open(log_dir)")
        if self._writer is None and self._is_main:
            from .events import Board

            self._writer = Board(self._folder, self._append)
        return self._writer

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Writes several values of one step as one event."""
        if self.board is None or not values:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        entries = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self.board.file_writer.add_summary(Summary(value=entries), step)

    def hyper_params(self, hyper_params: Mapping[str, Any], tags: Sequence[str]) -> None:
        """Writes hyper-parameters into the same run, with the tags of the metrics that they led to."""
        if self.board is not None:
            write_hyper_params(self.board, hyper_params, tags)

    def lines(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Adds objects to `scalars.jsonl` in the run's folder, each on a line of its own.

        Raises:
            RuntimeError: no log callback has chosen a folder.
        """
        if self._folder is None:
            raise RuntimeError("there is no log yet: call trainer.writer.open(log_dir) first")
        if not self._is_main or not records:
            return
        text = "".join([json.dumps(record) + "\n" for record in records])
        self._append(self._folder / "scalars.jsonl", text.encode(), is_text=True)

    def _append(self, path: Path, data: bytes, head: bytes = b"", is_text: bool = False) -> None:
        try:
            if is_text:
                drop_half_line(path)
            append_whole(path, data, head)
        except OSError as error:
            self._tell(error)

    def _tell(self, error: Exception) -> None:
        if not self._has_told:
            self._has_told = True
            tell(f"training goes on, its log in {self._folder} cannot be written: {type(error).__name__}: {error}")

    def flush(self) -> None:
        """Brings everything onto the disk."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Finishes the file and drops the writer; a later write opens a new file in the same folder."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def rewrite(path: Path, change: Callable[[bytes], bytes | None]) -> None:
    """Gives a file another content, all or nothing, if `change` makes one of it; None leaves it alone."""
    content = path.read_bytes()
    changed = change(content)
    if changed is not None and changed != content:
        with replaced(path) as file:
            file.write(changed)


def write_hyper_params(board: Any, hyper_params: Mapping[str, Any], tags: Iterable[str]) -> None:
    """Writes hyper-parameters into the run of a SummaryWriter.

    Args:
        board: the SummaryWriter.
        hyper_params: by name; what is not plain is written as text.
        tags: the names of the metrics that they led to.
    """
    from torch.utils.tensorboard.summary import hparams

    plain = {
        name: value if isinstance(value, (bool, int, float, str)) else str(value)
        for name, value in hyper_params.items()
    }
    for summary in hparams(plain, dict.fromkeys(tags, 0.0)):  # type: ignore[no-untyped-call]
        board.file_writer.add_summary(summary)
