"""Strategy: the engine as modules and callbacks know it: processes, device, backward, the optimizers."""

from __future__ import annotations

import os
from typing import Any, Callable, ContextManager

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from deepepochs.engine import Engine, move, write_file

from .checkpoints.checkpoint_io import read_checkpoint
from .optimizers import LightningOptimizer, SchedulerConfig, configure
from .precision import Precision


class Strategy:
    """Runs a module on the engine.

    Args:
        engine: devices and processes.
        precision: how steps compute.
        calls: finds the present run's hooks.
    """

    handles_gradient_accumulation = False

    def __init__(self, engine: Engine, precision: Precision, calls: Callable[[], Any]) -> None:
        self.engine, self.precision_plugin, self._calls = engine, precision, calls
        self.lightning_module: Any = None
        self.model: Any = None  # the module, data parallel while it trains on several processes
        self.lr_scheduler_configs: list[SchedulerConfig] = []
        self._optimizers: list[Any] = []
        self._lightning_optimizers: list[Any] = []

    # ---- who and where

    @property
    def root_device(self) -> torch.device:
        """This process's device."""
        return self.engine.device

    @property
    def global_rank(self) -> int:
        """This process's number among all."""
        return self.engine.rank

    @property
    def local_rank(self) -> int:
        """This process's number on its machine."""
        return self.engine.local_rank

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.engine.world_size

    @property
    def is_global_zero(self) -> bool:
        """Whether this process writes."""
        return self.engine.is_main

    @property
    def optimizers(self) -> list[Any]:
        """The user's optimizers."""
        return self._optimizers

    @optimizers.setter
    def optimizers(self, optimizers: list[Any]) -> None:
        self._optimizers = optimizers
        self._lightning_optimizers = [
            each if isinstance(each, LightningOptimizer) else LightningOptimizer(each) for each in optimizers
        ]
        for each in self._lightning_optimizers:
            each._strategy = self

    # ---- a run's beginning and end

    def connect(self, module: Any) -> None:
        """Takes a module for the next run."""
        self.lightning_module = self.model = module

    def setup(self, trains: bool) -> None:
        """Moves the module to the device; for training makes it data parallel and asks for its optimizers."""
        module = self.lightning_module
        self.precision_plugin.convert_module(module)
        if trains:
            self.model = self.engine.prepare_model(module)
            optimizers, self.lr_scheduler_configs = configure(module, self._calls())
            self.optimizers = optimizers
            self._move_optimizers(self.root_device)
            return
        module.to(self.root_device)
        if self.world_size > 1:
            self.engine.broadcast([each.data for each in [*module.parameters(), *module.buffers()]])

    def share_buffers(self) -> None:
        """Gives all processes the main one's buffers, as each training batch does, before an evaluation within it."""
        if self.model is not self.lightning_module:
            self.engine.broadcast(list(self.lightning_module.buffers()))

    def teardown(self) -> None:
        """Gives the module back to the CPU, as it was before."""
        self._move_optimizers(torch.device("cpu"))
        if self.lightning_module is not None:
            self.lightning_module.cpu()
        self.model = self.lightning_module
        self.engine.forget(self.lightning_module)

    def _move_optimizers(self, device: torch.device) -> None:
        for optimizer in self._optimizers:
            for parameter, state in list(getattr(optimizer, "state", {}).items()):
                if isinstance(state, dict):  # the count of steps stays where its optimizer keeps it
                    state.update({key: move(value, device) for key, value in state.items() if key != "step"})
                else:
                    optimizer.state[parameter] = move(state, device)

    # ---- steps

    def run_step(self, name: str, *args: Any) -> Any:
        """Runs a step method of the module in its precision, through data parallel while it trains."""
        module = self.lightning_module
        if self.model is not module and name == "training_step":
            return self._calls().within(name, self._through_replica, module, args)
        if self.precision_plugin.is_plain:
            return self._calls().module(name, *args)
        with self.precision_plugin.forward_context():
            return self._calls().module(name, *args)

    def _through_replica(self, module: Any, args: tuple[Any, ...]) -> Any:
        """Runs `training_step` where data parallel runs `forward`, so that its gradients are synchronised."""
        own = module.__dict__.pop("forward", None)
        forward = module.forward if own is None else own

        def step(*inputs: Any) -> Any:
            module.forward = forward
            try:
                with self.precision_plugin.forward_context():
                    result = module.training_step(*inputs)
            finally:
                restore(module, own)
            if not module.automatic_optimization:
                self.model.require_backward_grad_sync = False  # its backwards are over
            return result

        module.forward = step
        try:
            return self.model(*args)
        finally:
            restore(module, own)
            if not module.automatic_optimization:
                self.model.require_backward_grad_sync = True

    def no_sync(self) -> ContextManager[None]:
        """The context for backwards whose gradients stay on their rank."""
        return self.engine.no_sync()

    def backward(self, loss: torch.Tensor, optimizer: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Runs a module's backward with the hooks around it.

        Args:
            loss: a scalar.
            optimizer: whose gradients they are; not needed.
            args: for the module's own backward.
            kwargs: for the module's own backward.

        Returns:
            The loss without its graph.
        """
        module, calls = self.lightning_module, self._calls()
        if isinstance(self.model, DistributedDataParallel) and not module.automatic_optimization:
            announce_backward(self.model, loss)
        loss = self.precision_plugin.scale(loss)
        calls.both("on_before_backward", loss)
        module.backward(loss, *args, **kwargs)
        calls.both("on_after_backward")
        return loss.detach()

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Updates the parameters of an optimizer."""
        return self.precision_plugin.optimizer_step(optimizer, model or self.lightning_module, closure, **kwargs)

    # ---- several processes

    def barrier(self, name: str | None = None) -> None:
        """Waits until every process is here."""
        self.engine.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """One process's object, in each process."""
        return self.engine.broadcast_object(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Combines a tensor over the processes: 'mean' ('avg'), 'sum', 'max' or 'min'."""
        if self.world_size == 1 or not isinstance(tensor, torch.Tensor):
            return tensor
        name = "mean" if reduce_op in (None, "avg", "mean") else str(reduce_op).lower()
        if group is None:
            return self.engine.reduce(tensor, name)
        total = tensor.detach().clone()
        dist.all_reduce(total, getattr(dist.ReduceOp, "SUM" if name == "mean" else name.upper()), group=group)
        return total / dist.get_world_size(group) if name == "mean" else total

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether all processes (or any of them) say yes."""
        votes = int(self.engine.reduce(int(bool(decision)), "sum"))
        return votes == self.world_size if all else votes > 0

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """The tensors of all processes, stacked; alone, the tensor itself."""
        if self.world_size == 1:
            return tensor
        if sync_grads:
            from torch.distributed.nn.functional import all_gather

            return torch.stack(all_gather(tensor.contiguous(), group or dist.group.WORLD))  # type: ignore[no-untyped-call]
        parts = [torch.zeros_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor.detach().contiguous(), group=group)
        return torch.stack(parts)

    def batch_to_device(self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0) -> Any:
        """A batch on a device, this process's if none is given."""
        return move(batch, device or self.root_device)

    # ---- files

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The module's weights."""
        return dict(self.lightning_module.state_dict())

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """An optimizer's state."""
        return dict(optimizer.state_dict())

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Writes a checkpoint in the main process, whole or not at all."""
        if storage_options is not None:
            raise TypeError("`storage_options` is for remote file systems, which are not supported; leave it out")
        if self.is_global_zero:
            write_file(filepath, checkpoint)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Reads a checkpoint onto the CPU, see `read_checkpoint`."""
        return read_checkpoint(checkpoint_path, weights_only)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Deletes a checkpoint in the main process."""
        if self.is_global_zero and os.path.exists(filepath):
            os.remove(filepath)


def restore(module: Any, forward: Any) -> None:
    """Puts a module's forward back to what it was: its own attribute, or its class's."""
    module.__dict__.pop("forward", None)
    if forward is not None:
        module.__dict__["forward"] = forward


def announce_backward(replica: DistributedDataParallel, loss: torch.Tensor) -> None:
    """Prepares data parallel for a backward within a step, which its forward has not announced."""
    if not torch.is_grad_enabled() or not replica.require_backward_grad_sync:
        replica.require_forward_param_sync = False
        return
    replica.require_forward_param_sync = True
    unused = replica.find_unused_parameters and not replica.static_graph
    replica.reducer._rebuild_buckets()
    replica.reducer.prepare_for_backward([loss] if unused else [])
