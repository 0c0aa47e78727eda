"""`manyview views`: write an image or video of the views of a task."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.cli.arguments import EXIT_FAILED, report_error
from manyview.envs.contract import EnvError
from manyview.envs.registration import find_task, make
from manyview.envs.suite import RenderQuality
from manyview.envs.views import Observation, get_state_vectors, get_views
from manyview.envs.visualization import (
    RecordedStep,
    ViewSummary,
    check_video_file,
    compute_median_step_ms,
    draw_contact_sheet,
    draw_video_frames,
    record_random_steps,
    render_fault_rows,
    save_image,
    summarize_views,
    write_video,
)
from manyview.utils.output_paths import SHEET_SUFFIXES, check_output_file

TASK_DEFAULT = "(default: the task's)"


def views(
    task: Positional[
        Annotated[str, arg(metavar="TASK", help="Task, such as dmc/hopper_hop; `manyview tasks` lists all.")]
    ],
    *,
    out: Annotated[Path, arg(metavar="PNG", help="Write the contact sheet to this .png, .jpg or .webp file.")],
    views: Annotated[
        tuple[str, ...] | None,
        arg(metavar="NAME ...", help="Views: cameras, or <camera>_foreground.", help_behavior_hint=TASK_DEFAULT),
    ] = None,
    image_size: Annotated[
        int | None, arg(metavar="PIXELS", help="Side of a view in pixels.", help_behavior_hint=TASK_DEFAULT)
    ] = None,
    render_quality: Annotated[
        RenderQuality | None,
        arg(metavar="standard|fast|smooth", help="Render quality.", help_behavior_hint=TASK_DEFAULT),
    ] = None,
    render_scale: Annotated[
        int | None,
        arg(
            metavar="FACTOR",
            help="Render this many times larger and area-average, for small views.",
            help_behavior_hint="(default: 1, or 2 with smooth)",
        ),
    ] = None,
    steps: Annotated[
        int, arg(metavar="N", help="Number of random actions. The sheet shows at most six of the steps, a video all.")
    ] = 5,
    seed: Annotated[int, arg(metavar="N", help="Seed of the task and the actions.")] = 0,
    faults: Annotated[
        bool, FlagCreatePairsOff, arg(help="Also show the first camera with every kind of fault.")
    ] = False,
    video: Annotated[
        Path | None,
        arg(metavar="FILE", help="Write a video of all views to this .mp4 or .gif file.", help_behavior_hint=""),
    ] = None,
) -> int:
    """Show the views of a task during random actions."""
    if steps < 1:
        return report_error(f"--steps must be at least 1, got {steps}")
    try:
        check_output_file(out, SHEET_SUFFIXES)
        if video is not None:
            check_video_file(video)
    except (ValueError, ImportError, OSError) as error:
        return report_error(error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            env = make(
                task,
                views=views,
                image_size=image_size,
                render_quality=render_quality,
                render_scale=render_scale,
                frame_stack=1,
            )
        except EnvError as error:
            print(error, file=sys.stderr)
            return EXIT_FAILED
        except (ValueError, TypeError, ImportError) as error:
            return report_error(error)
        try:
            moments = record_random_steps(env, steps, seed=seed)
            fault_rows = render_fault_rows(env, steps, seed=seed) if faults else []
        except (ValueError, RuntimeError, MemoryError) as error:  # an invalid seed or size, or a failing driver
            return report_error(error)
        finally:
            env.close()
    view_specs = get_views(env)
    try:
        save_image(draw_contact_sheet(view_specs, moments, extra_rows=fault_rows, title=f"{task}, seed {seed}"), out)
        if video is not None:
            write_video(video, draw_video_frames(view_specs, moments, title=task))
    except (ValueError, ImportError, OSError) as error:
        return report_error(error)
    for warning in caught:
        print(f"warning: {warning.message}")
    print_summary(summarize_views(view_specs, moments), moments)
    if offered := list_state_names(task, env):
        print(f"state vectors on offer (env.state): {', '.join(offered)}")
    for path in (out, video):
        if path is not None:
            print(f"written to {path}")
    return 0


def list_state_names(task: str, env: gym.Env[Observation, Any]) -> tuple[str, ...]:
    """Return the names of the state vectors that a task, or your own environment, offers."""
    if ":" in task:
        return tuple(vector.name for vector in get_state_vectors(env))
    return find_task(task).state


def print_summary(summaries: Sequence[ViewSummary], moments: Sequence[RecordedStep]) -> None:
    """Print one line per view, and the time of a step with all views."""
    longest = max(len(summary.view.name) for summary in summaries)
    for summary in summaries:
        size = " x ".join(map(str, summary.view.shape))
        brightness = "no image" if summary.brightness is None else f"mean brightness {summary.brightness:.0f} of 255"
        print(f"{summary.view.name:<{longest}}  {size}, {brightness}, present {summary.present_fraction:.0%}")
    print(f"a step takes {compute_median_step_ms(moments):.3g} ms with all views")
