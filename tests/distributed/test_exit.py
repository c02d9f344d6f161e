"""The end of a process (E10): whatever it has done, and whoever holds the group, it neither hangs nor aborts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..helpers.ranks import PATH, free_port

TIMEOUT_S = 60
SCRIPT = """
import atexit, os, sys, time, weakref
atexit.register(lambda: os.write(1, b" held" if group() else b" ended"))  # after all other hooks
import torch, torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from deepepochs import Trainer
from deepepochs.engine import Engine

def keep_gil(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass

def leave_works_behind():
    # the group's threads finish these while this thread keeps the GIL, which they need to free the tensors
    global group
    group = weakref.ref(dist.group.WORLD)
    sys.setswitchinterval(1e6)
    for _ in range(8):
        dist.all_gather([torch.zeros(1000), torch.zeros(1000)], torch.ones(1000), async_op=True)
    keep_gil(0.5)

def train(engine):
    model = engine.prepare(nn.Linear(2, 2))
    opt = engine.prepare(torch.optim.SGD(model.parameters(), 0.1))
    with engine.accumulate(model, n_samples=2):
        engine.backward(model(torch.ones(2, 2)).sum())
        engine.step(opt)
    return model

def closed():
    with Engine(device="cpu") as engine:
        model = train(engine)
        leave_works_behind()
    model(torch.ones(2, 2)).sum().backward()  # the bare module from now on

def never_closed():
    engine = Engine(device="cpu")
    train(engine)
    leave_works_behind()

def kept_to_the_end():
    engine = Engine(device="cpu")
    globals()["engine"], globals()["model"] = engine, train(engine)
    leave_works_behind()

def another_module_of_torch():
    with Engine(device="cpu"):
        globals()["model"] = DistributedDataParallel(nn.Linear(2, 2))
        leave_works_behind()

def the_callers_group():
    dist.init_process_group("gloo")
    engine = Engine(device="cpu")
    globals()["model"] = train(engine)
    leave_works_behind()
    if len(sys.argv) > 2:
        dist.destroy_process_group()

def trainer_of_a_failed_run():
    x = torch.ones(8, 2)
    trainer = Trainer(nn.Linear(2, 2), F.mse_loss, epochs=1, device="cpu", show_info=False)
    trainer.fit(DataLoader(TensorDataset(x, x), batch_size=2))
    globals()["trainer"] = trainer
    leave_works_behind()

globals()[sys.argv[1]]()
keep_gil(0.5)
os.write(1, b"done")
"""


@pytest.mark.parametrize(
    "way",
    [
        ["closed"],
        ["never_closed"],
        ["kept_to_the_end"],
        ["another_module_of_torch"],
        ["the_callers_group"],
        ["the_callers_group", "destroyed"],
        ["trainer_of_a_failed_run"],
    ],
    ids="-".join,
)
def test_two_ranks_end_with_finished_works_in_the_groups_threads(way, tmp_path):
    script = Path(tmp_path, "script.py")
    script.write_text(SCRIPT)
    port = str(free_port())
    ranks = []
    for rank in ("0", "1"):
        env = dict(os.environ, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        env.update(PYTHONPATH=PATH, CUDA_VISIBLE_DEVICES="")
        command = [sys.executable, str(script), *way]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        ended = [each.communicate(timeout=TIMEOUT_S) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    kept = "held" if way == ["the_callers_group"] else "ended"  # which the engine does not destroy
    found = [(each.returncode, *out.split()[-2:]) for each, (out, _) in zip(ranks, ended)]
    assert found == [(0, "done", kept)] * 2, ended
