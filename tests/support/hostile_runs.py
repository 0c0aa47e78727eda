"""Malicious run directories for the code that lists and plots runs."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manyview.report.camera_file import CAMERAS_FILE
from manyview.report.runs import CONFIG_FILE, MANIFEST_FILE, METRICS_FILE
from tests.support.run_dirs import format_record, write_run_dir

Attack = Callable[[Path], object]
"""Function that corrupts the intact run in a directory."""

ESCAPE_CODES = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e\ud800"
MARKUP = "--></title></style><script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
FORMULA = '=HYPERLINK("http://example.invalid","x")'
FORGED_TEXT = f"{ESCAPE_CODES}\nfinished  forged/row\n"


def set_values(name: str, **changes: Any) -> Attack:
    """Return an attack that changes values of a JSON file."""

    def attack(run: Path) -> None:
        (run / name).write_text(json.dumps({**json.loads((run / name).read_text()), **changes}))

    return attack


def set_content(name: str, content: bytes | str) -> Attack:
    """Return an attack that replaces the content of a file."""
    data = content if isinstance(content, bytes) else content.encode()
    return lambda run: (run / name).write_bytes(data)


def append_records(*lines: str) -> Attack:
    """Return an attack that appends lines to the metrics file."""

    def attack(run: Path) -> None:
        with (run / METRICS_FILE).open("a") as file:
            file.writelines(lines)

    return attack


def extend_file(name: str, size: int) -> Attack:
    """Return an attack that extends a file to a size that takes no disk space."""
    return lambda run: os.truncate(run / name, size)


def replace_file(name: str, make: Callable[[Path], object]) -> Attack:
    """Return an attack that replaces a file by what `make` creates at its path."""

    def attack(run: Path) -> None:
        (run / name).unlink()
        make(run / name)

    return attack


def combine(*attacks: Attack) -> Attack:
    """Return an attack that runs several attacks."""

    def run_all(run: Path) -> None:
        for attack in attacks:
            attack(run)

    return run_all


def add_video(make: Callable[[Path], object]) -> Attack:
    """Return an attack that adds a video, which `make` creates at its path."""

    def attack(run: Path) -> None:
        (run / "videos").mkdir()
        make(run / "videos" / "1.mp4")

    return attack


def nest_directories(run: Path) -> None:
    """Nest directories deeper than Python recurses, with circular links."""
    directory = os.open(run, os.O_RDONLY)
    for name in (CONFIG_FILE, METRICS_FILE):
        os.unlink(name, dir_fd=directory)
    for depth in range(1200):
        os.mkdir("d", dir_fd=directory)
        if depth < 10:
            os.symlink("..", "up", dir_fd=directory)
        subdirectory = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = subdirectory
    os.close(directory)


def set_long_names(run: Path) -> None:
    """Write settings whose full names would take 40 GB."""
    set_values(CONFIG_FILE, env={"x" * 2_000_000: dict.fromkeys(map(str, range(20_000)), 1)})(run)


NOT_NUMBERS = ("NaN", "-Infinity", "1e400", "9" * 400, "-" + "9" * 400, "true", '"1"', "[1]", "null")
EVALUATION_RECORD = format_record("evaluation", 2000, **{"return": 1.0})

BROKEN_RUNS: dict[str, Attack] = {
    "deep": set_content(CONFIG_FILE, '{"a":' * 100_000),
    "deep enough for C": set_content(CONFIG_FILE, '{"env":' + '{"a":' * 900 + "1" + "}" * 901),
    "deep manifest": set_content(MANIFEST_FILE, "[" * 100_000),
    "no settings": set_content(CONFIG_FILE, "NaN"),
    "duplicates": set_content(CONFIG_FILE, '{"task": "a", "task": "b"}'),
    "many values": set_content(CONFIG_FILE, "[" + "1," * 1_000_000 + "1]"),
    "utf-16": set_content(CONFIG_FILE, '{"task": 1}'.encode("utf-16")),
    "5000 digits": set_content(CONFIG_FILE, '{"task": "a", "method": "b", "seed": ' + "9" * 5000 + "}"),
    "400 digits": set_values(CONFIG_FILE, seed=10**400),
    "infinite seed": set_content(CONFIG_FILE, '{"task": "a", "method": "b", "seed": 1e400}'),
    "seed is true": set_values(CONFIG_FILE, seed=True),
    "long task": set_values(CONFIG_FILE, task="x" * 200_000),
    "long method": set_values(CONFIG_FILE, method="x" * 200_000),
    "task of lists": set_values(CONFIG_FILE, task=[["a"]]),
    "gigabytes of settings": extend_file(CONFIG_FILE, 2**34),
    "gigabytes of manifest": extend_file(MANIFEST_FILE, 2**34),
    "config folder": replace_file(CONFIG_FILE, Path.mkdir),
    "manifest folder": replace_file(MANIFEST_FILE, Path.mkdir),
    "metrics folder": replace_file(METRICS_FILE, Path.mkdir),
    "config pipe": replace_file(CONFIG_FILE, os.mkfifo),
    "manifest pipe": replace_file(MANIFEST_FILE, os.mkfifo),
    "metrics pipe": replace_file(METRICS_FILE, os.mkfifo),
    "config link": replace_file(CONFIG_FILE, lambda path: path.symlink_to("/dev/zero")),
    "manifest link": replace_file(MANIFEST_FILE, lambda path: path.symlink_to("/dev/zero")),
    "metrics link": replace_file(METRICS_FILE, lambda path: path.symlink_to("/dev/zero")),
    "link to itself": replace_file(CONFIG_FILE, lambda path: path.symlink_to(path)),
    "dangling link": replace_file(METRICS_FILE, lambda path: path.symlink_to("nowhere")),
    "gigabytes of metrics": lambda run: (set_content(METRICS_FILE, "")(run), extend_file(METRICS_FILE, 2**40)(run)),
    "unknown end": append_records(format_record("end", 2000, state=FORGED_TEXT)),
}
"""Runs that are listed as broken; `plot` draws the intact part or reports why it leaves the run out."""

LISTED_RUNS: dict[str, Attack] = {
    "odd settings": set_values(
        CONFIG_FILE,
        compute=[],
        evaluation=7,
        schedule="x",
        agent={"name": "sac", "lr": [[[]]]},
        bonus={"name": "mem", "lr": float("nan")},
    ),
    "schedule is true": set_values(CONFIG_FILE, schedule={"frames": True}),
    "schedule of 400 digits": set_values(CONFIG_FILE, schedule={"frames": 10**400}),
    "long names": set_long_names,
    "repeated method": set_values(
        CONFIG_FILE, method="+".join(["env"] * 50), env=dict.fromkeys(map(str, range(50_000)), 1)
    ),
    "formula": set_values(CONFIG_FILE, task=r"$\frac{", method=r"$\undefined$", agent={"lr": "$"}),
    "only a dollar": set_values(CONFIG_FILE, task="$", method="_"),
    "escapes": set_values(
        CONFIG_FILE, task=f"toy/{FORGED_TEXT}", method=f"m{FORGED_TEXT}", agent={FORGED_TEXT: FORGED_TEXT}
    ),
    "escapes again": set_values(
        CONFIG_FILE, task=f"toy/{FORGED_TEXT}", method=f"m{FORGED_TEXT}", agent={FORGED_TEXT: "x"}
    ),
    "markup": combine(
        set_values(CONFIG_FILE, task=MARKUP, method=MARKUP, env={MARKUP: MARKUP}, preset=MARKUP),
        set_values(MANIFEST_FILE, versions={MARKUP: MARKUP}, commit=MARKUP),
        append_records(
            *(format_record("train", frames, **{f"std/{MARKUP}": 1.0, "beta": 0.1}) for frames in (2000, 3000)),
            format_record("end", 3000, state="failed", reason=MARKUP),
        ),
    ),
    "spreadsheet": combine(
        set_values(CONFIG_FILE, task=FORMULA, method=f"@{FORMULA}"),
        append_records(format_record("end", 2000, state="failed", reason=f"-{FORMULA}")),
    ),
    "videos link": lambda run: (run / "videos").symlink_to("/dev"),
    "video link": add_video(lambda video: video.symlink_to("/dev/zero")),
    "video pipe": add_video(os.mkfifo),
    "gigabytes of video": add_video(
        lambda video: combine(set_content(video.name, ""), extend_file(video.name, 2**40))(video.parent)
    ),
    "page as video": add_video(lambda video: video.write_text(f"<script>{MARKUP}")),
    "cameras link": lambda run: (run / CAMERAS_FILE).symlink_to("/dev/zero"),
    "deep cameras": set_content(CAMERAS_FILE, '{"reports":' + "[" * 100_000),
    "camera markup": lambda run: (run / CAMERAS_FILE).write_text(
        json.dumps({"reports": [{"frames": 1, "subsets": [{"cameras": [MARKUP], "returns": [1.0]}]}]})
    ),
    "many settings": set_values(CONFIG_FILE, env={str(number): MARKUP for number in range(10_000)}),
    "many versions": set_values(MANIFEST_FILE, versions={str(number): FORGED_TEXT for number in range(10_000)}),
    "reason": append_records(format_record("end", 2000, state="failed", reason=FORGED_TEXT)),
    "reason of lists": append_records(format_record("end", 2000, state="failed", reason=[[FORGED_TEXT] * 1000])),
    "host": lambda run: (
        set_values(MANIFEST_FILE, host=FORGED_TEXT)(run),
        append_records(format_record("train", 2000))(run),
    ),
    "not numbers": append_records(
        *(f'{{"kind": "evaluation", "frames": {value}, "return": {value}}}\n' for value in NOT_NUMBERS),
        *(f'{{"kind": "evaluation", "frames": 9000, "return": {value}}}\n' for value in NOT_NUMBERS),
        format_record("end", True, state="finished"),
    ),
    "huge numbers": append_records(
        format_record("evaluation", 10**37, **{"return": 1e37}), format_record("evaluation", 2**52, **{"return": -1e37})
    ),
    "tiny numbers": append_records(format_record("evaluation", 0, **{"return": 5e-324})),
    "a long line": append_records("x" * 3_000_000 + "\n", EVALUATION_RECORD),
    "deep records": append_records('{"kind": "evaluation", "a":' + "[" * 100_000 + "\n", EVALUATION_RECORD),
    "surrogates": append_records('{"kind": "evaluation", "frames": 1, "return": 1, "\\ud800": "\\udfff"}\n'),
}
"""Runs that are listed with their readable values."""


def make_hostile_runs(folder: Path) -> list[Path]:
    """Make a run per attack and two intact runs; return the intact ones."""
    for name, attack in {**BROKEN_RUNS, **LISTED_RUNS}.items():
        attack(write_run_dir(folder / f"trap {name}", [1.0, 2.0]))
    nest_directories(write_run_dir(folder / "trap nested"))
    write_run_dir(Path(os.fsdecode(os.fsencode(folder) + b"/trap \xff\xfe name")), [1.0])
    write_run_dir(folder / f"trap {FORGED_TEXT}".replace("\ud800", "").replace("forged/row", "forged"), [1.0])
    return [write_run_dir(folder / name, [1.0, 812.3], task="toy/whole", seed=7) for name in ("a", "z")]
