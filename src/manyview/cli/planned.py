"""What `manyview train --dry-run` prints."""

import json
from datetime import timedelta

from manyview.cli.arguments import say
from manyview.train.folder import RunFolder
from manyview.train.plan import Plan
from manyview.train.tree import to_plain


def print_plan(plan: Plan, folder: RunFolder) -> None:
    """The settings as JSON that `--config` takes, then what the run will take."""
    print(json.dumps(to_plain(plan.config), indent=2))
    print()
    config = plan.config
    where = "in memory" if config.replay.folder is None else f"in {config.replay.folder}"
    data = (
        {"rollout": f"{_gb(plan.data_bytes)} for {config.rollout.steps:,} steps of {config.rollout.envs} environments"}
        if config.on_policy
        else {"replay": f"{_gb(plan.data_bytes)} {where} for {config.replay.capacity:,} steps"}
    )
    rows = {
        "views": ", ".join(plan.views),
        "parameters": f"{plan.parameters:,}",
        **data,
        "other memory": f"{_gb(plan.update_bytes)} for networks, their moments and an update",
        "free memory": _gb(plan.free_bytes),
        "a step": f"{1000 * plan.step_s:.3g} ms",
        "an update": f"{1000 * plan.update_s:.3g} ms",
        "in all": f"{plan.config.schedule.frames:,} frames, {plan.steps:,.0f} steps, {plan.updates:,.0f} updates",
        "about": f"{timedelta(seconds=round(plan.seconds))} on {plan.config.machine.device}",
        "folder": str(folder.path),
    }
    for name, value in rows.items():
        say(f"{name:<14}{value}")


def _gb(count: int | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
