"""What one sees of a run: a live panel in a terminal, plain lines elsewhere."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from manyview.cli.arguments import say
from manyview.train import RunConfig, RunFolder
from manyview.train.records import Listener
from manyview.train.resume import PROMISES
from manyview.utils.text import printable

LINE_EVERY_S = 30.0
BARS = "▁▂▃▄▅▆▇█"
LOSSES = (
    "critic_loss",
    "actor_loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "mem_loss",
    "curl_loss",
    "value",
    "temperature",
)


def display_for(config: RunConfig, folder: RunFolder) -> Listener:
    console = Console()
    return LiveDisplay(config, folder, console) if console.is_terminal else PlainDisplay(config, folder)


def title_of(config: RunConfig) -> str:
    return f"{config.task}  {config.method}  seed {config.seed}  preset {config.preset}"


class Seen:
    """The latest of every kind of record, and what follows from them."""

    def __init__(self, total_frames: int) -> None:
        self.total_frames = total_frames
        self.latest: dict[str, dict[str, Any]] = {}
        self.returns: list[float] = []
        self.warnings: list[str] = []
        self.frames, self.seconds = 0, 0.0
        self._paces: list[tuple[float, int]] = []

    def take(self, record: Mapping[str, Any]) -> None:
        self.latest[record["kind"]] = dict(record)
        self.frames, self.seconds = record["frames"], record["seconds"]
        if not self._paces or self.seconds > self._paces[-1][0] + 1:
            self._paces = [*self._paces[-60:], (self.seconds, self.frames)]
        if record["kind"] == "evaluation":
            self.returns.append(record["return"])
        if record["kind"] == "warning":
            self.warnings.append(printable(record["text"]))

    @property
    def frames_per_s(self) -> float:
        """Over the last minute or so: the first frames, without updates, are quick."""
        if not self._paces:
            return 0.0
        (begin_s, begin), (end_s, end) = self._paces[0], self._paces[-1]
        return (end - begin) / (end_s - begin_s) if end_s > begin_s else 0.0

    @property
    def eta(self) -> str:
        if not self.frames_per_s:
            return "?"
        return str(timedelta(seconds=round(max(0, self.total_frames - self.frames) / self.frames_per_s)))

    def figure(self, kind: str, name: str) -> str:
        value = self.latest.get(kind, {}).get(name)
        return "-" if value is None else f"{value:.4g}"

    def value_loss(self) -> str:
        """Of whatever values the agent has."""
        train = self.latest.get("train", {})
        name = next((name for name in ("critic_loss", "value_loss") if name in train), "critic_loss")
        return f"{name.removesuffix('_loss')} {self.figure('train', name)}"

    def bonus(self) -> str:
        """r̂ before its scale, where that is known: a centred one is 0 on average."""
        known = "reward_mean" in self.latest.get("train", {})
        return self.figure("train", "reward_mean" if known else "reward_int")

    def shares(self) -> str:
        """What each view pays of r̂."""
        train = self.latest.get("train", {})
        parts = {name.removeprefix("share/"): value for name, value in train.items() if name.startswith("share/")}
        return ", ".join(f"{name} {value:.0%}" for name, value in parts.items() if value is not None)

    def health(self) -> str:
        lines = str(self.latest.get("train", {}).get("health", "")).splitlines()
        return "\n".join(map(printable, lines))


class PlainDisplay:
    """A line for each evaluation and warning, and one every half minute."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._config, self._folder = config, folder
        self._seen = Seen(config.schedule.frames)
        self._last_line_s = 0.0
        self._last_health = ""

    def record(self, record: Mapping[str, Any]) -> None:
        seen, kind = self._seen, record["kind"]
        seen.take(record)
        if kind in ("start", "resume"):
            self._say(f"{title_of(self._config)}  {self._folder.path}")
        if kind == "resume":
            self._say(f"{self._when()}  resumed {PROMISES[record['promise']]}")
        elif kind == "evaluation":
            returns = record["returns"]
            self._say(
                f"{self._when()}  return {record['return']:.1f} ({len(returns)} episodes, {min(returns):.1f} to "
                f"{max(returns):.1f}){on_test_levels(record)}"
            )
        elif kind == "warning":
            self._say(f"{self._when()}  warning: {record['text']}")
        elif kind == "end":
            self._say(f"{self._when()}  {record['state']} {record.get('reason', '')}".rstrip())
        elif kind == "train":
            self._train_line()

    def _train_line(self) -> None:
        seen = self._seen
        if seen.seconds - self._last_line_s < LINE_EVERY_S:
            return
        self._say(
            f"{self._when()}  episode {seen.figure('episode', 'return')}  β {seen.figure('train', 'beta')}  "
            f"r̂ {seen.bonus()}  {seen.value_loss()}  "
            f"{seen.frames_per_s:.0f} frames/s  {seen.eta} left"
        )
        if seen.health() != self._last_health:
            self._last_health = seen.health()
            self._say(f"{self._when()}  {self._last_health.splitlines()[0]}")

    def _when(self) -> str:
        return f"{self._seen.frames:>9,} frames"

    def _say(self, line: str) -> None:
        self._last_line_s = self._seen.seconds
        say(line)

    def close(self) -> None:
        pass


