"""Callbacks of a run: functions that receive its records and can stop it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from manyview.training.signals import get_current_request

RecordCallback = Callable[[Mapping[str, Any]], object]
"""Function of a record; if it returns True, the run is saved and stops."""


class CallbackLogger:
    """Pass records to callbacks, and stop the run when one returns True or raises.

    Args:
        on_record: Receives every record.
        on_evaluation: Receives the records of evaluations, whose mean is `record["return"]`.

    """

    def __init__(self, on_record: RecordCallback | None = None, on_evaluation: RecordCallback | None = None) -> None:
        self._on_record, self._on_evaluation = on_record, on_evaluation
        self.error: Exception | None = None
        """Error of a callback; it is raised once the run is saved, so that no training is lost."""

    @property
    def is_needed(self) -> bool:
        """True if there is a callback."""
        return bool(self._on_record or self._on_evaluation)

    def record(self, record: Mapping[str, Any]) -> None:
        if self.error is not None:
            return
        callbacks = [self._on_record] if self._on_record else []
        if self._on_evaluation and record["kind"] == "evaluation":
            callbacks.append(self._on_evaluation)
        try:
            answers = [callback(record) for callback in callbacks]
            # A comparison with a number of numpy gives its own type of True.
            is_stop = any(isinstance(answer, bool | np.bool_) and bool(answer) for answer in answers)
        except Exception as error:
            self.error, is_stop = error, True
        if is_stop and (request := get_current_request()) is not None:
            request.request_without_signal()

    def close(self) -> None:
        pass
