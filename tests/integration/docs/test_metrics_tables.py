"""Every metric of a run is explained on the page of its agent or method, every kind of record on the training page."""

import re
from pathlib import Path
from typing import get_args

import pytest

from manyview.mem import MEM
from manyview.train import make_trainer
from manyview.train.loggers import RecordKind
from tests.support.runs import short_rollouts, short_run

DOCS = Path(__file__).parents[3] / "docs"


def explained(page: str) -> set[str]:
    """The metrics in the first cells of the page's tables; `VIEW` stands for any view."""
    cells = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", (DOCS / page).read_text(), flags=re.M)
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
def test_the_pages_explain_what_is_logged_and_nothing_else(method: str) -> None:
    agent, *methods = method.split("+")
    pages = [f"agents/{agent}.md", *(f"methods/{name}.md" for name in methods)]
    assert logged(method) | {"beta"} == set.union(*(explained(page) for page in pages))


def test_the_training_page_has_a_line_for_every_kind_of_record() -> None:
    assert set(get_args(RecordKind)) <= explained("training.md")
