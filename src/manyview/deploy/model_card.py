"""Model card of a shared run: README.md with the front matter that the Hugging Face hub reads."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from shlex import quote
from typing import Any

from manyview.config.schema import RunConfig
from manyview.deploy.shared_files import CURVE_FILE, EXPORT_DIR, VIDEO_FILE
from manyview.report.statistics import bootstrap_interval
from manyview.report.train_command import TrainCommand
from manyview.runtime.spec import PolicySpec
from manyview.training.counters import Counters
from manyview.utils.text import sanitize_text

LOCAL_FOLDER = "path/to/this/folder"
Evaluation = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class CardFigures:
    """Everything that a card shows."""

    config: RunConfig
    manifest: Mapping[str, Any]
    counters: Counters
    """Progress at the shared checkpoint."""
    evaluations: Sequence[Evaluation]
    choice: str
    """Choice of the checkpoint: `last`, `best` or a name."""
    command: TrainCommand
    files: frozenset[str]
    """Names in the folder, of which the card shows curve and video."""
    repository: str | None
    """Name on the hub; None for a folder."""

    @property
    def evaluation(self) -> Evaluation | None:
        """The newest evaluation up to the shared checkpoint."""
        earlier = [evaluation for evaluation in self.evaluations if evaluation["frames"] <= self.counters.frames]
        return earlier[-1] if earlier else None

    @property
    def views(self) -> list[str]:
        """Names of the policy's views, as far as the manifest has them."""
        views = self.manifest.get("views")
        return [sanitize_text(view) for view in views] if isinstance(views, list) else []


def default_pull_folder(repository: str) -> str:
    """Return the folder of `manyview hub pull` without --out."""
    return f"runs/hub/{repository}"


def format_card(figures: CardFigures) -> str:
    """Return the text of the card."""
    title = _format_code(figures.config.method), _format_code(figures.config.task)
    sections = (
        _format_front_matter(figures),
        f"# {title[0]} on {title[1]}",
        "A policy for several cameras, trained with manyview.",
        *_list_images(figures),
        "## Results",
        _format_table(("figure", "value"), _list_results(figures)),
        *_list_remarks(figures),
        "## Use",
        _format_usage(figures),
        *_list_inputs(figures),
        "## Training",
        f"```bash\n{figures.command.text}\n```",
        *_list_differences(figures.command),
    )
    return "\n\n".join(sections) + "\n"


def _format_front_matter(figures: CardFigures) -> str:
    """Return the front matter; JSON values are valid there, and quote any text of the run."""
    config = figures.config
    parts = [part for part in config.method.split("+") if part != "none"]
    tags = ["reinforcement-learning", "multi-view", "robotics", *parts, config.task]
    fields: dict[str, Any] = {
        "library_name": "manyview",
        "pipeline_tag": "reinforcement-learning",
        "tags": [*dict.fromkeys(map(sanitize_text, tags))],
    }
    if figures.evaluation is not None:
        fields["model-index"] = [{"name": config.method, "results": [_build_result(config, figures.evaluation)]}]
    return "\n".join(["---", *(f"{name}: {json.dumps(value)}" for name, value in fields.items()), "---"])


def _build_result(config: RunConfig, evaluation: Evaluation) -> dict[str, Any]:
    task = sanitize_text(config.task)
    name = f"return, {_format_return(evaluation)}"
    return {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"type": task, "name": task},
        "metrics": [{"type": "mean_reward", "value": round(float(evaluation["return"]), 4), "name": name}],
    }


def _list_images(figures: CardFigures) -> Iterator[str]:
    if VIDEO_FILE in figures.files:
        yield f"[Video of an episode]({VIDEO_FILE})"
    if CURVE_FILE in figures.files:
        yield f"![Evaluation return over simulator frames]({CURVE_FILE})"