class LiveDisplay:
    """A panel that is drawn anew with every record."""

    def __init__(self, config: RunConfig, folder: RunFolder, console: Console) -> None:
        self._config, self._folder = config, folder
        self._seen = Seen(config.schedule.frames)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[eta]}"),
        )
        self._progress = Progress(*columns, console=console)
        self._bar = self._progress.add_task("frames", total=config.schedule.frames, eta="")
        self._live = Live(console=console, refresh_per_second=4)

    def record(self, record: Mapping[str, Any]) -> None:
        self._seen.take(record)
        seen = self._seen
        self._progress.update(
            self._bar, completed=seen.frames, eta=f"{seen.frames_per_s:.0f}/s, {seen.eta} left" if seen.frames else ""
        )
        if record["kind"] in ("start", "resume"):
            self._live.start()  # not before: a run that is refused must leave the terminal as it was
        self._live.update(self._panel(), refresh=record["kind"] in ("evaluation", "end"))

    def close(self) -> None:
        self._live.stop()

    def _panel(self) -> Group:
        seen = self._seen
        table = Table.grid(padding=(0, 2))
        if (resumed := seen.latest.get("resume")) is not None:
            table.add_row("resumed", f"at {resumed['frames']:,} frames, {PROMISES[resumed['promise']]}")
        tested = on_test_levels(seen.latest.get("evaluation", {}))
        table.add_row("return", f"{seen.figure('evaluation', 'return')}  {sparkline(seen.returns)}{tested}")
        table.add_row("last episode", seen.figure("episode", "return"))
        table.add_row("β", f"{seen.figure('train', 'beta')}  β · std(r̂) {seen.figure('train', 'contrast')}")
        table.add_row("r̂", Text(printable(f"{seen.bonus()}  {seen.shares()}".rstrip())))
        losses = [f"{name} {seen.figure('train', name)}" for name in LOSSES if name in seen.latest.get("train", {})]
        table.add_row("learning", "  ".join(losses))
        if seen.health():
            healthy = seen.health().startswith("healthy")
            table.add_row("health", Text(seen.health(), style="green" if healthy else "yellow"))
        for warning in seen.warnings[-3:]:
            table.add_row("warning", Text(warning, style="red"))
        return Group(
            Text(printable(title_of(self._config)), style="bold"),
            self._progress,
            table,
            Text(printable(self._folder.path), style="dim"),
        )


def on_test_levels(evaluation: Mapping[str, Any]) -> str:
    """Where some levels are trained on and others tested."""
    return f"  on test levels {evaluation['test_return']:.1f}" if "test_return" in evaluation else ""


def sparkline(values: list[float]) -> str:
    """Returns as a curve of one line, from the least to the greatest."""
    if not values:
        return ""
    low, span = min(values), max(values) - min(values) or 1.0
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1))] for value in values[-60:])
