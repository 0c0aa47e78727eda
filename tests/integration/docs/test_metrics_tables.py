"""Every metric and every kind of record of a run is explained in docs/reference/metrics.md."""

import re
from pathlib import Path
from typing import get_args

import pytest

from manyview.mem import MEM
from manyview.train import make_trainer
from manyview.train.loggers import RecordKind
from tests.support.runs import short_rollouts, short_run

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
HEADINGS = {
    "drqv2": "### DrQ-v2",
    "sac": "### SAC",
    "ppo": "### PPO",
    "mem": "### MEM",
    "re3": "### RE3",
    "ride": "### RIDE",
    "curl": "### CURL",
}


def read_section(heading: str) -> str:
    """Return the text below a heading, up to the next one of its level or above."""
    level = heading.count("#")
    _, found, rest = PAGE.read_text().partition(f"\n{heading}\n")
    assert found, f"{PAGE.name} has no heading {heading}"
    return re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.M)[0]


def explained(heading: str) -> set[str]:
    """Return the names in the first cells of the section's tables; `VIEW` stands for any view."""
    cells = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", read_section(heading), flags=re.M)
    return {name for cell in cells for name in re.findall("`([^`]+)`", cell)}


def logged(method: str) -> set[str]:
    """What the `train` records of a run hold beside clock and β."""
    whole_episodes = {"steps": 100}
    trainer = make_trainer(
        short_rollouts(method, rollout=whole_episodes) if method.startswith("ppo") else short_run(method)
    )
    told = None
    while told is None:
        told = trainer.advance().metrics
    metrics = set(told)
    representation, looked = trainer.agent.representation, trainer.get_last_batch()
    if isinstance(representation, MEM) and looked is not None:
        health = representation.diagnose(representation.encode(looked.views, looked.mask), beta=0.0)
        metrics |= {re.sub("/.*", "/VIEW", name) for name in health.to_metrics()} | {"health"}
    trainer.close()
    return metrics


@pytest.mark.parametrize(
    "method", ["drqv2+mem", "drqv2+re3", "drqv2+curl", "drqv2+none", "sac+mem", "ppo+mem", "ppo+ride", "ppo+none"]
)
def test_the_page_explains_what_is_logged_and_nothing_else(method: str) -> None:
    headings = [HEADINGS[part] for part in method.split("+") if part != "none"]
    assert logged(method) | {"beta"} == set.union(*(explained(heading) for heading in headings))


def test_the_page_has_a_line_for_every_kind_of_record() -> None:
    shared_fields = {"kind", "frames", "steps", "updates", "seconds"}
    assert explained("## Records") == set(get_args(RecordKind)) | shared_fields
