"""The engine: devices, precision, accumulation, processes and data for custom training loops."""

from .atomic import replaced
from .checkpoint import CheckpointError, UnsafeCheckpoint, load_file, read_file, save_file, write_file
from .data import Loader, placer, sized
from .device import available_devices, choose_device, move
from .engine import Engine
from .nested import concatenate, describe, leaves, map_nested
from .processes.launcher import LaunchError, launch
from .replicas import unwrap
from .samplers import tell_epoch
from .seeding import load_rng_state, mix_seed, preserved_rng, rng_state, set_seed
from .state import load_model_state, model_state
from .stopping import Stopper, confirm_stop, signals_noted

__all__ = [
    "CheckpointError",
    "Engine",
    "LaunchError",
    "Loader",
    "Stopper",
    "UnsafeCheckpoint",
    "available_devices",
    "choose_device",
    "concatenate",
    "confirm_stop",
    "describe",
    "launch",
    "leaves",
    "load_file",
    "load_model_state",
    "load_rng_state",
    "map_nested",
    "mix_seed",
    "model_state",
    "move",
    "placer",
    "preserved_rng",
    "read_file",
    "replaced",
    "rng_state",
    "save_file",
    "set_seed",
    "signals_noted",
    "sized",
    "tell_epoch",
    "unwrap",
    "write_file",
]
