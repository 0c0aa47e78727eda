"""Write a run as a folder to share: weights, settings, curve, video, exported policy and model card.

The folder is a run directory with one checkpoint, so `manyview.load`, `manyview evaluate` and `--from` accept it:

    README.md         model card
    config.json       every setting, without paths of the machine
    manifest.json     software and hardware of the training, without host, process and paths
    metrics.jsonl     evaluations of the training
    curve.png         the same as a figure (extra `plots`)
    replay.mp4        last video of the training, if there is one
    checkpoints/      networks, optimizers and counters as safetensors and JSON
    export/           policy.onnx and policy.json (extra `export`)
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from manyview.config.schema import RunConfig
from manyview.deploy.model_card import CardFigures, format_card
from manyview.deploy.policy import load_chosen_checkpoint
from manyview.deploy.shared_files import CARD_FILE, CURVE_FILE, EXPORT_DIR, MAX_MEDIA_BYTES, VIDEO_FILE
from manyview.report.curves import group_curves, read_curve
from manyview.report.metrics_file import read_records
from manyview.report.plotting import draw_curves
from manyview.report.runs import BrokenRunError, convert_read_errors, summarize_run
from manyview.report.train_command import build_train_command, strip_paths
from manyview.training import RunDir, checkpoint
from manyview.training.checkpoint import Checkpoint
from manyview.training.counters import Counters
from manyview.training.run_dir import SHARED_FIELD, format_now
from manyview.utils.atomic_io import make_directory, remove, rename, write_new_file
from manyview.utils.files import TEMP_SUFFIX, read_bounded
from manyview.utils.json_io import is_number
from manyview.utils.text import sanitize_text

MANIFEST_FIELDS = (
    "id",
    "started",
    "finished",
    "python",
    "platform",
    "versions",
    "commit",
    "seed",
    "cpu",
    "device",
    "threads",
    "dtype",
    "numerics",
    "renderer",
    "views",
    "settings",
    "policy",
    "parameters",
)
"""Fields of the manifest to share; host, process and environment variables stay at home."""
Log = Callable[[str], None]


def write_shared_run(
    run: Path,
    folder: Path,
    *,
    choice: str = "last",
    repository: str | None = None,
    own_task: str | None = None,
    log: Log = lambda _: None,
) -> Path:
    """Write the folder to share of a run, and return its path.

    Args:
        run: Run directory.
        folder: New folder; an earlier one of this function is replaced.
        choice: Checkpoint, as for `manyview.load`.
        repository: Name on the Hugging Face hub, which the card then shows.
        own_task: `module:function` of a run on your own environment, from which the exported policy is checked then.
        log: Receives the parts that are left out, with the reasons.

    Raises:
        ValueError: A file of the run is invalid.
        FileNotFoundError: There is no run or no checkpoint.
        FileExistsError: The folder exists and holds something else.

    """
    run_dir = RunDir(run)
    config = strip_paths(run_dir.read_config())
    path, saved = load_chosen_checkpoint(run_dir, choice)
    counters = _read_counters(path, saved)
    evaluations = list_evaluations(run_dir)
    with replace_shared_run(folder) as temporary:
        shared = RunDir(temporary)
        note = {"checkpoint": path.name, "choice": choice, "written": format_now()}
        manifest = {**_select_manifest({**saved.manifest, **run_dir.read_manifest()}), SHARED_FIELD: note}
        shared.initialize(config, manifest)
        _write_checkpoint(shared, saved, counters, manifest)
        _write_metrics(shared, run_dir, evaluations, counters)
        _draw_curve(shared, log)
        _copy_video(run_dir, temporary, log)
        _export(temporary, own_task, log)
        figures = CardFigures(
            config=config,
            manifest=manifest,
            counters=counters,
            evaluations=evaluations,
            choice=choice,
            command=build_train_command(config, config_file=shared.config_file.name),
            files=frozenset(path.name for path in temporary.iterdir()),
            repository=repository,
        )
        write_new_file(temporary / CARD_FILE, [format_card(figures).encode()])
        for text in _list_private_texts(config, manifest):
            log(f"the folder contains a path: {text}. Check whether you want to share it")
    return folder


@contextmanager
def replace_shared_run(folder: Path) -> Iterator[Path]:
    """Yield the path of a new folder, which becomes `folder` at the end, in place of an earlier shared run.

    Raises `FileExistsError` at the start if `folder` holds something else.
    """
    if folder.is_symlink() or (folder.exists() and not _is_replaceable(folder)):
        raise FileExistsError(f"{folder} exists: expected a new folder or an earlier shared run. Choose another --out")
    make_directory(folder.parent)
    with TemporaryDirectory(prefix=".", suffix=TEMP_SUFFIX, dir=folder.parent) as parent:
        path = Path(parent) / "run"
        yield path
        remove(folder)
        rename(path, folder)


def _is_replaceable(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    try:
        return not any(folder.iterdir()) or RunDir(folder).is_shared
    except ValueError:
        return False


def list_evaluations(run_dir: RunDir) -> list[dict[str, Any]]:
    """Return the numbers of every evaluation record, sorted by frames; of equal frames the later one is valid.

    Raises `ValueError` if the records cannot be read.
    """
    evaluations: dict[float, dict[str, Any]] = {}
    with convert_read_errors(run_dir.metrics_file.name):
        for record in read_records(run_dir.metrics_file, containing=b"evaluation"):
            if record["kind"] == "evaluation" and is_number(record.get("frames")) and is_number(record.get("return")):
                evaluations[record["frames"]] = {"kind": "evaluation", **dict(_iter_numbers(record))}
    return [evaluations[frames] for frames in sorted(evaluations)]


def _iter_numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield numbers and lists of numbers; texts of a record may name paths."""
    for name, value in record.items():
        if is_number(value) or (isinstance(value, list) and all(map(is_number, value))):
            yield sanitize_text(name), value


