"""Closing lines of a run: what is saved, its returns, its video, and the next command."""

from collections.abc import Iterator
from contextlib import suppress
from shlex import quote

from manyview.cli.arguments import print_line
from manyview.report.curves import read_curve
from manyview.report.runs import BrokenRunError, RunSummary, summarize_run
from manyview.train import RunDir
from manyview.train.checkpoint import list_checkpoints


def print_outcome(run_dir: RunDir) -> None:
    """Print the closing lines of a run that this process has trained."""
    for line in format_outcome(run_dir, summarize_run(run_dir.path)):
        print_line(line)


def format_outcome(run_dir: RunDir, summary: RunSummary) -> Iterator[str]:
    """Yield the closing lines; none for a run without a record."""
    if summary.frames is None or summary.total_frames is None:
        return
    path = quote(str(run_dir.path))
    checkpoints = list_checkpoints(run_dir.checkpoints_dir)
    saved = f"saved in {path}, checkpoint {checkpoints[0].name}" if checkpoints else f"no checkpoint yet in {path}"
    yield f"{summary.state} at {summary.frames:,} of {summary.total_frames:,} frames, {saved}"
    with suppress(BrokenRunError):
        curve = read_curve(run_dir.path, "frames")
        if len(curve.x):
            best = curve.returns.argmax()
            yield f"return {curve.returns[-1]:.1f}, best {curve.returns[best]:.1f} at {curve.x[best]:,.0f} frames"
    if (video := run_dir.find_last_video()) is not None:
        yield f"video {quote(str(video))}"
    if summary.state == "finished":
        yield f"next: manyview evaluate {path}, or manyview extend {path} --frames {2 * summary.total_frames}"
    else:
        yield f"next: manyview resume {path}"
