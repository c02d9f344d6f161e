"""History: the metrics of finished epochs, a list for each name."""

from __future__ import annotations

from typing import Any, Mapping


class History:
    """Lists of epoch values, of equal length for all names of a stage.

    Args:
        stages: an existing history to go on with; None starts one.
    """

    def __init__(self, stages: dict[str, dict[str, list[Any]]] | None = None) -> None:
        self._stages = {"train": {}, "val": {}} if stages is None else stages

    def append(self, stage: str, metrics: Mapping[str, Any]) -> None:
        """Adds an epoch; a name that some epochs lack has NaN there."""
        lists = self._stages[stage]
        length = max((len(values) for values in lists.values()), default=0)
        for name in [*lists, *[name for name in metrics if name not in lists]]:
            values = lists.setdefault(name, [float("nan")] * length)
            values.append(metrics.get(name, float("nan")))

    def as_dict(self) -> dict[str, dict[str, list[Any]]]:
        """{'train': {name: [a value an epoch]}, 'val': {...}}."""
        return self._stages
