"""History: the metrics of finished epochs, a list for each name, and which epochs these were."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping


class Progress(Dict[str, Dict[str, List[Any]]]):
    """{'train': {name: [a value an epoch]}, 'val': {...}}, a dictionary that knows its epochs.

    Attributes:
        epochs: for each stage the numbers, from 1, of the epochs that the lists hold.
    """

    def __init__(
        self, stages: Mapping[str, dict[str, list[Any]]] | None = None, epochs: Mapping[str, list[int]] | None = None
    ) -> None:
        super().__init__({"train": {}, "val": {}} if stages is None else stages)
        self.epochs: dict[str, list[int]] = {stage: list((epochs or {}).get(stage, [])) for stage in self}


class History:
    """Lists of epoch values, of equal length for all names of a stage.

    Args:
        stages: an existing history to go on with; None starts one.
    """

    def __init__(self, stages: dict[str, dict[str, list[Any]]] | None = None) -> None:
        self._stages = Progress() if stages is None else stages

    def append(self, stage: str, metrics: Mapping[str, Any], epoch: int) -> None:
        """Adds an epoch; a name that some epochs lack has NaN there.

        Args:
            stage: 'train' or 'val'.
            metrics: its values.
            epoch: its number, from 1.
        """
        lists = self._stages[stage]
        length = max((len(values) for values in lists.values()), default=0)
        for name in [*lists, *[name for name in metrics if name not in lists]]:
            values = lists.setdefault(name, [float("nan")] * length)
            values.append(metrics.get(name, float("nan")))
        if isinstance(self._stages, Progress) and metrics:
            self._stages.epochs[stage].append(epoch)

    def as_dict(self) -> dict[str, dict[str, list[Any]]]:
        """{'train': {name: [a value an epoch]}, 'val': {...}}."""
        return self._stages


def epochs_of(progress: Mapping[str, Any], stage: str, count: int) -> list[int]:
    """The numbers of the epochs that a stage's lists of `count` values are of; without a record 1, 2, 3, ..."""
    epochs: dict[str, list[int]] = getattr(progress, "epochs", {})
    known = epochs.get(stage, [])
    return list(known) if len(known) == count else list(range(1, count + 1))
