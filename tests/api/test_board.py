"""run_tensorboard: a real process that answers on this machine alone."""

import json
import socket
import urllib.request

import pytest
from torch.nn import functional as F

from deepepochs import LogCallback, run_tensorboard

from ..engine.references import net, regression
from .helpers import loader, quiet


def test_its_page_and_its_scalars_can_be_fetched():
    x, y = regression(8)
    with quiet(net(), F.mse_loss, epochs=2, running_id="r", callbacks=[LogCallback("logs")]) as trainer:
        progress = trainer.fit(loader(x, y, 4))
    board = run_tensorboard("logs")
    try:
        assert board.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(board.url, timeout=10) as page:
            assert b"TensorBoard" in page.read()
        address = f"{board.url}data/plugin/scalars/scalars?run=r&tag=loss%2Fepoch%2Ftrain"
        with urllib.request.urlopen(address, timeout=10) as answer:
            values = [value for _, _, value in json.load(answer)]
        assert values == pytest.approx(progress["train"]["loss"], rel=1e-6)
    finally:
        board.terminate()
        board.wait(timeout=10)
    assert board.returncode is not None


def test_a_port_that_is_taken_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=f"cannot listen on port {port}"):
            run_tensorboard("logs", port=port)
    with pytest.raises(RuntimeError, match="1048576"):
        run_tensorboard("logs", port=1 << 20)


def test_without_an_answer_it_is_ended():
    with pytest.raises(RuntimeError, match="did not answer"):
        run_tensorboard("logs", timeout_s=0.2)
