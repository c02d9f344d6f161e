"""Output that cannot be written never ends training, and somebody is told once (T16, T17)."""

import errno
import io
import os
import sys
import warnings

import pytest
import torch
from torch.nn import functional as F

from deepepochs import rename
from deepepochs.output import Output, tell

from ..engine.references import net, regression
from .helpers import loader, quiet, sgd

X, Y = regression(12)
DL = loader(X, Y, 4)


class Terminal(io.StringIO):
    """A terminal that keeps what it is given."""

    def isatty(self):
        return True


class Failing(Terminal):
    """A terminal whose every write fails."""

    error = OSError(errno.ENOSPC, "No space left on device")

    def write(self, text):
        raise self.error


class Broken(Failing):
    error = BrokenPipeError(errno.EPIPE, "Broken pipe")


class Strange(Failing):
    error = RuntimeError("the notebook has gone")


class Flushless(Terminal):
    def flush(self):
        raise OSError(errno.ENOSPC, "No space left on device")


class Bare:
    """The least that `print` can write to."""

    def __init__(self):
        self.text = ""

    def write(self, text):
        self.text += text


def closed():
    stream = Terminal()
    stream.close()
    return stream


def ascii_terminal():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    stream.isatty = lambda: True
    return stream


def train(**options):
    """Trains and tests with everything that is printed; the losses."""
    torch.manual_seed(0)
    model = net()

    @rename("fehler_äß_[/x]")
    def error(preds, targets):
        return (preds - targets).abs().mean()

    options = {"epochs": 2, "show_info": True, "log_batch": True, "running_id": "[bold]", **options}
    with quiet(model, F.mse_loss, sgd(model), metrics=[error], **options) as trainer:
        progress = trainer.fit(DL, DL)
        trainer.print("done", 1, sep="-")
        return progress["train"]["loss"], trainer.test(DL)["loss"]


@pytest.fixture(scope="module")
def expected():
    return train()


@pytest.mark.parametrize("bar", [False, True], ids=["line", "bar"])
@pytest.mark.parametrize("kind", [Failing, Broken, Strange, Flushless])
def test_a_terminal_that_fails_changes_nothing_but_the_output(kind, bar, expected, monkeypatch):
    monkeypatch.setattr(sys, "stdout", kind())
    with pytest.warns(UserWarning, match="training goes on, its output cannot be written") as told:
        assert train(log_tqdm=bar) == expected
    assert len(told) <= 1 + bar
    monkeypatch.setattr(sys, "stdout", kind())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning cannot end training either
        assert train(log_tqdm=bar) == expected


@pytest.mark.parametrize("bar", [False, True], ids=["line", "bar"])
@pytest.mark.parametrize("make", [closed, Bare, ascii_terminal, lambda: None], ids=["closed", "bare", "ascii", "none"])
def test_a_stream_that_is_less_than_one(make, bar, expected, monkeypatch):
    stream = make()
    monkeypatch.setattr(sys, "stdout", stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert train(log_tqdm=bar) == expected
    if make is Bare:
        assert "done-1\n" in stream.text
        assert "fehler_äß_[/x]" in stream.text
    if make is ascii_terminal:
        stream.flush()
        assert b"fehler_\\xe4\\xdf_[/x]" in stream.buffer.getvalue()
        assert b"done-1\n" in stream.buffer.getvalue()


def test_a_stream_that_comes_back_is_written_to(monkeypatch):
    """The stream is looked up at each write."""
    output = Output()
    monkeypatch.setattr(sys, "stdout", Failing())
    with pytest.warns(UserWarning, match="OSError.*No space left"):
        print("lost", file=output)
    whole = io.StringIO()
    monkeypatch.setattr(sys, "stdout", whole)
    print("kept", file=output)
    assert whole.getvalue() == "kept\n"


def test_a_closed_pipe_does_not_end_training(expected):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1, closefd=False) as pipe, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        with pytest.warns(UserWarning, match="BrokenPipeError"):
            assert train() == expected
        patch.undo()
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, writing)  # what the closing brings out must go somewhere
        os.close(devnull)
    os.close(writing)


def test_print_writes_where_it_is_told():
    with quiet(net(), F.mse_loss) as trainer:
        own = io.StringIO()
        trainer.print("a", "b", file=own, end="!")
        assert own.getvalue() == "a b!"
        with pytest.warns(UserWarning, match="Broken pipe"):
            trainer.print("a", file=Broken())


def test_a_progress_bar_shows_a_name_as_it_is(monkeypatch):
    """No markup of rich: '[/x]' would be an error of it."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    train(log_tqdm=True)
    assert "[/x]" in stream.getvalue()
    assert "[bold]" in stream.getvalue()


def test_telling_is_no_error_where_warnings_cannot_be_shown(monkeypatch):
    def shows(*arguments, **others):
        raise ValueError("I/O operation on closed file")

    with warnings.catch_warnings():
        warnings.resetwarnings()
        monkeypatch.setattr(warnings, "showwarning", shows)
        tell("nobody hears this")
