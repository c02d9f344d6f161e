"""Loaders (L1): sharing among ranks keeps what the user's loader is; limits are Lightning's."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

from deepepochs import compat
from deepepochs.compat import MisconfigurationException
from deepepochs.compat.data.loaders import IndexSampler, limited, with_sampler

from ..parity import QUIET, light
from ..parity_modules import classifier, evaluation, loader


class Own(DataLoader):
    """A subclass whose constructor takes something else."""

    def __init__(self, count):
        super().__init__(range(count), batch_size=2, shuffle=True, drop_last=True)
        self.note = "kept"


class EvenFirst(BatchSampler):
    def __iter__(self):
        yield from sorted(super().__iter__(), key=lambda batch: batch[0] % 2)


def test_another_order_keeps_the_class_and_all_options():
    own = Own(7)
    found = with_sampler(own, SequentialSampler(range(7)))
    assert type(found) is Own
    assert found.note == "kept"
    assert [each.tolist() for each in found] == [[0, 1], [2, 3], [4, 5]]
    assert isinstance(own.sampler, RandomSampler), "the user's loader stays as it is"


def test_batch_samplers_are_made_anew_where_they_can_be():
    own = DataLoader(range(6), batch_sampler=EvenFirst(RandomSampler(range(6)), 1, False))
    found = with_sampler(own, SequentialSampler(range(6)))
    assert [int(each) for each in found] == [0, 2, 4, 1, 3, 5]

    class Fixed:
        def __iter__(self):
            return iter([[0, 1]])

    with pytest.raises(TypeError, match="Fixed cannot be shared.*use_distributed_sampler=False"):
        with_sampler(DataLoader(range(6), batch_sampler=Fixed()), SequentialSampler(range(6)))


@pytest.mark.parametrize("repeats", [True, False])
def test_ranks_share_the_order_of_any_sampler(repeats):
    found = []
    for rank in range(2):
        torch.manual_seed(0)
        sampler = WeightedRandomSampler([1.0] * 7, 7, replacement=False)
        options = {"num_replicas": 2, "rank": rank, "shuffle": False}
        shard = IndexSampler(sampler, repeats, **options)
        found.append(list(shard))
        assert len(shard) == len(found[-1])
    torch.manual_seed(0)
    order = list(WeightedRandomSampler([1.0] * 7, 7, replacement=False))
    assert found[0] == order[::2]
    assert found[1] == (order[1::2] + order[:1] if repeats else order[1::2])


@pytest.mark.parametrize(
    ("batches", "limit", "expected"),
    [(10, 1.0, 10), (10, 0.25, 2), (10, 3, 3), (10, 30, 10), (10, 0, 0), (float("inf"), 5, 5), (0, 1.0, 0)],
)
def test_limits(batches, limit, expected):
    assert limited("train", batches, limit) == expected


def test_limits_that_make_no_sense_are_errors():
    with pytest.raises(MisconfigurationException, match="less than one; give at least 0.1"):
        limited("val", 10, 0.01)
    with pytest.raises(MisconfigurationException, match="unknown length, got 0.5"):
        limited("train", float("inf"), 0.5)


@pytest.mark.filterwarnings("ignore")
def test_predictions_with_the_indices_of_their_samples():
    case, seen = classifier(light()), []

    class BasePredictionWriter(compat.Callback):
        def on_predict_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0):
            seen.append(trainer.predict_loop.current_batch_indices)

    BasePredictionWriter.__module__ = "deepepochs.compat.callbacks.defaults"
    trainer = compat.LightningTrainer(**QUIET, logger=False, callbacks=[BasePredictionWriter()])
    trainer.predict(case.module, evaluation(20))
    assert seen == [list(range(8)), list(range(8, 16)), list(range(16, 20))]
    assert trainer.predict(case.module, evaluation(20), return_predictions=False) is None


@pytest.mark.filterwarnings("ignore")
def test_overfitting_reads_the_same_batches_in_each_epoch():
    case, seen = classifier(light()), []
    case.module.on_train_batch_start = lambda batch, batch_idx: seen.append(batch[1].tolist())
    compat.LightningTrainer(**QUIET, logger=False, max_epochs=2, overfit_batches=2).fit(case.module, loader())
    assert seen[:2] == seen[2:] == [each[1].tolist() for each in loader(32, shuffle=False)]
