"""Run directories with fuzzed files are listed as rows, and readable ones are plotted."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from manyview.cli.main import main
from manyview.report.runs import CONFIG_FILE, MANIFEST_FILE, METRICS_FILE
from tests.support.run_dirs import write_run_dir

NUM_RUNS = 150
NAMES = [
    "task",
    "method",
    "seed",
    "schedule",
    "frames",
    "kind",
    "return",
    "steps",
    "state",
    "reason",
    "host",
    "env",
    "",
]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2.5, 10**30, 10**400, float("nan"), float("inf"), 1e308, 5e-324, -1e38, 1e38),
    *(
        "",
        "x",
        "$",
        "$\\frac{",
        "\x1b[2J",
        "\n",
        "\ud800",
        "\u202e",
        "evaluation",
        "episode",
        "resume",
        "end",
        "drqv2+mem",
    ),
    *("finished", "y" * 1000, "[red]", "_", "%s{}"),
]


def draw_value(rng: random.Random, depth: int = 3) -> Any:
    """Return a random JSON value, nested at most `depth` deep."""
    kind = rng.random()
    if depth and kind < 0.15:
        return {rng.choice(NAMES): draw_value(rng, depth - 1) for _ in range(3)}
    if depth and kind < 0.25:
        return [draw_value(rng, depth - 1) for _ in range(3)]
    return rng.choice(VALUES)


def mutate(rng: random.Random, content: bytes) -> bytes:
    """Change random values or bytes of a file with lines of JSON."""
    lines = content.split(b"\n")
    for _ in range(rng.randint(1, 4)):
        index = rng.randrange(len(lines))
        try:
            value = json.loads(lines[index])
        except ValueError:
            value = {}
        if rng.random() < 0.8 and isinstance(value, dict):
            value[rng.choice([*value, *NAMES])] = draw_value(rng)
            lines[index] = json.dumps(value).encode()
        else:
            offset = rng.randrange(len(lines[index]) + 1)
            lines[index] = (
                lines[index][:offset] + rng.randbytes(rng.randint(0, 3)) + lines[index][offset + rng.randint(0, 3) :]
            )
        lines.insert(rng.randrange(len(lines)), lines[index])
    return b"\n".join(lines)


@pytest.mark.attack(
    "a run folder of deep, huge or infinite JSON, links, pipes, gigabytes or loops is a row that says why; the other "
    "runs are listed and drawn"
)
@pytest.mark.quality("X5", "X6")
def test_generated_runs_are_listed_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, runs = random.Random(0), tmp_path / "runs"  # noqa: S311
    for number in range(NUM_RUNS):
        path = write_run_dir(
            runs / str(number), [1.0, 2.0, 3.0], seed=number, end=rng.choice(["finished", "failed", None])
        )
        for name in rng.sample([CONFIG_FILE, MANIFEST_FILE, METRICS_FILE], rng.randint(1, 3)):
            (path / name).write_bytes(mutate(rng, (path / name).read_bytes()))
    write_run_dir(runs / "whole", [1.0], task="toy/whole")
    assert main(["runs", str(runs)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert all(line.isprintable() for line in captured.out.split("\n"))
    rows = [line for line in captured.out.splitlines()[1:] if not line.startswith("    ")]
    assert len(rows) == NUM_RUNS + 1
    assert main(["runs", str(runs), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == NUM_RUNS + 1
    for kind in ("evaluations", "episodes"):
        assert main(["plot", str(runs), "--out", str(tmp_path / "curves.png"), "--of", kind]) in (0, 2)
        plot_output = capsys.readouterr()
        assert all(line.isprintable() for line in (plot_output.out + plot_output.err).split("\n"))
        assert kind == "episodes" or "toy/whole, drqv2+mem, 1 seed: 1.0 after 0 frames" in plot_output.out