def _list_results(figures: CardFigures) -> Iterator[tuple[str, str]]:
    config, manifest, counters, evaluation = figures.config, figures.manifest, figures.counters, figures.evaluation
    if evaluation is None:
        yield "return", "no evaluation"
    else:
        yield "return", _format_return(evaluation)
        yield "evaluated after", f"{evaluation['frames']:,} simulator frames"
    yield (
        "checkpoint",
        f"{counters.frames:,} simulator frames, {counters.steps:,} agent steps, {counters.updates:,} updates",
    )
    yield "length of the run", f"{config.schedule.frames:,} simulator frames"
    yield "seed", f"{config.seed} (one run)"
    if evaluation is not None and "seconds" in evaluation:
        yield "wall time", f"{timedelta(seconds=round(evaluation['seconds']))} until this evaluation"
    yield "task", _format_code(config.task)
    yield "views", ", ".join(map(_format_code, figures.views)) or "see config.json"
    yield (
        "method",
        (
            f"agent {_format_code(config.agent_name)}, representation {_format_code(config.representation_name)}, "
            f"bonus {_format_code(config.bonus_name)}"
        ),
    )
    for name in ("parameters", "device", "commit"):
        if manifest.get(name) is not None:
            yield name, _format_code(manifest[name])
    versions = manifest.get("versions")
    if isinstance(versions, Mapping):
        yield (
            "versions",
            ", ".join(f"{sanitize_text(name)} {sanitize_text(number)}" for name, number in versions.items()),
        )


def _list_remarks(figures: CardFigures) -> Iterator[str]:
    yield (
        "The interval is a 95 % bootstrap interval over the episodes of one evaluation of one run.\n"
        "It says nothing about other seeds."
    )
    if figures.choice == "best":
        yield (
            "The checkpoint is the best evaluated one of those that the run has kept.\n"
            "This biases its return upwards.\n"
            "Evaluate it again for an unbiased figure."
        )


def _format_return(evaluation: Evaluation) -> str:
    """Return mean, interval and episodes, such as `812.4, 95 % interval 790.1 to 833.0, 10 episodes`."""
    returns = evaluation.get("returns")
    mean = f"{evaluation['return']:.4g}"
    if not isinstance(returns, list) or not returns:
        return mean
    if len(returns) < 2:
        return f"{mean}, 1 episode"
    low, high = bootstrap_interval(returns)
    return f"{mean}, 95 % interval {low:.4g} to {high:.4g}, {len(returns)} episodes"


def _format_usage(figures: CardFigures) -> str:
    repository = figures.repository
    folder = LOCAL_FOLDER if repository is None else default_pull_folder(repository)
    python = ["import manyview", f"policy = manyview.load({json.dumps(folder)})", "action = policy.act(observation)"]
    own_task = f" --own-task {quote(sanitize_text(figures.config.task))}" if ":" in figures.config.task else ""
    shell = [f"manyview evaluate {folder}{own_task}"]
    if repository is not None:
        shell.insert(0, f"manyview hub pull {repository}")
    if EXPORT_DIR in figures.files:
        shell.append(f"ls {folder}/{EXPORT_DIR}  # policy.onnx and policy.json, for robots without torch")
    return "\n".join(["```bash", *shell, "```", "", "```python", *python, "```"])


def _list_inputs(figures: CardFigures) -> Iterator[str]:
    """Yield a table of the entries of an observation; nothing for a run of an earlier version."""
    try:
        spec = PolicySpec.from_plain(figures.manifest.get("policy"))
    except ValueError:
        return
    shapes: dict[str, tuple[Any, ...]] = {view.name: ("uint8", *view.shape) for view in spec.views}
    if spec.resize is not None:
        shapes = {view.name: ("uint8", "height", "width", view.channels) for view in spec.views}
    shapes |= {vector.name: ("float32", vector.size) for vector in spec.vectors}
    yield "`observation` has the newest value of each camera and state vector; leave out a camera that fails."
    rows = ((_format_code(name), kind, " x ".join(map(str, sizes))) for name, (kind, *sizes) in shapes.items())
    yield _format_table(("entry", "type", "shape"), rows)


def _list_differences(command: TrainCommand) -> Iterator[str]:
    base = "the defaults of the method" if command.preset is None else f"the preset {_format_code(command.preset)}"
    if not command.differences:
        yield f"No setting differs from {base}."
        return
    yield f"Settings that differ from {base}:"
    rows = ((_format_code(name), *map(_format_value, values)) for name, values in command.differences.items())
    yield _format_table(("setting", "preset" if command.preset else "default", "this run"), rows)


def _format_table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in lines)


def _format_value(value: Any) -> str:
    return _format_code(json.dumps(value))


def _format_code(value: object) -> str:
    """Return text as inline code; it cannot end the code or the line."""
    return f"`{sanitize_text(value).replace('`', ' ')}`"
