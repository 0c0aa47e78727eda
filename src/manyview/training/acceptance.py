"""Acceptance of a device: speed, precision, resume and learning on it, as one report to send back.

A section measures one thing and fills in its figures as it goes. It raises `SectionSkippedError` or
`SectionFailedError` with a reason; any other exception is a failure too, and the next section runs all the same.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from traceback import format_exc
from typing import Any, Literal

import torch

from manyview.config.overrides import apply_overrides, merge_overrides
from manyview.config.presets import load_preset
from manyview.config.schema import RunConfig
from manyview.nn.module_state import find_differences
from manyview.training import factory
from manyview.training.callbacks import CallbackLogger
from manyview.training.checkpoint import load_newest_checkpoint
from manyview.training.dry_run import estimate_run
from manyview.training.evaluation import evaluate_policy
from manyview.training.manifest import create_manifest
from manyview.training.run_dir import RunDir
from manyview.training.runner import Runner, make_trainer
from manyview.training.signals import StopRequest
from manyview.training.update_benchmark import BareNetworks, MEMUpdate, time_alternating
from manyview.utils.optional_imports import import_optional
from manyview.utils.text import format_bytes, sanitize_text

Status = Literal["ok", "failed", "skipped"]
Figures = dict[str, Any]
VIEWS, BATCH, QUICK_BATCH = 3, 256, 8
MAX_ERRORS = {"bfloat16": 0.02, "compile": 0.005}
"""Largest relative error of state, loss and r̂ against float32 without compilation.

bfloat16 has 8 bits; TF32, which cuDNN may choose in one of two float32 versions, has 11.
"""
TOY, DMC_TASK, METHOD = "toy/hidden_goal_continuous", "dmc/ball_in_cup_catch", "drqv2+mem"
PAPER_TASK, PAPER_PRESET = "dmc/cheetah_run", "paper/dmc/drqv2"
"""First run of the paper's first figure of results."""
MIN_TOY_SCORE, LEARNING_S, PROGRESS_S = 0.9, 300.0, 10.0


class SectionSkippedError(Exception):
    """The section cannot run here, for a reason that is no fault of the device."""


class SectionFailedError(Exception):
    """A check of the section does not hold."""


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Device under test, and how the sections work and report."""

    device: torch.device
    quick: bool = False
    """Shorten all sections to seconds; sizes are then not the paper's and scores are not checked."""
    log: Callable[[str], None] = print
    """Receives lines of progress."""

    @property
    def batch(self) -> int:
        return QUICK_BATCH if self.quick else BATCH

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 10

    @property
    def resume_frames(self) -> int:
        return 60 if self.quick else 1000

    def make_config(self, preset: str, task: str, overrides: Mapping[str, Any]) -> RunConfig:
        """Return the config of a run on the device."""
        config = load_preset(preset, task=task, method=METHOD, seed=1)
        device = {"compute": {"device": str(self.device)}}
        sizes = {"replay": {"batch_size": QUICK_BATCH}} if self.quick else {}
        return apply_overrides(config, merge_overrides({**device, **sizes}, dict(overrides)))


@dataclass
class SectionResult:
    """Outcome of one section, as it is in the report."""

    name: str
    title: str
    status: Status = "skipped"
    reason: str = "not reached"
    seconds: float = 0.0
    figures: Figures = field(default_factory=dict)
    traceback: str = ""


def describe_machine(acceptance: Acceptance, figures: Figures) -> None:
    """Versions and device."""
    config = acceptance.make_config("minute", TOY, {})
    names = ("python", "platform", "versions", "commit", "cpu", "device", "threads", "numerics", "environment")
    manifest = create_manifest(config, renderer=None)
    figures |= {name: manifest[name] for name in names}
    if acceptance.device.type == "cuda":
        properties = torch.cuda.get_device_properties(acceptance.device)
        figures |= {
            "device_name": properties.name,
            "device_memory": format_bytes(properties.total_memory),
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }


def measure_speed(acceptance: Acceptance, figures: Figures) -> None:
    """Speed of an update at the paper's size against its bare networks."""
    update = MEMUpdate(views=VIEWS, batch=acceptance.batch, device=acceptance.device)
    update_s, bare_s = time_alternating(update, BareNetworks(update), rounds=acceptance.rounds)
    figures |= {"views": VIEWS, "batch": acceptance.batch, "update_ms": 1e3 * update_s, "bare_ms": 1e3 * bare_s}
    figures |= {"ratio": update_s / bare_s, "updates_per_s": 1 / update_s}


