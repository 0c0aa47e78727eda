"""What `manyview train --dry-run` prints."""

import json
from datetime import timedelta

from manyview.cli.arguments import print_line
from manyview.train.folder import RunDir
from manyview.train.plan import RunEstimate
from manyview.train.tree import to_plain
from manyview.utils.text import format_bytes


def print_estimate(estimate: RunEstimate, run_dir: RunDir) -> None:
    """The settings as JSON that `--config` takes, then what the run will take."""
    print(json.dumps(to_plain(estimate.config), indent=2))
    print()
    config = estimate.config
    location = "in memory" if config.replay.folder is None else f"in {config.replay.folder}"
    data = (
        {
            "rollout": f"{format_bytes(estimate.data_bytes)} for {config.rollout.steps:,} steps of "
            f"{config.rollout.envs} environments"
        }
        if config.is_on_policy
        else {"replay": f"{format_bytes(estimate.data_bytes)} {location} for {config.replay.capacity:,} steps"}
    )
    rows = {
        "views": ", ".join(estimate.views),
        "parameters": f"{estimate.parameters:,}",
        **data,
        "other memory": f"{format_bytes(estimate.update_bytes)} for networks, their moments and an update",
        "free memory": format_bytes(estimate.free_bytes),
        "a step": f"{1000 * estimate.step_s:.3g} ms",
        "an update": f"{1000 * estimate.update_s:.3g} ms",
        "in all": f"{estimate.config.schedule.frames:,} frames, {estimate.steps:,.0f} steps, "
        f"{estimate.updates:,.0f} updates",
        "about": f"{timedelta(seconds=round(estimate.seconds))} on {estimate.config.machine.device}",
        "folder": str(run_dir.path),
    }
    for name, value in rows.items():
        print_line(f"{name:<14}{value}")
