"""Progress: how often batches, epochs and updates began and ended, in the form that Lightning's checkpoints hold."""

from __future__ import annotations

from typing import Any, Mapping

KINDS = ("ready", "started", "processed", "completed")
BEGINNING, WITHIN, ENDING, DONE = (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)  # what `Counts.place` may say


class Counts:
    """How often something reached each of its stages."""

    __slots__ = KINDS

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Back to nothing."""
        self.ready = self.started = self.processed = self.completed = 0

    def rewind(self) -> None:
        """Forgets what began and did not end."""
        self.ready = self.started = self.processed = self.completed

    def place(self) -> tuple[int, int, int]:
        """Where the newest one stands: by how much each stage is behind the one before it."""
        return self.ready - self.started, self.started - self.processed, self.processed - self.completed

    def add(self, number: int) -> None:
        """Counts things that have gone through all stages."""
        self.ready += number
        self.started += number
        self.processed += number
        self.completed += number


class Progress:
    """The counts of this pass and of all passes together.

    Args:
        kinds: the stages that checkpoints tell of.
    """

    def __init__(self, kinds: tuple[str, ...] = KINDS) -> None:
        self.kinds = kinds
        self.total, self.current = Counts(), Counts()

    def ready(self) -> None:
        """Something is about to begin."""
        self.total.ready += 1
        self.current.ready += 1

    def started(self) -> None:
        """It has begun: the hooks before it are done."""
        self.total.started += 1
        self.current.started += 1

    def processed(self) -> None:
        """Its work is done, the hooks after it are not."""
        self.total.processed += 1
        self.current.processed += 1

    def completed(self) -> None:
        """All is done."""
        self.total.completed += 1
        self.current.completed += 1

    def add(self, number: int) -> None:
        """Counts whole ones."""
        self.total.add(number)
        self.current.add(number)

    def state_dict(self) -> dict[str, Any]:
        """The counts by stage."""
        return {
            part: {kind: getattr(getattr(self, part), kind) for kind in self.kinds} for part in ("total", "current")
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        for part in ("total", "current"):
            for kind, number in state[part].items():
                setattr(getattr(self, part), kind, number)


class BatchProgress(Progress):
    """The progress of batches; it knows whether the present one is the pass's last."""

    def __init__(self) -> None:
        super().__init__()
        self.is_last_batch = False

    def begin_pass(self) -> None:
        """A new pass begins."""
        self.current.reset()
        self.is_last_batch = False

    def state_dict(self) -> dict[str, Any]:
        """The counts by stage, and whether the pass has ended."""
        return {**super().state_dict(), "is_last_batch": self.is_last_batch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        super().load_state_dict(state)
        self.is_last_batch = state["is_last_batch"]


class PredictionProgress(BatchProgress):
    """The progress of predictions, which checkpoints hold without the last batch."""

    def state_dict(self) -> dict[str, Any]:
        """The counts by stage."""
        return Progress.state_dict(self)