def check_bfloat16(acceptance: Acceptance, figures: Figures) -> None:
    """Error and gain of bfloat16 against float32."""
    _compare_updates(acceptance, figures, "bfloat16")


def check_compile(acceptance: Acceptance, figures: Figures) -> None:
    """Error and gain of a compiled encoder against the same without compilation."""
    _compare_updates(acceptance, figures, "compile")


def _compare_updates(acceptance: Acceptance, figures: Figures, change: str) -> None:
    """Compare outputs and time of a changed update with those of float32 without compilation."""
    reference, update = (
        MEMUpdate(
            views=VIEWS,
            batch=acceptance.batch,
            device=acceptance.device,
            bfloat16=name == "bfloat16",
            compiled=name == "compile",
        )
        for name in ("", change)
    )
    expected, outputs, limit = reference.compute_outputs(), update.compute_outputs(), MAX_ERRORS[change]
    errors = {
        key: float((outputs[key] - value).double().norm() / value.double().norm()) for key, value in expected.items()
    }
    figures |= {f"error_{key}": error for key, error in errors.items()} | {"max_error": limit}
    reference_s, update_s = time_alternating(reference, update, rounds=acceptance.rounds)
    figures |= {"update_ms": 1e3 * update_s, "float32_update_ms": 1e3 * reference_s, "gain": reference_s / update_s}
    wrong = [f"{key} {error:.2g}" for key, error in errors.items() if not error <= limit]  # NaN is wrong too
    if wrong:
        raise SectionFailedError(f"relative error of {', '.join(wrong)}: expected at most {limit}")


