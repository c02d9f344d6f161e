"""Ranks of launch() (E16): the rank that failed is named, not one that lost the connection to it."""

import pytest

from deepepochs.engine.processes import worker

ERRORS = {
    "[.../pair.cc:554] Connection closed by peer [127.0.0.1]:12345": True,
    "Connection reset by peer": True,
    "Rank 1 successfully reached monitoredBarrier, but received errors: Connection refused": True,
    "NCCL error: remote process exited or there was a network error": True,
    "the loss must be a scalar tensor": False,
}


@pytest.mark.parametrize("text", ERRORS)
def test_a_lost_connection_is_a_consequence(text):
    assert worker.lost_others(RuntimeError(text)) is ERRORS[text]
    assert worker.lost_others(ValueError(text)) is False


def test_causes_sort_before_consequences_and_earlier_before_later(tmp_path):
    worker._note_failure(tmp_path, 1, "failed: lost", is_consequence=True)
    worker._note_failure(tmp_path, 0, "failed: first")
    worker._note_failure(tmp_path, 2, "failed: second")
    texts = [note.read_text() for note in sorted(tmp_path.glob("*.failure"))]
    assert texts == ["rank 0 failed: first", "rank 2 failed: second", "rank 1 failed: lost"]
