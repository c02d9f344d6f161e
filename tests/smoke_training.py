"""Smoke test of training, validation, checkpoint and test: one process, or any number under torchrun.

python tests/smoke_training.py --output /tmp/smoke
torchrun --master-addr=127.0.0.1 --master-port=29500 --nproc-per-node=2 tests/smoke_training.py --output /tmp/smoke-ddp
python tests/smoke_training.py --device cuda --precision fp16 --output /tmp/smoke-cuda
"""

import argparse

import smoke

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--device", default=None)
    parser.add_argument("--precision", default="fp32")
    arguments = parser.parse_args()
    found = smoke.train(arguments.output, arguments.device, arguments.precision)
    print(f"PASSED: {found['world_size']} processes on {found['device']}, accuracy {found['results']['accuracy']:.3f}")
