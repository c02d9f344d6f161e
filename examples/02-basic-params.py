"""The trainer's common parameters: device, precision, accumulation, output, and what fit and test can be told."""

from data import loaders
from models import mlp
from torch import optim
from torch.nn import functional as F

from deepepochs import Trainer, metrics, set_seed

if __name__ == "__main__":
    set_seed(1)
    train_dl, val_dl, test_dl = loaders()
    model = mlp()
    trainer = Trainer(
        model,
        F.cross_entropy,
        opt=optim.Adam(model.parameters(), lr=1e-3),  # None would be the same
        epochs=3,  # in total
        device="cpu",  # None takes CUDA where there is some
        precision="bf16",
        gradient_accumulation_steps=2,  # two batches, one update
        metrics=[metrics.accuracy],  # of all stages
        metric_patch="confusion",  # how metrics are accumulated
        running_id="common-params",  # names the folders of logs and checkpoints
        log_long=True,  # seven decimals
        log_batch=False,  # no output while an epoch runs
        log_tqdm=False,  # no progress bar
        show_info=True,  # what runs where
        compile_model=False,
    )
    try:
        trainer.fit(train_dl, val_dl, val_freq=2, train_metrics=[metrics.f1])
        trainer.fit(train_dl, val_dl, epochs=2)  # a later fit adds epochs
        print(trainer.test(test_dl, do_loss=False))
    finally:
        trainer.close()
