"""Processes: this one's rank, the group's life, and the collectives; alone, each of them is the identity."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import gc
import os
import sys
import time
import weakref
from dataclasses import dataclass, field
from typing import Any, Iterator

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from ..nested import leaves, map_nested

TURN_S = 0.2  # without the GIL, at the process's end


@dataclass
class Place:
    """Where a process stands among the others.

    Attributes:
        rank: its number, 0 to world_size - 1.
        local_rank: its number on its machine.
        world_size: how many processes there are.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1


def find_place() -> Place:
    """Reads this process's place from the existing group, else from what the launcher left in the environment.

    Raises:
        RuntimeError: only a part of the launcher's variables is set, or one is not a number.
    """
    env = os.environ
    if dist.is_available() and dist.is_initialized():
        rank = dist.get_rank()
        return Place(rank, int(env.get("LOCAL_RANK", rank)), dist.get_world_size())
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return Place()
    needed = (
        ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if env.get("WORLD_SIZE") != "1" else ("RANK", "WORLD_SIZE")
    )
    missing = [name for name in needed if name not in env]
    if missing:
        found = {name: env[name] for name in needed if name in env}
        raise RuntimeError(
            f"the environment describes a distributed job only in part: {found} is set, {missing} is missing; "
            "start the script with torchrun or launch(), or unset these variables to run one process"
        )
    try:
        rank, world_size = int(env["RANK"]), int(env["WORLD_SIZE"])
        local_rank = int(env.get("LOCAL_RANK", rank % max(torch.cuda.device_count(), 1)))
    except ValueError as error:
        raise RuntimeError(f"RANK, WORLD_SIZE and LOCAL_RANK must be numbers, got {error}") from error
    if not 0 <= rank < world_size:
        raise RuntimeError(f"RANK must be within 0 and WORLD_SIZE - 1, got RANK={rank}, WORLD_SIZE={world_size}")
    return Place(rank, local_rank, world_size)


@dataclass
class _Group:
    """The life of the default group made here: torch has one per process, so the engines of a process share it.

    A gloo group's end waits for its threads, and these may need the GIL to free the tensors of what they have just
    finished. So whoever ends the group must not hold the GIL: dropping Python's own reference lets go of it, while the
    destructor of a data-parallel module's reducer keeps it, and both would wait for ever. Hence the order in `end`:
    the modules let go, and Python's reference is the last.
    """

    users: int = 0
    generation: int = 0
    stores: list[Any] = field(default_factory=list)
    modules: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    kept: list[Any] = field(default_factory=list)
    is_watched: bool = False

    def join(self, place: Place, backend: str, timeout: datetime.timedelta) -> None:
        if self.users == 0:
            if not self.stores:
                store, _, _ = next(rendezvous("env://", place.rank, place.world_size, timeout=timeout))
                self.stores.append(store)
            # a prefix of its own: keys that an earlier group left in the store would mislead this one
            store = PrefixStore(f"deepepochs/{self.generation}", self.stores[0])
            dist.init_process_group(backend, store=store, rank=place.rank, world_size=place.world_size, timeout=timeout)
            self.generation += 1
        self.users += 1

    def leave(self) -> None:
        self.users -= 1
        if self.users == 0 and dist.is_initialized():
            self.end()

    def end(self) -> None:
        """Ends the group once nothing but Python holds it."""
        group = dist.group.WORLD
        for module in list(self.modules):
            module.leave_group()
        _clear_defaults()
        dist.destroy_process_group()
        found = weakref.ref(group)
        del group
        if found() is not None:  # held by a module that is not ours, which must not be the last to hold it
            self.kept.append(found())

    def watch_exit(self) -> None:
        """Sees to it that no group is left to the interpreter's last moments, whoever made it."""
        if not self.is_watched:
            self.is_watched = True
            atexit.register(self.end_all)

    def end_all(self) -> None:
        """Ends what still lives of all groups while the interpreter is whole."""
        kept = self.kept + [dist.group.WORLD]
        for each in gc.get_objects():
            if DistributedDataParallel in type(each).__mro__:
                kept.append(vars(each).get("process_group"))
                vars(each).update(reducer=None, logger=None, process_group=None)
        _clear_defaults()
        if self.users and dist.is_initialized() and "nccl" not in str(dist.get_backend()):
            self.end()
        gc.collect()
        if dist.is_initialized():
            time.sleep(TURN_S)  # the caller's group stays: its threads get a turn to free what they have finished
        del kept[:], self.kept[:], self.stores[:]


