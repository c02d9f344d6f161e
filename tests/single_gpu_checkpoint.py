"""Takes up in one process a checkpoint that several processes wrote: load, move, continue, test.

    python tests/single_gpu_checkpoint.py --checkpoint OUTPUT/checkpoints/multiple/checkpoint-2.ckpt \
        --source-world-size 4 --precision fp16 --device cuda:0 --output /tmp/single-checkpoint
"""

import argparse
import shutil
from pathlib import Path

import smoke
import torch
from multigpu_evaluation import model
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

from deepepochs import CheckCallback, Optimizer, Trainer, metrics
from deepepochs.engine import load_file


def main():
    """All checks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--source-world-size", type=int, required=True)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--device", default=None)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    content = load_file(arguments.checkpoint)
    smoke.check(
        content["world_size"] == arguments.source_world_size, f"the file is of {content['world_size']} processes"
    )
    moved = Path(arguments.output, "moved.bin")
    moved.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(arguments.checkpoint, moved)
    net = model()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=0.2)
    data = smoke.digits()
    with Trainer(
        net,
        F.cross_entropy,
        Optimizer(opt, plateau, sched_with_loss=True),
        device=arguments.device,
        precision=arguments.precision,
        metrics=[metrics.accuracy],
        callbacks=[CheckCallback("accuracy", mode="max", ckpt_dir=arguments.output)],
        running_id="single",
        show_info=False,
    ) as trainer:
        trainer.load_checkpoint(moved)
        state = trainer.engine.model_state(trainer.model)
        same = all(torch.equal(state[name].cpu(), value) for name, value in content["model_state"].items())
        smoke.check(same and list(state) == list(content["model_state"]), "the model is that of the file")
        smoke.check(
            trainer.engine.state_dict()["scaler"] == content["scaler_state"], "the loss scale is that of the file"
        )
        smoke.check(trainer.init_epoch == content["epoch"], "the epochs are those of the file")
        smoke.check(trainer.history == content["progress"], "the history is that of the file")
        progress = trainer.fit(
            DataLoader(Subset(data, range(1000)), batch_size=50),
            DataLoader(Subset(data, range(1000, 1100)), batch_size=50),
            epochs=content["epoch"] + 1,
        )
        smoke.check(len(progress["train"]["loss"]) == 1, "one more epoch was trained")
        present = [each.clone() for each in net.parameters()]
        results = trainer.test(DataLoader(Subset(data, range(1100, 1150)), batch_size=50))
        smoke.check(all(torch.equal(a, b) for a, b in zip(present, net.parameters())), "test() gives the weights back")
    smoke.write(arguments.output, "result.json", {"results": results, "epoch": content["epoch"]})
    print(
        f"PASSED: a file of {arguments.source_world_size} processes goes on in one, accuracy {results['accuracy']:.3f}"
    )


if __name__ == "__main__":
    main()
