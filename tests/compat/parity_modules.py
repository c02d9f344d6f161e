"""Modules of different kinds, as people write them; each is built on whatever base library it is given."""

import copy
import types

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score


def digits(count=60, start=0):
    """Real images (count, 64) within [0, 1], and their labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[start : start + count], dtype=torch.float32) / 16
    return TensorDataset(x, torch.tensor(labels[start : start + count]))


def loader(count=60, start=0, batch_size=16, shuffle=True, **options):
    return DataLoader(digits(count, start), batch_size=batch_size, shuffle=shuffle, **options)


def evaluation(count=25, start=100):
    return loader(count, start, batch_size=8, shuffle=False)


class Case:
    """What a parity test runs: a module, its data, the trainer's arguments, the calls."""

    def __init__(self, module, train=None, val=None, datamodule=None, callbacks=(), calls=("fit",), **trainer):
        self.module, self.train, self.val, self.datamodule = module, train, val, datamodule
        self.callbacks, self.calls, self.trainer = list(callbacks), calls, trainer


def classifier(pl):
    class Classifier(pl.LightningModule):
        def __init__(self, hidden=12, lr=0.1):
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(64, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.2))
            self.head = nn.Linear(hidden, 10)

        def forward(self, x):
            return self.head(self.net(x))

        def training_step(self, batch, batch_idx):
            x, y = batch
            out = self(x)
            loss = F.cross_entropy(out, y)
            self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
            self.log("train_acc", (out.argmax(1) == y).float().mean(), on_epoch=True, on_step=False)
            return loss

        def validation_step(self, batch, batch_idx):
            x, y = batch
            self.log_dict({"val_loss": F.cross_entropy(self(x), y), "worst": 1.0 * batch_idx}, reduce_fx="max")

        def on_validation_epoch_end(self):
            self.log("seen", float(self.current_epoch + 1))

        def test_step(self, batch, batch_idx):
            self.log("test_loss", F.cross_entropy(self(batch[0]), batch[1]))

        def predict_step(self, batch, batch_idx):
            return self(batch[0]).softmax(1)

        def configure_optimizers(self):
            opt = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
            return [opt], [torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)]

    return Case(
        Classifier(hidden=14), loader(), evaluation(), calls=("fit", "validate", "test", "predict"), max_epochs=3
    )


def autoencoder(pl):
    class Autoencoder(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(64, 6), nn.Linear(6, 64)

        def training_step(self, batch, batch_idx):
            x = batch[0]
            loss = F.mse_loss(self.decoder(torch.relu(self.encoder(x))), x)
            self.log("loss", loss)
            return {"loss": loss, "size": len(x)}

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.log("size", float(outputs["size"]), reduce_fx="sum", on_epoch=True)

        def validation_step(self, batch, batch_idx):
            x = batch[0]
            self.log("val_loss", F.mse_loss(self.decoder(torch.relu(self.encoder(x))), x), on_step=True, on_epoch=True)

        def configure_optimizers(self):
            return {
                "optimizer": torch.optim.Adam(self.parameters(), lr=0.01),
            }

    return Case(Autoencoder(), loader(), evaluation(), max_epochs=2, val_check_interval=0.5, log_every_n_steps=2)


def gan(pl):
    class GAN(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.generator = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 64), nn.Sigmoid())
            self.critic = nn.Sequential(nn.Linear(64, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

        def training_step(self, batch, batch_idx):
            real = batch[0]
            g, c = self.optimizers()
            noise = torch.randn(len(real), 5)
            self.toggle_optimizer(g)
            fake = self.critic(self.generator(noise))
            g_loss = F.binary_cross_entropy_with_logits(fake, torch.ones_like(fake))
            self.manual_backward(g_loss)
            self.clip_gradients(g, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
            g.step()
            g.zero_grad()
            self.untoggle_optimizer(g)
            self.toggle_optimizer(c)
            good, bad = self.critic(real), self.critic(self.generator(noise).detach())
            c_loss = F.softplus(-good).mean() + F.softplus(bad).mean()
            self.manual_backward(c_loss)
            c.step()
            c.zero_grad()
            self.untoggle_optimizer(c)
            self.log_dict({"g_loss": g_loss, "c_loss": c_loss}, prog_bar=True, on_epoch=True)

        def on_train_epoch_end(self):
            for scheduler in self.lr_schedulers():
                scheduler.step()

        def configure_optimizers(self):
            g = torch.optim.Adam(self.generator.parameters(), lr=0.002, betas=(0.5, 0.9))
            c = torch.optim.Adam(self.critic.parameters(), lr=0.001)
            return [g, c], [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in (g, c)]

    return Case(GAN(), loader(), max_epochs=3)


def transformer(pl):
    class Transformer(pl.LightningModule):
        """Rows of the images as a sequence; the learning rate warms up in `optimizer_step`."""

        def __init__(self, width=16, warmup=6):
            super().__init__()
            self.save_hyperparameters(ignore=["width"])
            self.embed = nn.Linear(8, width)
            layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1)
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            return self.head(self.encoder(self.embed(x.view(-1, 8, 8))).mean(1))

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = F.cross_entropy(self(x), y)
            self.log("loss", loss)
            return loss

        def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure=None):
            optimizer.step(closure=optimizer_closure)
            if self.trainer.global_step < self.hparams.warmup:
                scale = min(1.0, float(self.trainer.global_step + 1) / self.hparams.warmup)
                for group in optimizer.param_groups:
                    group["lr"] = scale * 1e-3

        def lr_scheduler_step(self, scheduler, metric):
            scheduler.step()

        def configure_optimizers(self):
            opt = torch.optim.AdamW(self.parameters(), lr=1e-4)
            scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1.0 / (1 + 0.1 * step))
            return {"optimizer": opt, "lr_scheduler": {"scheduler": scheduler, "interval": "step", "frequency": 3}}

    return Case(Transformer(), loader(), max_epochs=2, gradient_clip_val=0.5)


