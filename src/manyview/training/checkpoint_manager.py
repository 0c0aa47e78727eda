"""Write a run's checkpoints in the background, and keep the newest ones with their segments."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyview.data import AsyncWriter, ReplayLog
from manyview.training import checkpoint
from manyview.training.checkpoint import Checkpoint, CheckpointError
from manyview.training.loggers import JsonLinesLogger
from manyview.training.resume import collect_segments, determine_resume_mode

MAX_CHECKPOINTS = 3


class CheckpointManager:
    """Save, prune and reload the checkpoints of one run."""

    def __init__(
        self,
        directory: Path,
        writer: AsyncWriter,
        segment_log: ReplayLog,
        metrics_logger: JsonLinesLogger,
        process_manifest: Mapping[str, Any],
        *,
        last_good: str,
    ) -> None:
        self._directory, self._writer = directory, writer
        self._segment_log, self._metrics_logger = segment_log, metrics_logger
        self._process_manifest = process_manifest
        self.last_good = last_good
        """Name of the last scheduled checkpoint, which pruning keeps; one caused by a stop request does not count."""

    def save(self, name: str, state: Mapping[str, Any], *, inserted: int) -> None:
        """Submit a checkpoint of `state` and return; training continues while it is written.

        `inserted` is the number of steps in the replay buffer, which the named segments cover.
        """
        mode, last_good = determine_resume_mode(state), self.last_good
        manifest = {"format": checkpoint.FORMAT, "resume_mode": mode, **self._process_manifest}
        self._segment_log.flush()

        def write() -> None:
            self._metrics_logger.flush()
            segments = [segment.to_plain() for segment in self._segment_log.list_segments(inserted=inserted)]
            checkpoint.save_checkpoint(self._directory / name, dict(state), {**manifest, "segments": segments})
            self._prune(last_good)

        self._writer.submit(write)

    def is_saved(self, name: str) -> bool:
        """Return whether this checkpoint is complete on the disk; call `AsyncWriter.wait` first."""
        return (self._directory / name).is_dir()

    def prune(self) -> None:
        """Remove all but the newest checkpoints and the last good one, and segments that none of them names."""
        self._prune(self.last_good)

    def _prune(self, last_good: str) -> None:
        remaining = checkpoint.prune_checkpoints(self._directory, MAX_CHECKPOINTS, keep=last_good)
        self._segment_log.prune(collect_segments(remaining))

    def load_last_good(self) -> tuple[Path, Checkpoint]:
        """Return the last good checkpoint, or the newest one if that was not written because of a full disk."""
        self._writer.wait()
        path = self._directory / self.last_good
        try:
            return path, checkpoint.load_checkpoint(path)
        except CheckpointError:
            return checkpoint.load_newest_checkpoint(self._directory)

    def find_newest(self) -> str | None:
        """Return the name of the newest checkpoint, or None if there is none."""
        return next((path.name for path in checkpoint.list_checkpoints(self._directory)), None)
