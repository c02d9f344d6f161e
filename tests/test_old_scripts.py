"""Scripts in the manner of version 0.6 (names, arguments, positions, habits) run as they are."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import deepepochs as de
from deepepochs import metrics as dm

X = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()


def loaders():
    return [
        DataLoader(TensorDataset(X[part], Y[part]), batch_size=8)
        for part in (slice(0, 40), slice(40, 50), slice(50, 60))
    ]


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))


def acc(preds, targets):
    return dm.accuracy(preds=preds, targets=targets)


@de.rename("")
def several(preds, targets):
    matrix = dm.confusion_matrix(preds, targets, 3)
    return {"p": dm.precision(conf_mat=matrix, average="macro"), "r": dm.recall(conf_mat=matrix, average="macro")}


def test_positions_metrics_and_callbacks_without_close():
    train_dl, val_dl, test_dl = loaders()
    model = net()
    opt = torch.optim.Adam(model.parameters(), lr=2e-4)
    checker = de.CheckCallback("loss", on_stage="val", mode="min", patience=2, save_best=True, ckpt_dir="./logs")
    logger = de.LogCallback()
    trainer = de.Trainer(
        model, F.cross_entropy, opt, 2, "cpu", [checker, logger], [acc], "tensor", False, 12, {"lr": 2e-4}, True, True,
        False, False,
    )  # fmt: skip
    progress = trainer.fit(train_dl, val_dl, [several], 1, True, lambda x, y: x.shape[0], [several], [several])
    assert set(progress["train"]) == set(progress["val"]) == {"loss", "acc", "p", "r"}
    results = trainer.test(test_dl, [several], True, 8)
    assert set(results) == {"loss", "acc", "p", "r"}
    assert (trainer.main_process, trainer.running_id, trainer.init_epoch, trainer.max_epochs) == (True, "12", 2, 2)
    trainer.close()


def test_optimizers_with_schedulers_by_position():
    model = net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = de.Optimizer(opt, torch.optim.lr_scheduler.ReduceLROnPlateau(opt), "epoch", True)
    several_opts = de.Optimizers([wrapped, de.Optimizer(torch.optim.Adam(model.parameters()))])
    trainer = de.Trainer(model, F.cross_entropy, several_opts, epochs=1)
    trainer.fit(*loaders()[:2])
    assert len(trainer.opt.get_current_lr()) == 2


def test_steps_of_a_trainer_with_patches():
    class Trainer(de.TrainerBase):
        def train_step(self, batch_x, batch_y, **step_args):
            model_out = self.model(batch_x)
            self.loss(model_out, batch_y)
            return {"m_": de.TensorPatch(several).load(model_out, batch_y)}

        def evaluate_step(self, batch_x, batch_y, **step_args):
            model_out = self.model(batch_x)
            loss = self.loss(model_out, batch_y, do_metric=False)
            return {
                "loss": de.ValuePatch(len(batch_x)).load(loss.detach()),
                "acc": de.MeanPatch(acc, batch_size=len(batch_x)).load(model_out, batch_y),
                "c": de.ConfusionPatch(lambda matrix: dm.f1(conf_mat=matrix)).load(model_out, batch_y),
                "all": de.ConfusionMetrics(["accuracy", "f1"]).load(model_out, batch_y),
            }

    train_dl, val_dl, test_dl = loaders()
    trainer = Trainer(net(), F.cross_entropy, epochs=1, device="cpu")
    progress = trainer.fit(train_dl, val_dl)
    assert set(progress["train"]) == {"loss", "m_p", "m_r"}
    assert set(trainer.test(test_dl)) == {"loss", "acc", "c", "C.acc", "C.f1"}


def test_tasks_with_steps_and_step_arguments():
    class MyTask(de.EpochTask):
        def step(self, batch_x, batch_y, scale=1, **step_args):
            model_out = self.model(batch_x * scale)
            self.loss(model_out, batch_y)

    train_dl, val_dl, test_dl = loaders()
    trainer = de.Trainer(net(), F.cross_entropy, epochs=1, device="cpu", metrics=acc)
    train_task, val_task = MyTask(train_dl), MyTask(val_dl, metrics=[several], do_loss=False, scale=2)
    trainer.fit(train_tasks=train_task, val_tasks=val_task)
    assert train_task.batchs == len(train_dl)
    assert "acc" in trainer.test(tasks=MyTask(test_dl))


def test_accumulation_by_hand():
    class Trainer(de.TrainerBase):
        def train_step(self, batch_x, batch_y, **step_args):
            outs, total = [], 0.0
            for x, y in zip(de.batches(batch_x, 4), de.batches(batch_y, 4)):
                out = self.model(x.to(self.device))
                loss = self.loss(
                    out, y.to(self.device), loss_adjust=len(x) / len(batch_x), do_optimize=False, do_metric=False
                )
                total += loss * len(x)
                outs.append(out)
            self.optimize()
            self.do_metric(total / len(batch_x), de.concat(outs), batch_y)

    train_dl, val_dl, _ = loaders()
    trainer = Trainer(net(), F.cross_entropy, epochs=2, metrics=[acc], auto_traindata_to_device=False, device="cpu")
    assert len(trainer.fit(train_dl, val_dl)["train"]["acc"]) == 2


def test_a_callback_with_all_arguments():
    class MyCallback(de.Callback):
        def __init__(self):
            super().__init__(priority=2)
            self.seen = []

        def on_before_epoch(self, trainer, train_tasks, val_tasks, epoch_idx):
            self.seen.append((len(train_tasks), len(val_tasks), epoch_idx))

        def on_after_train_batch(self, trainer, metrics, batch_idx):
            self.seen.append(float(metrics["loss"].item()) > 0)

        def on_after_epoch(self, trainer, train_tasks, val_tasks, train_metrics, val_metrics, epoch_idx):
            trainer.print(train_metrics["loss"], val_metrics["loss"])
            raise de.StopLoopException("stop")

    callback = MyCallback()
    trainer = de.Trainer(net(), F.cross_entropy, epochs=5, device="cpu", callbacks=callback)
    trainer.fit(*loaders()[:2])
    assert callback.seen == [(1, 1, 0), *[True] * 5]


def test_an_accelerator_is_refused_with_what_to_write_instead():
    class Accelerator:
        pass

    with pytest.raises(TypeError, match=r"launch\(\) or torchrun.*precision"):
        de.Trainer(net(), F.cross_entropy, device=Accelerator())
