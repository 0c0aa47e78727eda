"""Run folders that were made to break whoever lists or draws them, beside runs that are whole."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manyview.report.camera_file import CAMERAS_FILE
from manyview.report.runs import CONFIG_FILE, MANIFEST_FILE, METRICS_FILE
from tests.support.run_dirs import kept, record

Trap = Callable[[Path], object]
"""Harms the whole run in a folder."""

ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e\ud800"
MARKUP = "--></title></style><script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
FORMULA = '=HYPERLINK("http://example.invalid","x")'
FORGED = f"{ESCAPES}\nfinished  forged/row\n"


def put(name: str, **changes: Any) -> Trap:
    """Change values of a JSON file."""

    def harm(run: Path) -> None:
        (run / name).write_text(json.dumps({**json.loads((run / name).read_text()), **changes}))

    return harm


def write(name: str, content: bytes | str) -> Trap:
    data = content if isinstance(content, bytes) else content.encode()
    return lambda run: (run / name).write_bytes(data)


def append(*lines: str) -> Trap:
    def harm(run: Path) -> None:
        with (run / METRICS_FILE).open("a") as file:
            file.writelines(lines)

    return harm


def stretch(name: str, size: int) -> Trap:
    """Make a file very large; on the disk it takes no room."""
    return lambda run: os.truncate(run / name, size)


def replace(name: str, make: Callable[[Path], object]) -> Trap:
    def harm(run: Path) -> None:
        (run / name).unlink()
        make(run / name)

    return harm


def together(*traps: Trap) -> Trap:
    def harm(run: Path) -> None:
        for trap in traps:
            trap(run)

    return harm


def film(make: Callable[[Path], object]) -> Trap:
    """Put a video into a run."""

    def harm(run: Path) -> None:
        (run / "videos").mkdir()
        make(run / "videos" / "1.mp4")

    return harm


def nest(run: Path) -> None:
    """Put folders into folders, deeper than Python recurses, and links in circles."""
    here = os.open(run, os.O_RDONLY)
    for name in (CONFIG_FILE, METRICS_FILE):
        os.unlink(name, dir_fd=here)
    for depth in range(1200):
        os.mkdir("d", dir_fd=here)
        if depth < 10:
            os.symlink("..", "up", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def long_names(run: Path) -> None:
    """Settings whose full names would take 40 GB."""
    put(CONFIG_FILE, env={"x" * 2_000_000: dict.fromkeys(map(str, range(20_000)), 1)})(run)


NOT_NUMBERS = ("NaN", "-Infinity", "1e400", "9" * 400, "-" + "9" * 400, "true", '"1"', "[1]", "null")
EVALUATION = record("evaluation", 2000, **{"return": 1.0})

BROKEN: dict[str, Trap] = {
    "deep": write(CONFIG_FILE, '{"a":' * 100_000),
    "deep enough for C": write(CONFIG_FILE, '{"env":' + '{"a":' * 900 + "1" + "}" * 901),
    "deep manifest": write(MANIFEST_FILE, "[" * 100_000),
    "no settings": write(CONFIG_FILE, "NaN"),
    "duplicates": write(CONFIG_FILE, '{"task": "a", "task": "b"}'),
    "many values": write(CONFIG_FILE, "[" + "1," * 1_000_000 + "1]"),
    "utf-16": write(CONFIG_FILE, '{"task": 1}'.encode("utf-16")),
    "5000 digits": write(CONFIG_FILE, '{"task": "a", "method": "b", "seed": ' + "9" * 5000 + "}"),
    "400 digits": put(CONFIG_FILE, seed=10**400),
    "infinite seed": write(CONFIG_FILE, '{"task": "a", "method": "b", "seed": 1e400}'),
    "seed is true": put(CONFIG_FILE, seed=True),
    "long task": put(CONFIG_FILE, task="x" * 200_000),
    "long method": put(CONFIG_FILE, method="x" * 200_000),
    "task of lists": put(CONFIG_FILE, task=[["a"]]),
    "gigabytes of settings": stretch(CONFIG_FILE, 2**34),
    "gigabytes of manifest": stretch(MANIFEST_FILE, 2**34),
    "config folder": replace(CONFIG_FILE, Path.mkdir),
    "manifest folder": replace(MANIFEST_FILE, Path.mkdir),
    "metrics folder": replace(METRICS_FILE, Path.mkdir),
    "config pipe": replace(CONFIG_FILE, os.mkfifo),
    "manifest pipe": replace(MANIFEST_FILE, os.mkfifo),
    "metrics pipe": replace(METRICS_FILE, os.mkfifo),
    "config link": replace(CONFIG_FILE, lambda path: path.symlink_to("/dev/zero")),
    "manifest link": replace(MANIFEST_FILE, lambda path: path.symlink_to("/dev/zero")),
    "metrics link": replace(METRICS_FILE, lambda path: path.symlink_to("/dev/zero")),
    "link to itself": replace(CONFIG_FILE, lambda path: path.symlink_to(path)),
    "dangling link": replace(METRICS_FILE, lambda path: path.symlink_to("nowhere")),
    "gigabytes of metrics": lambda run: (write(METRICS_FILE, "")(run), stretch(METRICS_FILE, 2**40)(run)),
    "unknown end": append(record("end", 2000, state=FORGED)),
}
"""Runs that are listed as broken, and of which `plot` says why they are left out or draws what it can."""

LISTED: dict[str, Trap] = {
    "odd settings": put(
        CONFIG_FILE,
        compute=[],
        evaluation=7,
        schedule="x",
        agent={"name": "sac", "lr": [[[]]]},
        bonus={"name": "mem", "lr": float("nan")},
    ),
    "schedule is true": put(CONFIG_FILE, schedule={"frames": True}),
    "schedule of 400 digits": put(CONFIG_FILE, schedule={"frames": 10**400}),
    "long names": long_names,
    "repeated method": put(CONFIG_FILE, method="+".join(["env"] * 50), env=dict.fromkeys(map(str, range(50_000)), 1)),
    "formula": put(CONFIG_FILE, task=r"$\frac{", method=r"$\undefined$", agent={"lr": "$"}),
    "only a dollar": put(CONFIG_FILE, task="$", method="_"),
    "escapes": put(CONFIG_FILE, task=f"toy/{FORGED}", method=f"m{FORGED}", agent={FORGED: FORGED}),
    "escapes again": put(CONFIG_FILE, task=f"toy/{FORGED}", method=f"m{FORGED}", agent={FORGED: "x"}),
    "markup": together(
        put(CONFIG_FILE, task=MARKUP, method=MARKUP, env={MARKUP: MARKUP}, preset=MARKUP),
        put(MANIFEST_FILE, versions={MARKUP: MARKUP}, commit=MARKUP),
        append(
            *(record("train", frames, **{f"std/{MARKUP}": 1.0, "beta": 0.1}) for frames in (2000, 3000)),
            record("end", 3000, state="failed", reason=MARKUP),
        ),
    ),
    "spreadsheet": together(
        put(CONFIG_FILE, task=FORMULA, method=f"@{FORMULA}"),
        append(record("end", 2000, state="failed", reason=f"-{FORMULA}")),
    ),
    "videos link": lambda run: (run / "videos").symlink_to("/dev"),
    "video link": film(lambda video: video.symlink_to("/dev/zero")),
    "video pipe": film(os.mkfifo),
    "gigabytes of video": film(lambda video: together(write(video.name, ""), stretch(video.name, 2**40))(video.parent)),
    "page as video": film(lambda video: video.write_text(f"<script>{MARKUP}")),
    "cameras link": lambda run: (run / CAMERAS_FILE).symlink_to("/dev/zero"),
    "deep cameras": write(CAMERAS_FILE, '{"reports":' + "[" * 100_000),
    "camera markup": lambda run: (run / CAMERAS_FILE).write_text(
        json.dumps({"reports": [{"frames": 1, "subsets": [{"cameras": [MARKUP], "returns": [1.0]}]}]})
    ),
    "many settings": put(CONFIG_FILE, env={str(number): MARKUP for number in range(10_000)}),
    "many versions": put(MANIFEST_FILE, versions={str(number): FORGED for number in range(10_000)}),
    "reason": append(record("end", 2000, state="failed", reason=FORGED)),
    "reason of lists": append(record("end", 2000, state="failed", reason=[[FORGED] * 1000])),
    "host": lambda run: (put(MANIFEST_FILE, host=FORGED)(run), append(record("train", 2000))(run)),
    "not numbers": append(
        *(f'{{"kind": "evaluation", "frames": {value}, "return": {value}}}\n' for value in NOT_NUMBERS),
        *(f'{{"kind": "evaluation", "frames": 9000, "return": {value}}}\n' for value in NOT_NUMBERS),
        record("end", True, state="finished"),
    ),
    "huge numbers": append(
        record("evaluation", 10**37, **{"return": 1e37}), record("evaluation", 2**52, **{"return": -1e37})
    ),
    "tiny numbers": append(record("evaluation", 0, **{"return": 5e-324})),
    "a long line": append("x" * 3_000_000 + "\n", EVALUATION),
    "deep records": append('{"kind": "evaluation", "a":' + "[" * 100_000 + "\n", EVALUATION),
    "surrogates": append('{"kind": "evaluation", "frames": 1, "return": 1, "\\ud800": "\\udfff"}\n'),
}
"""Runs that are listed with what can be known of them."""


def make_runs(folder: Path) -> list[Path]:
    """Make every trap, between two runs that are whole; the folders of these."""
    for name, trap in {**BROKEN, **LISTED}.items():
        trap(kept(folder / f"trap {name}", [1.0, 2.0]))
    nest(kept(folder / "trap nested"))
    kept(Path(os.fsdecode(os.fsencode(folder) + b"/trap \xff\xfe name")), [1.0])
    kept(folder / f"trap {FORGED}".replace("\ud800", "").replace("forged/row", "forged"), [1.0])
    return [kept(folder / name, [1.0, 812.3], task="toy/whole", seed=7) for name in ("a", "z")]