def ema(pl):
    class EMA(pl.LightningModule):
        """Validates with a moving average of its weights."""

        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
            self.average = copy.deepcopy(self.net).requires_grad_(False)

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def on_train_batch_end(self, outputs, batch, batch_idx):
            self.log("loss", outputs["loss"], on_epoch=True, on_step=False)
            with torch.no_grad():
                for slow, fast in zip(self.average.parameters(), self.net.parameters()):
                    slow.lerp_(fast, 0.1)

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", F.cross_entropy(self.average(batch[0]), batch[1]))
            self.log("raw_loss", F.cross_entropy(self.net(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.net.parameters(), lr=0.01)

        def on_save_checkpoint(self, checkpoint):
            checkpoint["decay"] = 0.9

    return Case(EMA(), loader(), evaluation(), max_epochs=2, check_val_every_n_epoch=2, num_sanity_val_steps=1)


def dqn(pl):
    class Experience(IterableDataset):
        """Plays with the module's own net: what it yields depends on the weights at that moment."""

        def __init__(self, owner):
            self.owner = owner

        def __iter__(self):
            state = torch.zeros(4)
            for step in range(30):
                with torch.no_grad():
                    action = int(self.owner(state).argmax()) if torch.rand(()) > 0.2 else int(torch.randint(2, ()))
                following = torch.sin(state + action + 0.1 * step)
                yield state, action, following.sum(), following
                state = following

    class DQN(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.target = nn.Linear(4, 2), nn.Linear(4, 2)
            self.target.load_state_dict(self.net.state_dict())

        def forward(self, state):
            return self.net(state)

        def training_step(self, batch, batch_idx):
            state, action, reward, following = batch
            value = self(state).gather(1, action[:, None]).squeeze(1)
            with torch.no_grad():
                wanted = reward + 0.9 * self.target(following).max(1).values
            loss = F.smooth_l1_loss(value, wanted)
            if self.global_step % 3 == 0:
                self.target.load_state_dict(self.net.state_dict())
            self.log("loss", loss)
            self.log("reward", reward.mean(), reduce_fx=torch.mean, on_epoch=True, batch_size=len(reward))
            return loss

        def train_dataloader(self):
            return DataLoader(Experience(self), batch_size=7)

        def configure_optimizers(self):
            return torch.optim.RMSprop(self.net.parameters(), lr=0.01)

    return Case(DQN(), max_epochs=3)


def contrastive(pl):
    class Contrastive(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(64, 8)

        def training_step(self, batch, batch_idx):
            (x, _), (other, _) = batch["left"], batch["right"]
            size = min(len(x), len(other))
            near = F.normalize(self.encoder(x[:size]), dim=1) @ F.normalize(self.encoder(other[:size]), dim=1).T
            loss = F.cross_entropy(near / 0.5, torch.arange(size))
            self.log("loss", loss, batch_size=size)
            return loss

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("norm", self.encoder(batch[0]).norm(dim=1).mean())

        def configure_optimizers(self):
            return (torch.optim.Adam(self.parameters(), lr=0.01),)

    train = {"left": loader(50, batch_size=8), "right": loader(30, 60, batch_size=8)}
    return Case(Contrastive(), train, [evaluation(), evaluation(10, 130)], max_epochs=2)


def measured(pl):
    class Measured(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 10)
            metrics = MetricCollection({"acc": MulticlassAccuracy(10), "f1": MulticlassF1Score(10)})
            self.train_metrics, self.val_metrics = metrics.clone("train_"), metrics.clone("val_")
            self.mean_loss = MeanMetric()

        def training_step(self, batch, batch_idx):
            x, y = batch
            out = self.net(x)
            loss = F.cross_entropy(out, y)
            self.train_metrics(out, y)
            self.log_dict(self.train_metrics, on_step=True, on_epoch=True)
            self.mean_loss.update(loss, len(x))
            self.log("mean_loss", self.mean_loss, on_step=False, on_epoch=True)
            return loss

        def validation_step(self, batch, batch_idx):
            x, y = batch
            self.val_metrics.update(self.net(x), y)

        def on_validation_epoch_end(self):
            self.log_dict(self.val_metrics.compute(), prog_bar=True)
            self.val_metrics.reset()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    return Case(Measured(), loader(), evaluation(), max_epochs=3)


def accumulating(pl):
    class Accumulating(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

        def training_step(self, batch, batch_idx):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, on_epoch=True)
            return loss

        def on_before_optimizer_step(self, optimizer):
            norm = torch.stack([each.grad.norm() for each in self.parameters()]).norm()
            self.log("grad_norm", norm)

        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)

        def configure_optimizers(self):
            opt = torch.optim.SGD(self.parameters(), lr=0.1)
            steps = self.trainer.estimated_stepping_batches
            scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.5, total_steps=steps)
            return [{"optimizer": opt, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}]

    return Case(
        Accumulating(),
        loader(70, batch_size=8),
        max_epochs=2,
        accumulate_grad_batches=4,
        gradient_clip_val=0.05,
        gradient_clip_algorithm="value",
    )


def plateau(pl):
    class Plateau(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 10)

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", F.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

        def configure_optimizers(self):
            opt = torch.optim.SGD(self.parameters(), lr=2.0)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.1, patience=0)
            return {"optimizer": opt, "lr_scheduler": scheduler, "monitor": "val_loss"}

    stop = pl.callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.01)
    return Case(Plateau(), loader(), evaluation(), callbacks=[stop], max_epochs=12)