def _read_counters(path: Path, saved: Checkpoint) -> Counters:
    counters = Counters()
    try:
        counters.load_state(saved.state["counters"])
        saved.state["agent"]
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"checkpoint {path} is invalid: expected `agent` and `counters`, got {error!r}") from None
    return counters


def _select_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {name: manifest[name] for name in MANIFEST_FIELDS if name in manifest}


def _write_checkpoint(shared: RunDir, saved: Checkpoint, counters: Counters, manifest: Mapping[str, Any]) -> None:
    state = {"agent": saved.state["agent"], "counters": counters.get_state()}
    make_directory(shared.checkpoints_dir)
    name = checkpoint.format_checkpoint_name(counters.frames)
    checkpoint.save_checkpoint(
        shared.checkpoints_dir / name, state, {**manifest, "format": saved.manifest.get("format"), "segments": []}
    )


def _write_metrics(shared: RunDir, run_dir: RunDir, evaluations: list[dict[str, Any]], counters: Counters) -> None:
    summary = summarize_run(run_dir.path)
    state = summary.state if summary.state in ("finished", "failed") else "stopped"
    end = {"kind": "end", **counters.to_record(), "frames": summary.frames or counters.frames, "state": state}
    lines = [json.dumps(record).encode() + b"\n" for record in (*evaluations, end)]
    write_new_file(shared.metrics_file, lines)


def _draw_curve(shared: RunDir, log: Log) -> None:
    try:
        curve = read_curve(shared.path, "frames")
        if not len(curve.x):
            raise BrokenRunError("the run has no evaluation")
        draw_curves(shared.path / CURVE_FILE, group_curves([curve]), unit="frames")
    except (ModuleNotFoundError, BrokenRunError) as error:
        log(f"no {CURVE_FILE}: {error}")


def _copy_video(run_dir: RunDir, folder: Path, log: Log) -> None:
    video = run_dir.find_last_video() or run_dir.path / VIDEO_FILE  # the latter of a shared run
    if not video.is_file():
        log(f"no {VIDEO_FILE}: the run has no video")
        return
    try:
        write_new_file(folder / VIDEO_FILE, [read_bounded(video, max_bytes=MAX_MEDIA_BYTES)])
    except OSError as error:
        log(f"no {VIDEO_FILE}: {error}")


def _export(folder: Path, own_task: str | None, log: Log) -> None:
    """Export the policy of the written checkpoint, or log why it cannot be exported."""
    try:
        from manyview.deploy.export import export_policy

        export_policy(folder, folder / EXPORT_DIR, own_task=own_task)
    except (ImportError, ValueError, RuntimeError) as error:
        remove(folder / EXPORT_DIR)
        log(f"no exported policy: {error}")


def _list_private_texts(config: RunConfig, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values that look like paths of this machine, such as an argument of your own task."""
    home = str(Path.home())
    texts = (config.task, json.dumps(manifest.get("settings")))
    for text in texts:
        if home in text and home != "/":
            yield sanitize_text(text)
