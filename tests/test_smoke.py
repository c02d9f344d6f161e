"""The smoke scripts run as their own first lines say, on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .helpers.ranks import free_port

TESTS = Path(__file__).resolve().parent


def run(script, *arguments, processes=1):
    """Runs a script, under torchrun for several processes; returns its last line."""
    launcher = []
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
        launcher.append(f"--nproc-per-node={processes}")
    command = [sys.executable, *launcher, str(TESTS / script), *map(str, arguments)]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(("processes", "precision"), [(1, "fp16"), (2, "bf16")])
def test_smoke_training(tmp_path, processes, precision):
    out = run("smoke_training.py", "--output", tmp_path, "--precision", precision, processes=processes)
    assert out.startswith(f"PASSED: {processes} processes on cpu")
    assert json.loads((tmp_path / "result.json").read_text())["results"]["accuracy"] > 0.8


def test_smoke_launch(tmp_path):
    options = ["--num-processes=2", "--expected-world-size=2", "--device=cpu", f"--output={tmp_path}"]
    assert run("smoke_launch.py", *options).startswith("PASSED: 2 processes")


def test_training_against_one_process(tmp_path):
    options = ["--expected-world-size", 2, "--precision", "fp32", "--output", tmp_path / "training.json"]
    assert run("multigpu_training.py", *options, processes=2).startswith("PASSED: 12 checks on 2 processes")
    gaps = json.loads((tmp_path / "training.json").read_text())["gaps"]
    assert max(gaps.values()) < 1e-5


def test_evaluation_and_a_checkpoint_that_one_process_takes_up(tmp_path):
    options = ["--expected-world-size", 2, "--output", tmp_path / "evaluation"]
    assert run("multigpu_evaluation.py", *options, processes=2).startswith("PASSED: 42 checks on 2 processes")
    file = tmp_path / "evaluation" / "checkpoints" / "multiple" / "checkpoint-2.ckpt"
    options = ["--checkpoint", file, "--source-world-size", 2, "--output", tmp_path / "single"]
    assert run("single_gpu_checkpoint.py", *options).startswith("PASSED: a file of 2 processes")


def test_the_benchmark_writes_what_each_rank_took(tmp_path):
    options = ["--expected-world-size", 1, "--warmup", 1, "--steps", 2, "--batch-size", 2, "--image-size", 32]
    assert run("multigpu_benchmark.py", *options, "--output", tmp_path / "out.json").startswith("PASSED")
    found = json.loads((tmp_path / "out.json").read_text())
    assert len(found["ranks"][0]["step_ms"]) == 2
    assert found["images_per_s"] > 0
    assert (found["convolutions"], found["parameters"]) == (9, 5_244_968)


def test_a_training_that_is_killed_again_and_again_ends_as_one_left_alone():
    """C7; the long version is tests/kill_resume.py itself."""
    assert run("kill_resume.py", "--kills", 2) == "PASSED: 2 kills, equal to the last bit"