def with_datamodule(pl):
    class Digits(pl.LightningDataModule):
        def __init__(self, batch_size=16):
            super().__init__()
            self.save_hyperparameters()

        def setup(self, stage):
            self.train, self.held = digits(), digits(25, 100)

        def train_dataloader(self):
            return DataLoader(self.train, batch_size=self.hparams.batch_size, shuffle=True)

        def val_dataloader(self):
            return [DataLoader(self.held, batch_size=8), DataLoader(self.held, batch_size=25)]

        def predict_dataloader(self):
            return DataLoader(self.held, batch_size=10)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            x, y = batch
            return (x + 0.1 * torch.randn_like(x) if self.trainer.training else x), y

    class Net(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 10)

        def training_step(self, batch):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.log("val_loss", loss)
            self.log("common", loss, add_dataloader_idx=False) if dataloader_idx == 1 else None

        def forward(self, batch):
            return self.net(batch[0])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    return Case(
        Net(), datamodule=Digits(batch_size=20), calls=("fit", "validate", "predict"), max_epochs=2,
        reload_dataloaders_every_n_epochs=1,
    )  # fmt: skip


def closures(pl):
    class Closures(pl.LightningModule):
        """Manual optimisation with a closure, accumulation by hand and LBFGS."""

        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.left, self.right = nn.Linear(64, 10), nn.Linear(64, 10)

        def training_step(self, batch, batch_idx):
            slow, fast = self.optimizers()
            x, y = batch

            def closure():
                loss = F.cross_entropy(self.left(x), y)
                slow.zero_grad()
                self.manual_backward(loss)
                return loss

            with slow.toggle_model():
                slow.step(closure=closure)
            loss = F.cross_entropy(self.right(x), y) / 2
            self.manual_backward(loss)
            if (batch_idx + 1) % 2 == 0:
                fast.step()
                fast.zero_grad()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return [
                torch.optim.LBFGS(self.left.parameters(), lr=0.1, max_iter=3),
                torch.optim.SGD(self.right.parameters(), lr=0.1),
            ]

    return Case(Closures(), loader(), max_epochs=2)


CASES = {
    function.__name__: function
    for function in (
        classifier, autoencoder, gan, transformer, ema, dqn, contrastive, measured, accumulating, plateau,
        with_datamodule, closures,
    )
}  # fmt: skip


def light():
    """The light bases under the names that Lightning's package gives its own."""
    from deepepochs import compat

    found = types.SimpleNamespace(**{name: getattr(compat, name) for name in compat.__all__})
    found.callbacks = found
    found.Logger = compat.Logger
    return found


def lightning():
    """Lightning's package, with its Logger at hand."""
    import lightning.pytorch as pl
    from lightning.pytorch.loggers.logger import Logger

    names = ("LightningModule", "LightningDataModule", "Callback", "callbacks", "Trainer")
    return types.SimpleNamespace(Logger=Logger, **{name: getattr(pl, name) for name in names})
