"""Loggers that send records to experiment trackers: TensorBoard, Weights & Biases, Trackio."""

import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from threading import Event, Thread, get_ident
from typing import Any, NamedTuple, TextIO, cast

from manyview.config.overrides import to_plain
from manyview.config.schema import RunConfig
from manyview.training.loggers import Logger, iter_scalars
from manyview.training.run_dir import RunDir
from manyview.utils.optional_imports import import_optional

MAX_PENDING_RECORDS = 10_000
"""Upper limit of records that wait for a service; later ones are dropped."""
START_S, STOP_S, FINISH_S = 3.0, 2.0, 60.0
"""Longest time that a run waits for a service: at its start, after a stop, and at its end."""
MAX_NAME_CHARS = 100
FRAMES = "frames"
"""Metric that services show on the x-axis."""
VIDEO = "evaluation/video"


class TensorBoardLogger:
    """Write the scalars of all records as TensorBoard events.

    Args:
        directory: Directory of the event files.
        since_frames: Frames at which a resumed run continues; TensorBoard hides earlier events of later frames.

    """

    def __init__(self, directory: Path, *, since_frames: int | None = None) -> None:
        import_optional("tensorboard", extra="track")
        self._directory, self._since_frames = directory, since_frames
        self._writer: Any = None

    def record(self, record: Mapping[str, Any]) -> None:
        if self._writer is None:  # not in the constructor: a failure here becomes a warning
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._directory), purge_step=self._since_frames)
        for name, value in iter_scalars(record):
            self._writer.add_scalar(f"{record['kind']}/{name}", value, global_step=record["frames"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class RunLabels(NamedTuple):
    """Labels under which a service shows a run."""

    name: str
    id: str
    project: str = "manyview"
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()


class _Message(NamedTuple):
    """Scalars of a record, and a video if there is a new one."""

    frames: int
    scalars: dict[str, float]
    video: Path | None


class ServiceLogger(ABC):
    """Send the scalars of all records and the videos to a service from a thread, so that training never waits.

    Args:
        run_dir: Directory of the run, with its videos.
        labels: Labels of the run.
        config: Settings of the run.

    """

    def __init__(self, run_dir: RunDir, labels: RunLabels, config: Mapping[str, Any]) -> None:
        self._run_dir, self._labels, self._config = run_dir, labels, dict(config)
        self._last_video = run_dir.find_last_video()  # of the run before a resume: it is there already
        self._queue: Queue[_Message | None] = Queue()  # `record` bounds it, so that `close` has room
        self._failure: Exception | None = None
        self._started, self._close_timeout_s = Event(), STOP_S
        self._thread = Thread(target=self._run, daemon=True, name=type(self).__name__)
        self._thread.start()

    @abstractmethod
    def open_service(self) -> None:
        """Connect to the service; an error disables the logger with a warning."""

    @abstractmethod
    def send(self, values: dict[str, Any], frames: int) -> None:
        """Send values of one moment by name."""

    @abstractmethod
    def make_video(self, path: Path) -> Any:
        """Return the service's object for a video file."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the run at the service."""

    def record(self, record: Mapping[str, Any]) -> None:
        if record["kind"] in ("start", "resume"):
            self._started.wait(START_S)  # report a missing key at the start of the run
        if self._failure is not None:
            raise self._failure
        self._close_timeout_s = FINISH_S if record.get("state") == "finished" else STOP_S
        if self._queue.qsize() < MAX_PENDING_RECORDS:  # metrics.jsonl has all records
            scalars = {f"{record['kind']}/{name}": value for name, value in iter_scalars(record)}
            self._queue.put(_Message(int(record[FRAMES]), scalars, self._find_new_video(record["kind"])))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(self._close_timeout_s)

    def _find_new_video(self, kind: str) -> Path | None:
        """Return the video of the last evaluation if it was not sent: it is written after the evaluation's record."""
        if kind not in ("train", "evaluation", "end"):
            return None
        video = self._run_dir.find_last_video()
        if video == self._last_video:
            return None
        self._last_video = video
        return video

    def _run(self) -> None:
        try:
            self.open_service()
            self._started.set()
            while (message := self._queue.get()) is not None:
                self.send({**message.scalars, FRAMES: message.frames}, message.frames)
                if message.video is not None:
                    frames = int(message.video.stem)
                    self.send({VIDEO: self.make_video(message.video), FRAMES: frames}, frames)
            self.finish()
        except Exception as error:
            self._failure = error
        finally:
            self._started.set()


class WandbLogger(ServiceLogger):
    """Send records and videos to Weights & Biases."""

    def __init__(self, run_dir: RunDir, labels: RunLabels, config: Mapping[str, Any]) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # otherwise wandb waits for its server at exit
        self._wandb = import_optional("wandb", extra="track")
        self._service: Any = None
        super().__init__(run_dir, labels, config)

    def open_service(self) -> None:
        """Start or continue the run with the id of the run directory."""
        self._check_key()
        labels = self._labels
        self._service = self._wandb.init(
            project=labels.project,
            entity=labels.entity,
            group=labels.group,
            tags=list(labels.tags) or None,
            dir=str(self._run_dir.path),
            name=labels.name,
            id=labels.id,
            resume="allow",
            config=self._config,
        )
        self._service.define_metric(FRAMES)
        self._service.define_metric("*", step_metric=FRAMES)

    def send(self, values: dict[str, Any], frames: int) -> None:  # noqa: ARG002
        # Without a step: wandb drops values of an earlier step, such as those of a video.
        self._service.log(values)

    def make_video(self, path: Path) -> Any:
        return self._wandb.Video(str(path), format="mp4")

    def finish(self) -> None:
        self._service.finish()

    def _check_key(self) -> None:
        """Raise ValueError without an API key: wandb would prompt for it in the terminal that shows the run."""
        if self._wandb.setup().settings.mode == "online":
            with suppress(TypeError):  # versions without `prompt`
                if not self._wandb.login(prompt=False):
                    raise ValueError("no API key. Run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline")


class TrackioLogger(ServiceLogger):
    """Write records and videos to the local database of Trackio."""

    def __init__(self, run_dir: RunDir, labels: RunLabels, config: Mapping[str, Any]) -> None:
        self._trackio = import_optional("trackio", extra="trackio")
        self._service: Any = None
        super().__init__(run_dir, labels, config)

    def open_service(self) -> None:
        """Start or continue the run with the name and id of the run directory."""
        labels = self._labels
        with mute_thread():  # it prints hints over the display of the run
            self._service = self._trackio.init(
                project=labels.project,
                name=format_trackio_name(labels),
                group=labels.group,
                config={**self._config, "tags": list(labels.tags)},
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def send(self, values: dict[str, Any], frames: int) -> None:
        self._service.log(values, step=frames)

    def make_video(self, path: Path) -> Any:
        return self._trackio.Video(path, format="mp4")

    def finish(self) -> None:
        with mute_thread():
            self._service.finish()


class _ThreadMutedStream:
    """Stream that drops the text of one thread; None for no thread."""

    def __init__(self, stream: TextIO, thread: int | None) -> None:
        self.stream, self.thread = stream, thread

    def write(self, text: str) -> int:
        return len(text) if self.thread == get_ident() else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def mute_thread() -> Iterator[None]:
    """Drop what this thread prints within the context; other threads print as before."""
    muted = _ThreadMutedStream(sys.stdout, get_ident())
    sys.stdout = stream = cast("TextIO", muted)
    try:
        yield
    finally:
        muted.thread = None  # a display that started meanwhile restores this stream at its end
        if sys.stdout is stream:
            sys.stdout = muted.stream


def format_trackio_name(labels: RunLabels) -> str:
    """Return the name of a run at Trackio, which knows runs by name alone and names a directory of videos by it."""
    return f"{re.sub(r'[^A-Za-z0-9_.+-]+', '-', labels.name).strip('-.')[-MAX_NAME_CHARS:]}-{labels.id}"


def build_service_loggers(
    config: RunConfig, run_dir: RunDir, *, run_id: str, since_frames: int | None
) -> Sequence[Logger]:
    """Return the configured loggers beside `metrics.jsonl`."""
    settings = config.logging
    loggers: list[Logger] = []
    if settings.tensorboard:
        with suppress(ModuleNotFoundError):  # metrics.jsonl has everything
            loggers.append(TensorBoardLogger(run_dir.tensorboard_dir, since_frames=since_frames))
    labels = RunLabels(
        str(run_dir.path), run_id, settings.project, settings.entity, settings.group, tuple(settings.tags)
    )
    services = [(settings.wandb, WandbLogger), (settings.trackio, TrackioLogger)]
    loggers += [service(run_dir, labels, to_plain(config)) for is_chosen, service in services if is_chosen]
    return loggers
