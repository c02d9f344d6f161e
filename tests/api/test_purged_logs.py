"""A fit that goes on from a file takes what lies behind it out of the run's log (C7, C8), as an uncut run shows."""

import json
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.nn import functional as F

from deepepochs import AnalyzeCallback, Callback, CheckCallback, InterpreteCallback, LogCallback
from deepepochs.events import later_dropped, records

from ..engine.references import net
from .helpers import classes, loader, quiet, sgd

X, Y = classes(12)
DL = loader(X, Y, 4)
LOG = Path("logs/r")


class Dies(Callback):
    """Ends training at an update."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_before_train_batch(self, trainer, **others):
        if trainer.global_step == self.step:
            raise ZeroDivisionError


class Evaluates(Callback):
    """Tests after each epoch, and writes a curve of its own."""

    def on_after_val_epochs(self, trainer, epoch_idx, **others):
        trainer.test(DL)
        trainer.writer.board.add_scalar("own/curve", epoch_idx, 100 + epoch_idx)


def score(preds, targets):
    return (preds.argmax(1) == targets).float().mean()


def make(monitor, *more, epochs=5, folder="logs", **options):
    torch.manual_seed(0)
    model = net(outputs=3)
    callbacks = [
        monitor,
        LogCallback(folder),
        LogCallback(folder, json_lines=True),
        AnalyzeCallback(log_dir=folder),
        InterpreteCallback(stages="val", log_dir=folder),
        Evaluates(),
        *more,
    ]
    options = {"epochs": epochs, "running_id": "r", "metrics": [score], "callbacks": callbacks, **options}
    return quiet(model, F.cross_entropy, sgd(model), **options)


def only_at(step, folder="c"):
    """A monitor that saves at one update, or (None) after the first two epochs."""
    return CheckCallback("loss", ckpt_dir=folder, **({} if step is None else {"every_n_steps": step}))


def curves(folder="logs"):
    """{tag: steps} of the board's log, and {tag: [(step, value)]} of the lines."""
    log = EventAccumulator(f"{folder}/r", size_guidance={"scalars": 0, "histograms": 0, "images": 0})
    log.Reload()
    found = {tag: [(each.step, each.value) for each in log.Scalars(tag)] for tag in log.Tags()["scalars"]}
    found.update({tag: [each.step for each in log.Histograms(tag)] for tag in log.Tags()["histograms"]})
    found.update({tag: [each.step for each in log.Images(tag)] for tag in log.Tags()["images"]})
    lines = {}
    for line in Path(folder, "r", "scalars.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for tag in record.keys() - {"step"}:
            lines.setdefault(tag, []).append((record["step"], record[tag]))
    return found, lines


@pytest.mark.parametrize("every", [None, 4], ids=["epoch", "step"])
def test_the_log_of_a_run_that_died_twice_is_that_of_one_that_did_not(every, tmp_path):
    with make(only_at(every), folder="whole") as trainer:
        trainer.fit(DL, DL)
    for step, resume in ((8, False), (11, "r")):
        Path("c2").mkdir(exist_ok=True)
        with make(only_at(every, "c2"), Dies(step), resume=resume) as trainer, pytest.raises(ZeroDivisionError):
            trainer.fit(DL, DL)
    with make(only_at(every, "c2"), resume="r") as trainer:
        trainer.fit(DL, DL)
    whole, lines = curves("whole")
    found, found_lines = curves()
    own = found.pop("own/curve")
    assert set(own) == set(whole.pop("own/curve"))  # what others write stays, whatever its steps count
    assert found == whole
    assert found_lines == lines


def test_a_file_of_an_earlier_epoch_takes_everything_behind_it(tmp_path):
    """load_checkpoint() and fit() are going on too; the fit after that takes nothing away."""
    with make(CheckCallback("score", on_stage="train", ckpt_dir="c"), epochs=1) as trainer:
        trainer.fit(DL, DL)
        copy = Path("first.ckpt")
        copy.write_bytes(next(Path("c").rglob("*.ckpt")).read_bytes())
        trainer.fit(DL, DL, epochs=3)
        trainer.load_checkpoint(copy)
        trainer.fit(DL, DL, epochs=2)
        trainer.fit(DL, DL, epochs=1)
        last = trainer.init_epoch
    found, lines = curves()
    assert last == 7
    assert [step for step, _ in found["loss/epoch/train"]] == list(range(1, last + 1))
    assert [step for step, _ in lines["loss/epoch/val"]] == list(range(1, last + 1))
    assert [step for step, _ in lines["loss/batch/train"]] == list(range(1, 3 * last + 1))


def test_a_fit_that_did_not_go_on_from_a_file_leaves_the_log_alone():
    for _ in range(2):
        with make(only_at(None), epochs=2) as trainer:
            trainer.fit(DL, DL)
    found, _ = curves()
    assert sorted(step for step, _ in found["loss/epoch/train"]) == [1, 1, 2, 2]


def test_only_the_main_process_changes_the_log():
    with make(only_at(None), epochs=2) as trainer:
        trainer.fit(DL, DL)
    before = {path.name: path.read_bytes() for path in LOG.iterdir()}
    with make(only_at(None), epochs=2) as trainer:
        trainer.writer.open("logs", lambda tag, epochs: 0)
        trainer.writer._is_main = False
        trainer.writer.purge(0)
    assert {path.name: path.read_bytes() for path in LOG.iterdir()} == before


def test_what_is_damaged_stays_and_what_is_kept_is_not_changed_by_a_byte():
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    def event(step, *tags):
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=1.5) for tag in tags])
        return records([Event(step=step, wall_time=2.0, summary=summary).SerializeToString()])

    def is_later(tag, step):
        return tag == "a" and step > 3

    head = records([Event(file_version="brain.Event:2").SerializeToString()])
    kept = [head, event(3, "a", "b"), event(4, "b")]
    half = event(9, "a")[:-5]
    assert later_dropped(b"".join([*kept, half]), is_later) is None
    assert later_dropped(b"", is_later) is None
    content = b"".join([kept[0], event(4, "a"), kept[1], event(5, "a", "b"), kept[2], half])
    assert later_dropped(content, is_later) == b"".join([kept[0], kept[1], event(5, "b"), kept[2], half])


def test_lines_of_others_stay_and_a_half_one_goes():
    with make(only_at(None), epochs=2) as trainer:
        trainer.writer.open("logs", lambda tag, epochs: epochs if tag == "a" else None)
        LOG.mkdir(parents=True)
        path = LOG / "scalars.jsonl"
        lines = [
            '{"step": 1, "a": 1}',
            "a note",
            "[1]",
            '{"a": 2}',
            '{"step": 2, "a": NaN, "b": 1}',
            '{"step": 3, "a": 1}',
        ]
        path.write_text("\n".join([*lines, '{"step": 2, "hyper_params": {}, "a": 1}', '{"step": 9, "b"']))
        trainer.writer.purge(1)
    assert path.read_text().splitlines() == [*lines[:4], '{"step": 2, "b": 1}']
