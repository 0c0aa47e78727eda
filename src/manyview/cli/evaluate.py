"""`manyview evaluate`: how good the agent of a run is, also with some of its cameras only."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, arg

from manyview.cli.arguments import FAILED, INTERRUPTED, refuse, say
from manyview.envs.layers.boundary import ContractError, EnvError
from manyview.envs.suite import Levels
from manyview.report.curves import read_curve
from manyview.report.episodes import Played, play
from manyview.report.runs import BrokenRunError
from manyview.report.statistics import counted, interval_of_mean, mean_in_words
from manyview.train.film import write_film


def evaluate(
    run: Positional[Annotated[Path, arg(metavar="RUN", help="The folder of a run; `manyview runs` lists them.")]],
    *,
    episodes: Annotated[int, arg(metavar="N", help="How many to play.")] = 20,
    views: Annotated[
        tuple[str, ...] | None,
        arg(
            metavar="CAMERA ...",
            help="Only these cameras are present, the others masked; <camera>_foreground goes with its camera.",
            help_behavior_hint="(default: all)",
        ),
    ] = None,
    video: Annotated[
        Path | None,
        arg(metavar="FILE", help="Where to write a video of the first episode, .mp4 or .gif.", help_behavior_hint=""),
    ] = None,
    seed: Annotated[
        int | None,
        arg(metavar="N", help="Of the starts of the episodes.", help_behavior_hint="(default: that of the run)"),
    ] = None,
    levels: Annotated[
        Levels | None,
        arg(
            metavar="train|test", help="Of Procgen: the training levels, or all.", help_behavior_hint="(default: train)"
        ),
    ] = None,
    own_task: Annotated[
        str | None,
        arg(
            metavar="MODULE:FUNCTION",
            help="The task of a run on your own environment. It is code, so the run's word is not enough.",
            help_behavior_hint="",
        ),
    ] = None,
    as_json: Annotated[bool, FlagCreatePairsOff, arg(name="json", help="Print a JSON object instead.")] = False,
) -> int:
    """Play episodes without exploring with the newest checkpoint of a run."""
    try:
        filmed = video is not None
        played = play(run, episodes=episodes, cameras=views, seed=seed, filmed=filmed, own_task=own_task, levels=levels)
        if video is not None and played.evaluation.film is not None:
            film, config = played.evaluation.film, played.config
            write_film(video, film, played.views, config=config, frames=played.frames, beta=played.beta)
    except (EnvError, ContractError) as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (ValueError, TypeError, ImportError, OSError, RuntimeError) as error:
        return refuse(error)
    trained = last_return(run, levels)
    if as_json:
        print(json.dumps(facts(played, trained), indent=2))
    else:
        print_words(played, trained)
        if video is not None:
            print(f"written to {video}")
    return 0


def last_return(run: Path, levels: Levels | None) -> float | None:
    """Of its last evaluation in training, on these levels; None if its records do not tell."""
    try:
        returns = read_curve(run, "frames", "test_levels" if levels == "test" else "evaluations").returns
    except BrokenRunError:
        return None
    return float(returns[-1]) if len(returns) else None


def facts(played: Played, trained: float | None) -> dict[str, Any]:
    returns = played.evaluation.returns
    return {
        "task": played.config.task,
        "method": played.config.method,
        "frames": played.frames,
        "views": list(played.present),
        "levels": played.levels,
        "mean": played.evaluation.mean_return,
        "interval": None if len(returns) < 2 else [float(end) for end in interval_of_mean(returns)],
        "returns": returns,
        "cut": played.evaluation.cut,
        "last_return_in_training": trained,
    }


def print_words(played: Played, trained: float | None) -> None:
    returns, masked = played.evaluation.returns, [v.name for v in played.views if v.name not in played.present]
    say(f"{played.config.task}, {played.config.method}, after {played.frames:,} frames of training")
    say(f"views        {', '.join(played.present)}" + (f" (masked: {', '.join(masked)})" if masked else ""))
    if played.levels is not None:
        print(f"levels       {played.levels}")
    print(f"return       {mean_in_words(returns)}")
    print(f"             min {min(returns):.1f}, max {max(returns):.1f}, of {counted(len(returns), 'episode')}")
    if cut := played.evaluation.cut:
        limit = played.config.evaluation.max_steps
        print(f"cut          {cut} of them, after {limit:,} steps (evaluation.max_steps of the run)")
    print(f"in training  {'no evaluation' if trained is None else f'{trained:.1f}, its last evaluation'}")
