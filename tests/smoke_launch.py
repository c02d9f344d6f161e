"""Smoke test of launch(): the same training, started from Python.

python tests/smoke_launch.py --num-processes=2 --expected-world-size=2 --device=cpu --output /tmp/launch-cpu
python tests/smoke_launch.py --expected-world-size=4 --device=cuda --precision=fp16 --output /tmp/launch-cuda
"""

import argparse
import os
import signal

import smoke

from deepepochs import launch

parser = argparse.ArgumentParser()
parser.add_argument("--num-processes", type=int, default=None)
parser.add_argument("--expected-world-size", type=int, default=1)
parser.add_argument("--device", default=None)
parser.add_argument("--precision", default="fp32")
parser.add_argument("--output", required=True)


def main():
    """What each process runs; it reads the arguments by itself."""
    arguments = parser.parse_args()
    found = smoke.train(arguments.output, arguments.device, arguments.precision)
    smoke.check(found["world_size"] == arguments.expected_world_size, f"{found['world_size']} processes were started")
    return {"accuracy": found["results"]["accuracy"], "omp": os.environ.get("OMP_NUM_THREADS")}


if __name__ == "__main__":
    arguments = parser.parse_args()
    before = dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    result = launch(main, arguments.num_processes)
    after = dict(os.environ), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    smoke.check(before == after, "environment and signal handlers are as before")
    print(f"PASSED: {arguments.expected_world_size} processes, accuracy {result['accuracy']:.3f}")
