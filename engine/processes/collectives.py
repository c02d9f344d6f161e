"""Collectives: the face over the processes: who this one is, and what it does together with the others."""

from __future__ import annotations

from typing import Any, ContextManager

from .group import Processes


class Collectives:
    """One of several processes; alone, each of its collectives is the identity.

    Attributes:
        processes: the ranks, and the life of their group.
    """

    processes: Processes

    @property
    def rank(self) -> int:
        """This process's number among all."""
        return self.processes.rank

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return self.processes.local_rank

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.processes.world_size

    @property
    def is_main(self) -> bool:
        """Whether this process prints, logs and writes files."""
        return self.processes.is_main

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on some process; the same on all, so that they can stop together."""
        return bool(self.processes.reduce(int(bool(flag)), "max"))

    def all(self, flag: bool) -> bool:
        """Whether the flag is set on every process; the same on all."""
        return bool(self.processes.reduce(int(bool(flag)), "min"))

    def print(self, *values: Any, **options: Any) -> None:
        """Prints in the main process alone, as `print` does."""
        if self.is_main:
            print(*values, **options)

    def barrier(self) -> None:
        """Waits until every process is here."""
        self.processes.barrier()

    def meet(self, name: str, timeout_s: float) -> bool:
        """Whether all processes come to this place soon; without a collective, which could wait for ever."""
        return self.processes.meet(name, timeout_s)

    def reduce(self, data: Any, op: str = "sum") -> Any:
        """Combines nested tensors and numbers over the processes: 'sum', 'mean', 'max' or 'min'."""
        return self.processes.reduce(data, op)

    def gather(self, data: Any) -> Any:
        """Joins nested tensors of all processes along their first dimension, in the order of the ranks."""
        return self.processes.gather(data)

    def broadcast(self, data: Any, source: int = 0) -> Any:
        """Copies one process's nested tensors into those of the others, in place."""
        return self.processes.broadcast(data, source)

    def gather_object(self, item: Any) -> list[Any]:
        """One plain object of each process, in the order of the ranks."""
        return self.processes.gather_object(item)

    def broadcast_object(self, item: Any, source: int = 0) -> Any:
        """The plain object of the process `source`."""
        return self.processes.broadcast_object(item, source)

    def main_process_first(self) -> ContextManager[None]:
        """Runs a block in the main process and only then in the others; if it fails there, they fail too."""
        return self.processes.main_first()
