"""Displays of a run: a live panel in a terminal, plain lines elsewhere."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from manyview.report.curves import read_curve
from manyview.report.runs import BrokenRunError
from manyview.training import RunConfig, RunDir
from manyview.training.loggers import Logger
from manyview.training.resume import RESUME_MODES
from manyview.utils.text import format_count, print_line, sanitize_text

LINE_INTERVAL_S = 30.0
"""Minimum time between two plain lines about training."""
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
"""Values of train records in the live panel."""


def make_display(config: RunConfig, run_dir: RunDir) -> Logger:
    """Return a live display in a terminal, otherwise a plain one."""
    console = Console()
    return LiveDisplay(config, run_dir, console) if console.is_terminal else PlainDisplay(config, run_dir)


def format_title(config: RunConfig) -> str:
    """Format task, method, seed and preset of a run."""
    return f"{config.task}  {config.method}  seed {config.seed}  preset {config.preset}"


class DisplayState:
    """Latest record of every kind, with the speed and texts derived from them."""

    def __init__(self, total_frames: int) -> None:
        self.total_frames = total_frames
        self.latest: dict[str, dict[str, Any]] = {}
        self.returns: list[float] = []
        self.warnings: list[str] = []
        self.frames, self.seconds = 0, 0.0
        self._pace_samples: list[tuple[float, int]] = []

    def update(self, record: Mapping[str, Any]) -> None:
        """Store a record."""
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
        """Simulator frames per second over the last 60 s or more, since the first frames, without updates, are fast."""
        if not self._pace_samples:
            return 0.0
        (start_s, start), (end_s, end) = self._pace_samples[0], self._pace_samples[-1]
        return (end - start) / (end_s - start_s) if end_s > start_s else 0.0

    @property
    def eta(self) -> str:
        """Remaining time as h:mm:ss, or `?` if the speed is unknown."""
        if not self.frames_per_s:
            return "?"
        return str(timedelta(seconds=round(max(0, self.total_frames - self.frames) / self.frames_per_s)))

    def format_value(self, kind: str, name: str) -> str:
        """Format a value of the latest record of a kind, or `-` if there is none."""
        value = self.latest.get(kind, {}).get(name)
        return "-" if value is None else f"{value:.4g}"

    def format_value_loss(self) -> str:
        """Format the critic loss or, with PPO, the value loss."""
        train = self.latest.get("train", {})
        name = next((name for name in ("critic_loss", "value_loss") if name in train), "critic_loss")
        return f"{name.removesuffix('_loss')} {self.format_value('train', name)}"

    def format_bonus(self) -> str:
        """Format the mean bonus r̂ before scaling if it is recorded, since a centered one has mean 0."""
        has_mean = "reward_mean" in self.latest.get("train", {})
        return self.format_value("train", "reward_mean" if has_mean else "reward_int")

    def format_shares(self) -> str:
        """Format each view's share of the bonus r̂."""
        train = self.latest.get("train", {})
        parts = {name.removeprefix("share/"): value for name, value in train.items() if name.startswith("share/")}
        return ", ".join(f"{name} {value:.0%}" for name, value in parts.items() if value is not None)

    def get_health(self) -> str:
        """Return the diagnostics of the latest train record, one per line."""
        lines = str(self.latest.get("train", {}).get("health", "")).splitlines()
        return "\n".join(map(sanitize_text, lines))


class PlainDisplay:
    """Display that prints a line per evaluation and warning, and one about training every 30 s."""

    def __init__(self, config: RunConfig, run_dir: RunDir) -> None:
        self._config, self._run_dir = config, run_dir
        self._state = DisplayState(config.schedule.frames)
        self._last_line_s = 0.0
        self._last_health = ""

    def record(self, record: Mapping[str, Any]) -> None:
        """Print the lines due after a record."""
        state, kind = self._state, record["kind"]
        state.update(record)
        if kind in ("start", "resume"):
            self._print(f"{format_title(self._config)}  {self._run_dir.path}")
        if kind == "resume":
            self._print(f"{self._format_frames()}  resumed {RESUME_MODES[record['resume_mode']]}")
        elif kind == "evaluation":
            returns = record["returns"]
            self._print(
                f"{self._format_frames()}  return {record['return']:z.1f} ({format_count(len(returns), 'episode')}, "
                f"{min(returns):z.1f} to "
                f"{max(returns):z.1f}){format_test_return(record)}"
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
            f"{self._format_frames()}  last episode {state.format_value('episode', 'return')}  "
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
    """Panel that is redrawn with every record."""

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
        """Update the panel."""
        self._state.update(record)
        state = self._state
        self._progress.update(
            self._bar,
            completed=state.frames,
            eta=f"{state.frames_per_s:.0f}/s, {state.eta} left" if state.frames else "",
        )
        if record["kind"] == "resume":
            state.returns = read_returns(self._run_dir)
        if record["kind"] in ("start", "resume"):
            self._live.start()  # only now: a rejected run must not change the terminal
        self._live.update(self._render_panel(), refresh=record["kind"] in ("evaluation", "end"))

    def show_activity(self, text: str) -> None:
        """Show what the run does, beside the progress bar, until the next record."""
        self._progress.update(self._bar, eta=text)
        self._live.update(self._render_panel(), refresh=True)

    def close(self) -> None:
        self._live.stop()

    def _render_panel(self) -> Group:
        state = self._state
        table = Table.grid(padding=(0, 2))
        if (resume := state.latest.get("resume")) is not None:
            table.add_row("resumed", f"at {resume['frames']:,} frames, {RESUME_MODES[resume['resume_mode']]}")
        test_return = format_test_return(state.latest.get("evaluation", {}))
        last_return = f"{state.returns[-1]:.4g}" if state.returns else "-"
        table.add_row("return", f"{last_return}  {draw_sparkline(state.returns)}{test_return}")
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


def read_returns(run_dir: RunDir) -> list[float]:
    """Return the returns of the evaluations so far, which a resumed run continues; none from a damaged file."""
    try:
        returns: list[float] = read_curve(run_dir.path, "frames").returns.tolist()
    except BrokenRunError:
        return []
    return returns


def format_test_return(evaluation: Mapping[str, Any]) -> str:
    """Format the return on test levels, for tasks that train on a part of their levels."""
    return f"  on test levels {evaluation['test_return']:z.1f}" if "test_return" in evaluation else ""


def draw_sparkline(values: list[float]) -> str:
    """Draw the last 60 values as bars in one line, scaled from the minimum to the maximum of all."""
    if not values:
        return ""
    low, span = min(values), max(values) - min(values) or 1.0
    return "".join(SPARKLINE_BARS[round((value - low) / span * (len(SPARKLINE_BARS) - 1))] for value in values[-60:])