def check_resume(acceptance: Acceptance, figures: Figures) -> None:
    """Resume of a stopped run, compared bit for bit with a run that was never stopped."""
    frames = acceptance.resume_frames
    with TemporaryDirectory(prefix="manyview-acceptance-") as directory:
        never_stopped = _train_to_end(acceptance, Path(directory, "never_stopped"))
        _train(acceptance, Path(directory, "stopped"), stop_at=frames // 2)
        acceptance.log("stopped the run, resuming it")
        resumed = _train_to_end(acceptance, Path(directory, "stopped"))
        differences = find_differences(never_stopped, resumed)
        figures |= {"frames": frames, "stopped_at": frames // 2, "differences": len(differences)}
        if not differences:
            return
        acceptance.log("the states differ: training once more without a stop")
        again = find_differences(never_stopped, _train_to_end(acceptance, Path(directory, "again")))
    figures["differences_without_stop"] = len(again)
    cause = (
        "two runs without a stop differ too: the device is not deterministic" if again else "the resume is not exact"
    )
    raise SectionFailedError(f"{cause}; first differences: {', '.join(differences[:5])}")


def _train_to_end(acceptance: Acceptance, directory: Path) -> Any:
    """Train or resume the toy; return its last state, without clocks."""
    _train(acceptance, directory, stop_at=math.inf)
    state = load_newest_checkpoint(RunDir(directory).checkpoints_dir)[1].state
    return {name: value for name, value in state.items() if name != "runner"}


def _train(acceptance: Acceptance, directory: Path, *, stop_at: float) -> None:
    frames = acceptance.resume_frames
    overrides = {
        "schedule": {"frames": frames, "random_steps": 10, "seed_frames": 20},
        "evaluation": {"every_frames": frames, "episodes": 1},
        "logging": {"every_steps": 10, "checkpoint_every_frames": frames},
    }
    config = acceptance.make_config("minute", TOY, overrides)
    stop = CallbackLogger(lambda record: record["frames"] >= stop_at)
    with Runner(config, RunDir(directory), loggers=[stop], stop=StopRequest()) as runner:
        runner.run()


def learn_toy(acceptance: Acceptance, figures: Figures) -> None:
    """Learning of a toy task."""
    schedule = {"frames": 60, "random_steps": 10, "seed_frames": 20}
    overrides = {"schedule": schedule, "evaluation": {"episodes": 2}} if acceptance.quick else {}
    config = acceptance.make_config("minute", TOY, overrides)
    _learn(acceptance, config, figures, max_s=LEARNING_S)
    figures["min_score"] = MIN_TOY_SCORE
    score = figures["reward_per_step"]
    if not acceptance.quick and not score >= MIN_TOY_SCORE:
        raise SectionFailedError(f"reward per step: expected at least {MIN_TOY_SCORE}, got {score:.3g}")


def learn_dmc(acceptance: Acceptance, figures: Figures) -> None:
    """Learning of a control task for some minutes; its return is only reported."""
    _check_dmc()
    overrides = {"schedule": {"random_steps": 20, "seed_frames": 100}} if acceptance.quick else {}
    config = acceptance.make_config("cpu", DMC_TASK, overrides)
    _learn(acceptance, config, figures, max_s=2.0 if acceptance.quick else LEARNING_S, episodes=1)


def forecast_paper_run(acceptance: Acceptance, figures: Figures) -> None:
    """Hours and memory of the first run of the paper's first figure, by its dry run."""
    _check_dmc()
    estimate = estimate_run(acceptance.make_config(PAPER_PRESET, PAPER_TASK, {}))
    figures |= {"task": PAPER_TASK, "method": METHOD, "preset": PAPER_PRESET, "hours": estimate.seconds / 3600}
    figures |= {"step_ms": 1e3 * estimate.step_s, "update_ms": 1e3 * estimate.update_s}
    figures |= {"replay": format_bytes(estimate.data_bytes), "free_memory": format_bytes(estimate.free_bytes)}


def _check_dmc() -> None:
    try:
        import_optional("dm_control", extra="dmc")
    except ImportError as error:
        raise SectionSkippedError(str(error)) from None


def _learn(
    acceptance: Acceptance, config: RunConfig, figures: Figures, *, max_s: float, episodes: int | None = None
) -> None:
    """Train to the end of the schedule or for `max_s` seconds, then evaluate."""
    with closing(make_trainer(config)) as trainer, closing(factory.make_env(config)) as env:
        start_s = report_s = perf_counter()
        while not trainer.is_done and perf_counter() - start_s < max_s:
            trainer.advance()
            if perf_counter() - report_s > PROGRESS_S:
                report_s = perf_counter()
                acceptance.log(f"{config.task}: {trainer.counters.frames:,} of {config.schedule.frames:,} frames")
        seconds, counters = perf_counter() - start_s, trainer.counters
        figures |= {"task": config.task, "method": config.method, "frames": counters.frames}
        figures |= {"updates": counters.updates, "skipped_updates": counters.skipped_updates}
        figures |= {"frames_per_s": counters.frames / seconds}
        count = episodes or config.evaluation.episodes
        played = evaluate_policy(trainer.agent, env, trainer.shapes, episodes=count, seed=0, step=counters.steps)
    figures |= {"return": played.mean_return, "reward_per_step": sum(played.returns) / sum(played.steps)}
    if not counters.updates or counters.skipped_updates:
        raise SectionFailedError(
            f"expected updates with finite gradients, got {counters.updates} and {counters.skipped_updates} skipped"
        )


Section = Callable[[Acceptance, Figures], None]
SECTIONS: dict[str, Section] = {
    "machine": describe_machine,
    "speed": measure_speed,
    "bfloat16": check_bfloat16,
    "compile": check_compile,
    "resume": check_resume,
    "toy": learn_toy,
    "dmc": learn_dmc,
    "forecast": forecast_paper_run,
}


def run_sections(acceptance: Acceptance) -> Iterator[list[SectionResult]]:
    """Run all sections; yield the results after each, with those that are not reached yet as skipped."""
    results = [SectionResult(name, (section.__doc__ or name).split("\n")[0]) for name, section in SECTIONS.items()]
    for result in results:
        acceptance.log(f"{result.name}: {result.title}")
        start_s = perf_counter()
        result.status, result.reason = _run_section(SECTIONS[result.name], acceptance, result)
        result.seconds = perf_counter() - start_s
        acceptance.log(f"{result.name}: {result.status}{f', {result.reason}' if result.reason else ''}")
        yield results


def _run_section(section: Section, acceptance: Acceptance, result: SectionResult) -> tuple[Status, str]:
    try:
        section(acceptance, result.figures)
    except SectionSkippedError as reason:
        return "skipped", str(reason)
    except SectionFailedError as reason:
        return "failed", str(reason)
    except Exception as error:  # a driver may raise anything; the report tells the rest
        result.traceback = format_exc()
        return "failed", sanitize_text(f"{type(error).__name__}: {error}")
    return "ok", ""
