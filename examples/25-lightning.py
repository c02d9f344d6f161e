"""A LightningModule with its callbacks and data module, run unchanged: one line differs from a script for Lightning.

It runs on Lightning's classes where they are installed, and on the light bases of the same contract where not.
"""

import torch
from data import digits
from models import mlp
from torch.nn import functional as F
from torch.utils.data import DataLoader

from deepepochs import compat
from deepepochs.compat import LightningTrainer

try:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
except ImportError:  # the same contract without Lightning
    from deepepochs import compat as pl
    from deepepochs.compat import EarlyStopping, ModelCheckpoint


class Digits(pl.LightningDataModule):
    def __init__(self, batch_size=32):
        super().__init__()
        self.save_hyperparameters()

    def setup(self, stage):
        self.train, self.val, self.test = digits()

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=64)

    def test_dataloader(self):
        return DataLoader(self.test, batch_size=64)


class Classifier(pl.LightningModule):
    def __init__(self, lr=2e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = mlp()

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y), prog_bar=True)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=self.hparams.lr)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)}}


if __name__ == "__main__":
    torch.manual_seed(1)
    best = ModelCheckpoint("logs", "best-{epoch}", monitor="val_loss")
    trainer = LightningTrainer(  # was: trainer = pl.Trainer(
        max_epochs=6,
        accelerator="cpu",
        gradient_clip_val=1.0,
        callbacks=[EarlyStopping("val_loss", patience=2), best],
        logger=compat.TensorBoardLogger("logs"),
    )
    module, datamodule = Classifier(), Digits()
    trainer.fit(module, datamodule=datamodule)
    results = trainer.test(module, datamodule=datamodule, ckpt_path="best")
    again = Classifier.load_from_checkpoint(best.best_model_path)
    print("the file holds the hyper-parameters", dict(again.hparams))