def _clear_defaults() -> None:
    """Takes the group out of torch's own functions: imported while there is one, they keep it as a default argument."""
    functional = sys.modules.get("torch.distributed.nn.functional")
    for each in vars(functional).values() if functional else ():
        defaults = getattr(each, "__defaults__", None)
        if defaults and any(isinstance(value, dist.ProcessGroup) for value in defaults):
            each.__defaults__ = tuple(None if isinstance(value, dist.ProcessGroup) else value for value in defaults)


_group = _Group()


class Processes:
    """The processes of this job, seen from one of them.

    Args:
        place: from `find_place`.
        device: this process's device; it decides between nccl and gloo.
        timeout: how long a collective may wait for the others.
    """

    def __init__(self, place: Place, device: torch.device, timeout: datetime.timedelta) -> None:
        self.rank, self.local_rank, self.world_size = place.rank, place.local_rank, place.world_size
        self.is_main = place.rank == 0
        self._joined = False
        self._meetings: dict[str, int] = {}
        self._device = torch.device("cpu")
        if self.world_size == 1:
            return
        _group.watch_exit()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if not dist.is_initialized() or _group.users > 0:
            backend = "nccl" if device.type == "cuda" else "gloo"
            _group.join(place, backend, timeout)
            self._joined = True
        if "nccl" in str(dist.get_backend()):
            self._device = device

    def close(self) -> None:
        """Leaves the group; it ends with its last engine, and never if the caller made it."""
        if self._joined:
            self._joined = False
            _group.leave()

    def admit(self, module: Any) -> None:
        """Remembers a module that holds the group; its `leave_group` is called when the group ends."""
        _group.modules.add(module)

    def barrier(self) -> None:
        """Waits until every process is here."""
        if self.world_size > 1:
            dist.barrier()

    def reduce(self, data: Any, op: str = "sum") -> Any:
        """Combines nested tensors and numbers elementwise over the processes.

        Args:
            data: the same structure and shapes in each process.
            op: 'sum', 'mean', 'max' or 'min'.

        Returns:
            The result, the same in each process; `data` is unchanged.

        Raises:
            ValueError: `op` is unknown.
        """
        if op not in ("sum", "mean", "max", "min"):
            raise ValueError(f"`op` must be 'sum', 'mean', 'max' or 'min', got {op!r}")
        if self.world_size == 1:
            return data
        return map_nested(lambda leaf: self._reduce_leaf(leaf, op), data)

    def _reduce_leaf(self, leaf: Any, op: str) -> Any:
        if isinstance(leaf, torch.Tensor):
            summed = leaf.detach().to(self._device, copy=True)
            dist.all_reduce(summed, getattr(dist.ReduceOp, "SUM" if op == "mean" else op.upper()))
            return (summed / self.world_size if op == "mean" else summed).to(leaf.device)
        if isinstance(leaf, (int, float)):
            kind = torch.int64 if isinstance(leaf, int) else torch.float64
            number = self._reduce_leaf(torch.tensor(leaf, dtype=kind), op).item()
            return number
        return leaf

    def sum_later(self, number: float) -> Any:
        """Starts summing a number over the processes.

        Returns:
            A function that waits for the sum and returns it.
        """
        total = torch.tensor(number, dtype=torch.float64, device=self._device)
        work = dist.all_reduce(total, async_op=True)

        def wait() -> float:
            work.wait()
            return total.item()

        return wait

    def gather(self, data: Any) -> Any:
        """Joins nested tensors of all processes along their first dimension, in the order of the ranks.

        Args:
            data: nested tensors whose first dimension may differ between processes; None where a process has nothing.

        Returns:
            The joined structure, the same in each process; alone, `data` itself.
        """
        if self.world_size == 1:
            return data
        # a row of its own for each scalar
        data = map_nested(
            lambda leaf: leaf.reshape(1) if isinstance(leaf, torch.Tensor) and not leaf.ndim else leaf, data
        )
        described = self.gather_object(map_nested(_describe_leaf, data))
        known = [each for each in described if each is not None]
        if not known:
            return None
        specs = [None if each is None else list(leaves(each)) for each in described]
        own = None if data is None else list(leaves(data))
        shapes = next(each for each in specs if each is not None)
        joined = iter([self._gather_leaf(index, own, specs, shapes[index]) for index in range(len(shapes))])
        return map_nested(lambda _leaf: next(joined), known[0])

    def _gather_leaf(self, index: int, own: list[Any] | None, specs: list[Any], model: Any) -> Any:
        if not isinstance(model, _TensorSpec):
            return model
        counts = [0 if spec is None else spec[index].shape[0] for spec in specs]
        tail = model.shape[1:]
        home = torch.device("cpu")
        padded = torch.zeros((max(counts), *tail), dtype=model.dtype, device=self._device)
        if own is not None:
            home = own[index].device
            padded[: counts[self.rank]] = own[index].detach().to(self._device)
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded.contiguous())
        return torch.cat([part[:count] for part, count in zip(parts, counts)]).to(home)

    def broadcast(self, data: Any, source: int = 0) -> Any:
        """Copies one process's nested tensors into those of the others, in place.

        Args:
            data: the same structure and shapes in each process.
            source: the rank whose values all get.

        Returns:
            `data`.
        """
        if self.world_size > 1:
            for leaf in leaves(data):
                if isinstance(leaf, torch.Tensor):
                    carrier = leaf.detach().to(self._device).contiguous()
                    dist.broadcast(carrier, source)
                    leaf.detach().copy_(carrier)
        return data

    def gather_object(self, item: Any) -> list[Any]:
        """One plain object of each process, in the order of the ranks, in each process."""
        if self.world_size == 1:
            return [item]
        items: list[Any] = [None] * self.world_size
        dist.all_gather_object(items, item)
        return items

    def broadcast_object(self, item: Any, source: int = 0) -> Any:
        """The plain object of the process `source`, in each process."""
        if self.world_size == 1:
            return item
        items = [item]
        dist.broadcast_object_list(items, source, device=self._device)
        return items[0]

    def meet(self, name: str, timeout_s: float) -> bool:
        """Whether all processes come to this place soon; without a collective, which could wait for ever.

        Args:
            name: what the place is about.
            timeout_s: how long to wait for the others.
        """
        if self.world_size == 1:
            return True
        store = _get_default_store()
        self._meetings[name] = self._meetings.get(name, 0) + 1
        keys = [f"deepepochs/{name}/{self._meetings[name]}/{rank}" for rank in range(self.world_size)]
        store.set(keys[self.rank], "here")
        try:
            store.wait(keys, datetime.timedelta(seconds=timeout_s))
        except RuntimeError:  # the store's own error for a time-out
            return False
        return True

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """Runs the block in the main process, then in the others.

        Raises:
            RuntimeError: in the others, when the main process failed; they do not run the block.
        """
        if not self.is_main:
            failure = self.broadcast_object(None)
            if failure is not None:
                raise RuntimeError(f"the main process failed in main_process_first(): {failure}")
            yield
            return
        try:
            yield
        except BaseException as error:
            self.broadcast_object(f"{type(error).__name__}: {error}")
            raise
        self.broadcast_object(None)


class _TensorSpec:
    """A tensor's shape and dtype: a leaf, unlike a dataclass."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype


def _describe_leaf(leaf: Any) -> Any:
    return _TensorSpec(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf
