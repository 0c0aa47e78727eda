"""What one sees of a run: a live panel in a terminal, plain lines elsewhere."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from manyview.cli.arguments import print_line
from manyview.train import RunConfig, RunDir
from manyview.train.loggers import Logger
from manyview.train.resume import RESUME_MODES
from manyview.utils.text import sanitize_text

LINE_INTERVAL_S = 30.0
SPARKLINE_BARS = "▁▂▃▄▅▆▇█"
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


def make_display(config: RunConfig, run_dir: RunDir) -> Logger:
    console = Console()
    return LiveDisplay(config, run_dir, console) if console.is_terminal else PlainDisplay(config, run_dir)


def format_title(config: RunConfig) -> str:
    return f"{config.task}  {config.method}  seed {config.seed}  preset {config.preset}"


class DisplayState:
    """The latest of every kind of record, and what follows from them."""

    def __init__(self, total_frames: int) -> None:
        self.total_frames = total_frames
        self.latest: dict[str, dict[str, Any]] = {}
        self.returns: list[float] = []
        self.warnings: list[str] = []
        self.frames, self.seconds = 0, 0.0
        self._pace_samples: list[tuple[float, int]] = []

    def update(self, record: Mapping[str, Any]) -> None:
        self.latest[record["kind"]] = dict(record)
        self.frames, self.seconds = record["frames"], record["seconds"]
        if not self._pace_samples or self.seconds > self._pace_samples[-1][0] + 1:
            self._pace_samples = [*self._pace_samples[-60:], (self.seconds, self.frames)]
        if record["kind"] == "evaluation":
            self.returns.append(record["return"])
        if record["kind"] == "warning":
            self.warnings.append(sanitize_text(record["text"]))

    @property
    def frames_per_s(self) -> float:
        """Over the last minute or so: the first frames, without updates, are quick."""
        if not self._pace_samples:
            return 0.0
        (start_s, start), (end_s, end) = self._pace_samples[0], self._pace_samples[-1]
        return (end - start) / (end_s - start_s) if end_s > start_s else 0.0

    @property
    def eta(self) -> str:
        if not self.frames_per_s:
            return "?"
        return str(timedelta(seconds=round(max(0, self.total_frames - self.frames) / self.frames_per_s)))

    def format_value(self, kind: str, name: str) -> str:
        value = self.latest.get(kind, {}).get(name)
        return "-" if value is None else f"{value:.4g}"

    def format_value_loss(self) -> str:
        """Of whatever values the agent has."""
        train = self.latest.get("train", {})
        name = next((name for name in ("critic_loss", "value_loss") if name in train), "critic_loss")
        return f"{name.removesuffix('_loss')} {self.format_value('train', name)}"

    def format_bonus(self) -> str:
        """r̂ before its scale, where that is known: a centred one is 0 on average."""
        has_mean = "reward_mean" in self.latest.get("train", {})
        return self.format_value("train", "reward_mean" if has_mean else "reward_int")

    def format_shares(self) -> str:
        """What each view pays of r̂."""
        train = self.latest.get("train", {})
        parts = {name.removeprefix("share/"): value for name, value in train.items() if name.startswith("share/")}
        return ", ".join(f"{name} {value:.0%}" for name, value in parts.items() if value is not None)

    def get_health(self) -> str:
        lines = str(self.latest.get("train", {}).get("health", "")).splitlines()
        return "\n".join(map(sanitize_text, lines))


class PlainDisplay:
    """A line for each evaluation and warning, and one every half minute."""

    def __init__(self, config: RunConfig, run_dir: RunDir) -> None:
        self._config, self._run_dir = config, run_dir
        self._state = DisplayState(config.schedule.frames)
        self._last_line_s = 0.0
        self._last_health = ""

    def record(self, record: Mapping[str, Any]) -> None:
        state, kind = self._state, record["kind"]
        state.update(record)
        if kind in ("start", "resume"):
            self._print(f"{format_title(self._config)}  {self._run_dir.path}")
        if kind == "resume":
            self._print(f"{self._format_frames()}  resumed {RESUME_MODES[record['resume_mode']]}")
        elif kind == "evaluation":
            returns = record["returns"]
            self._print(
                f"{self._format_frames()}  return {record['return']:.1f} ({len(returns)} episodes, "
                f"{min(returns):.1f} to "
                f"{max(returns):.1f}){format_test_return(record)}"
            )
        elif kind == "warning":
            self._print(f"{self._format_frames()}  warning: {record['text']}")
        elif kind == "end":
            self._print(f"{self._format_frames()}  {record['state']} {record.get('reason', '')}".rstrip())
        elif kind == "train":
            self._print_train_line()

    def _print_train_line(self) -> None:
        state = self._state
        if state.seconds - self._last_line_s < LINE_INTERVAL_S:
            return
        self._print(
            f"{self._format_frames()}  episode {state.format_value('episode', 'return')}  "
            f"β {state.format_value('train', 'beta')}  "
            f"r̂ {state.format_bonus()}  {state.format_value_loss()}  "
            f"{state.frames_per_s:.0f} frames/s  {state.eta} left"
        )
        if state.get_health() != self._last_health:
            self._last_health = state.get_health()
            self._print(f"{self._format_frames()}  {self._last_health.splitlines()[0]}")

    def _format_frames(self) -> str:
        return f"{self._state.frames:>9,} frames"

    def _print(self, line: str) -> None:
        self._last_line_s = self._state.seconds
        print_line(line)

    def close(self) -> None:
        pass


class LiveDisplay:
    """A panel that is drawn anew with every record."""

    def __init__(self, config: RunConfig, run_dir: RunDir, console: Console) -> None:
        self._config, self._run_dir = config, run_dir
        self._state = DisplayState(config.schedule.frames)
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
        self._state.update(record)
        state = self._state
        self._progress.update(
            self._bar,
            completed=state.frames,
            eta=f"{state.frames_per_s:.0f}/s, {state.eta} left" if state.frames else "",
        )
        if record["kind"] in ("start", "resume"):
            self._live.start()  # not before: a run that is refused must leave the terminal as it was
        self._live.update(self._render_panel(), refresh=record["kind"] in ("evaluation", "end"))

    def close(self) -> None:
        self._live.stop()

    def _render_panel(self) -> Group:
        state = self._state
        table = Table.grid(padding=(0, 2))
        if (resumed := state.latest.get("resume")) is not None:
            table.add_row("resumed", f"at {resumed['frames']:,} frames, {RESUME_MODES[resumed['resume_mode']]}")
        test_return = format_test_return(state.latest.get("evaluation", {}))
        table.add_row(
            "return", f"{state.format_value('evaluation', 'return')}  {draw_sparkline(state.returns)}{test_return}"
        )
        table.add_row("last episode", state.format_value("episode", "return"))
        table.add_row(
            "β", f"{state.format_value('train', 'beta')}  β · std(r̂) {state.format_value('train', 'contrast')}"
        )
        table.add_row("r̂", Text(sanitize_text(f"{state.format_bonus()}  {state.format_shares()}".rstrip())))
        losses = [
            f"{name} {state.format_value('train', name)}" for name in LOSSES if name in state.latest.get("train", {})
        ]
        table.add_row("learning", "  ".join(losses))
        if state.get_health():
            healthy = state.get_health().startswith("healthy")
            table.add_row("health", Text(state.get_health(), style="green" if healthy else "yellow"))
        for warning in state.warnings[-3:]:
            table.add_row("warning", Text(warning, style="red"))
        return Group(
            Text(sanitize_text(format_title(self._config)), style="bold"),
            self._progress,
            table,
            Text(sanitize_text(self._run_dir.path), style="dim"),
        )


def format_test_return(evaluation: Mapping[str, Any]) -> str:
    """Where some levels are trained on and others tested."""
    return f"  on test levels {evaluation['test_return']:.1f}" if "test_return" in evaluation else ""


def draw_sparkline(values: list[float]) -> str:
    """Returns as a curve of one line, from the least to the greatest."""
    if not values:
        return ""
    low, span = min(values), max(values) - min(values) or 1.0
    return "".join(SPARKLINE_BARS[round((value - low) / span * (len(SPARKLINE_BARS) - 1))] for value in values[-60:])
