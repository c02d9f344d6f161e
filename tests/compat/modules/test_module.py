"""The light LightningModule (L1): the methods of Lightning's, alone and in a trainer."""

import copy
import pickle

import pytest
import torch
from torch import nn

from deepepochs.compat import LightningDataModule, LightningModule, LightningTrainer, MisconfigurationException

from ..parity import QUIET, light, lightning
from ..parity_modules import classifier, digits, evaluation, loader

pytestmark = pytest.mark.filterwarnings("ignore")


class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, batch):
        return self.layer(batch[0])

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def quiet(**options):
    return LightningTrainer(**{**QUIET, "logger": False, **options})


def test_all_names_of_lightnings_are_there():
    pl = pytest.importorskip("lightning.pytorch", reason="compares with Lightning")
    left_out = {
        "fabric", "from_compiled", "to_compiled", "to_onnx", "to_torchscript", "to_tensorrt", "device_mesh", "half",
        "configure_sharded_model", "CHECKPOINT_HYPER_PARAMS_TYPE", "remove_ignored_hparams", "T_destination",
        "dump_patches",
    }  # fmt: skip
    for ours, theirs in ((LightningModule, pl.LightningModule), (LightningDataModule, pl.LightningDataModule)):
        public = {name for name in dir(theirs) if not name.startswith("_")} - left_out
        assert public <= set(dir(ours)), public - set(dir(ours))
    hooks = {name for name in dir(pl.Callback) if name.startswith("on_")}
    assert hooks <= set(dir(light().Callback))


def test_without_a_trainer():
    net = Net()
    assert (net.current_epoch, net.global_step, net.global_rank, net.logger, net.loggers) == (0, 0, 0, None, [])
    assert net.device == torch.device("cpu")
    assert net.dtype is torch.float32
    with pytest.raises(RuntimeError, match="Net has no trainer"):
        net.optimizers()
    with pytest.raises(NotImplementedError, match="Net defines no `val_dataloader`"):
        net.val_dataloader()
    assert net.predict_step((torch.zeros(2, 64),)).shape == (2, 10)
    net.freeze()
    assert not any(each.requires_grad for each in net.parameters())
    assert not net.training
    net.unfreeze()
    assert all(each.requires_grad for each in net.parameters())
    assert net.training


def test_copies_have_no_trainer():
    net = Net()
    quiet(max_epochs=1).fit(net, loader(32))
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin._trainer is None
        assert torch.equal(twin.layer.weight, net.layer.weight)
    assert net.trainer.global_step == 2


def test_children_get_the_trainer_too():
    net = Net()
    net.child = Net()
    trainer = quiet(max_epochs=1)
    trainer.fit(net, loader(16))
    assert net.child.trainer is trainer


def test_manual_backward_is_for_manual_optimisation():
    class Wrong(Net):
        def training_step(self, batch, batch_idx):
            self.manual_backward(super().training_step(batch, batch_idx))

    with pytest.raises(MisconfigurationException, match="automatic_optimization = False"):
        quiet(max_epochs=1).fit(Wrong(), loader(16))


@pytest.mark.parametrize(
    ("call", "match"),
    [((0.2, None), "contradicts.*0.5"), ((None, "value"), "contradicts.*'norm'"), ((0.5, "sign"), "contradicts")],
)
def test_clipping_that_contradicts_the_trainer_is_an_error(call, match):
    class Clipping(Net):
        def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
            self.clip_gradients(optimizer, *call)

    trainer = quiet(max_epochs=1, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
    with pytest.raises(MisconfigurationException, match=match):
        trainer.fit(Clipping(), loader(16))


def test_all_gather_and_print_alone(capsys):
    class Gathering(Net):
        def on_train_start(self):
            self.print("gathered", self.all_gather({"a": 2, "b": torch.ones(3)}))

    quiet(max_epochs=1).fit(Gathering(), loader(16))
    assert "gathered {'a': tensor(2), 'b': tensor([1., 1., 1.])}" in capsys.readouterr().out


def test_a_data_module_of_data_sets():
    data = LightningDataModule.from_datasets(digits(), [digits(8), digits(12)], batch_size=4)
    assert len(data.train_dataloader()) == 15
    assert [len(each) for each in data.val_dataloader()] == [2, 3]
    trainer = quiet(max_epochs=1)
    trainer.fit(Net(), datamodule=data)
    assert trainer.global_step == 15
    assert trainer.datamodule is data


def test_a_data_module_counts_more_than_the_modules_loaders():
    class Own(Net):
        def train_dataloader(self):
            return loader(16)

        def val_dataloader(self):
            return evaluation()

        def validation_step(self, batch, batch_idx):
            raise AssertionError("the data module has no validation")

    data = LightningDataModule.from_datasets(digits(32), batch_size=16)
    trainer = quiet(max_epochs=1)
    trainer.fit(Own(), datamodule=data)
    assert trainer.global_step == 2


def test_hyper_parameters_of_module_and_data_module_must_agree():
    class Data(LightningDataModule):
        def __init__(self, hidden=1):
            super().__init__()
            self.save_hyperparameters()

    module = classifier(light()).module
    with pytest.raises(RuntimeError, match=r"different hyper-parameters.*\['hidden'\]"):
        quiet(max_epochs=1, logger=True).fit(module, datamodule=Data())


def test_lightnings_module_reads_the_same_from_the_trainer():
    pytest.importorskip("lightning", reason="uses Lightning's class")
    found = {}
    for bases in (lightning(), light()):
        case = classifier(bases)
        module = case.module

        def read(module=module):
            trainer = module.trainer
            names = """current_epoch global_step max_epochs max_steps min_epochs num_training_batches num_val_batches
            world_size global_rank local_rank is_global_zero training validating testing sanity_checking is_last_batch
            estimated_stepping_batches should_stop default_root_dir log_dir precision accumulate_grad_batches
            num_devices device_ids node_rank num_nodes log_every_n_steps check_val_every_n_epoch val_check_interval
            limit_train_batches fast_dev_run barebones interrupted""".split()  # noqa: SIM905
            return {name: getattr(trainer, name) for name in names}

        module.on_train_batch_end = lambda *args, read=read, bases=bases: found.setdefault(id(bases), []).append(read())  # noqa: B023
        quiet(max_epochs=2).fit(module, case.train, case.val)
    first, second = found.values()
    assert first == second
    assert [each["is_last_batch"] for each in first] == [False, False, False, True] * 2
    assert {each["estimated_stepping_batches"] for each in first} == {8}
