"""The records of a run: one JSON object a line, which is the truth; TensorBoard and Weights & Biases beside it."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from manyview.envs.optional import optional

Kind = Literal["start", "train", "episode", "evaluation", "warning", "end"]


class Listener(Protocol):
    """Whoever is told of records: a file, a display, a service."""

    def record(self, record: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """Appends a line for each record and hands it to the system at once, so that a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def record(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(_finite(record), ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        optional("tensorboard", extra="track")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def record(self, record: Mapping[str, Any]) -> None:
        for name, value in _numbers(record):
            self._writer.add_scalar(f"{record['kind']}/{name}", value, global_step=record["frames"])

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    def __init__(self, folder: Path, *, name: str, config: Mapping[str, Any]) -> None:
        wandb = optional("wandb", extra="track")
        self._run: Any = wandb.init(project="manyview", dir=str(folder), name=name, config=dict(config))

    def record(self, record: Mapping[str, Any]) -> None:
        self._run.log({f"{record['kind']}/{name}": value for name, value in _numbers(record)})

    def close(self) -> None:
        self._run.finish()


class Listeners:
    """Tells all of them, and closes them at the end. A run is worth more than whoever watches it: only the first, the
    truth, may fail; others that do are left out from then on, with a warning.
    """

    def __init__(self, truth: Listener, *others: Listener) -> None:
        self._truth, self._others = truth, list(others)

    def record(self, record: Mapping[str, Any]) -> None:
        self._truth.record(record)
        for listener in tuple(self._others):
            try:
                listener.record(record)
            except Exception as error:
                self._others.remove(listener)
                self._close(listener)
                text = f"{type(listener).__name__} is told no more: {error!r}"
                self.record({**_times(record), "kind": "warning", "text": text})

    def close(self) -> None:
        for listener in self._others:
            self._close(listener)
        self._truth.close()

    def _close(self, listener: Listener) -> None:
        with suppress(Exception):
            listener.close()


def _times(record: Mapping[str, Any]) -> dict[str, Any]:
    """When a record was made."""
    return {name: record[name] for name in ("frames", "steps", "updates", "seconds") if name in record}


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def _finite(value: Any) -> Any:
    """JSON has no word for what is not a number."""
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
