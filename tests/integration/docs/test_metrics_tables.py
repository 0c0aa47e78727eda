"""Every metric and every kind of record of a run is explained in docs/reference/metrics.md."""

import re
from pathlib import Path
from typing import get_args

import pytest

from manyview.config.method import parse_method
from manyview.training import make_trainer
from manyview.training.loggers import RecordKind
from tests.support.runs import make_short_config, make_short_rollout_config

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"
HEADINGS = {
    "drqv2": "### DrQ-v2",
    "sac": "### SAC",
    "ppo": "### PPO",
    "mem": "### MEM",
    "re3": "### RE3",
    "rnd": "### RND",
    "ride": "### RIDE",
    "icm": "### ICM and APT",
    "apt": "### ICM and APT",
    "vcse": "### VCSE",
    "curl": "### CURL",
    "dribo": "### DRIBO",
    "drac": "### DrAC",
    "ucb_drac": "### UCB-DrAC",
}
OWN_ENCODER_HEADING = "### MEM's bonus with its own encoder"


def read_section(heading: str) -> str:
    """Return the text below a heading, up to the next one of its level or above."""
    level = heading.count("#")
    _, separator, rest = PAGE.read_text().partition(f"\n{heading}\n")
    assert separator, f"{PAGE.name} has no heading {heading}"
    return re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.M)[0]


def read_explained_names(heading: str) -> set[str]:
    """Return the names in the first cells of the section's tables; `VIEW` stands for any view."""
    cells = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", read_section(heading), flags=re.M)
    return {name for cell in cells for name in re.findall("`([^`]+)`", cell)}


def collect_logged_names(method: str) -> set[str]:
    """Return the names in the `train` records of a run, without the clock and β."""
    if method.startswith("ppo"):
        config = make_short_rollout_config(method, rollout={"steps": 100})  # long enough for whole episodes
    else:
        config = make_short_config(method, bonus={"bank": 16} if method.endswith("+mem") else {})
    trainer = make_trainer(config)
    metrics = None
    while metrics is None:
        metrics = trainer.advance().metrics
    diagnostics = {re.sub("/.*", "/VIEW", name) for name in trainer.compute_diagnostics()}
    trainer.close()
    return set(metrics) | diagnostics


def read_method_names(method: str) -> set[str]:
    """Return the names that the page explains for the parts of a method."""
    agent, representation, bonus = parse_method(method)
    parts = [part for part in (agent, representation, bonus) if part not in ("pixel", "mad", "none")]
    names = set.union(*(read_explained_names(HEADINGS[part]) for part in parts))
    if bonus == "mem" != representation:
        encoder_names = read_explained_names(OWN_ENCODER_HEADING)
        names = names - {name.removeprefix("bonus_") for name in encoder_names} | encoder_names
    if agent == "ppo" or bonus != "mem":
        names -= {"drift"}  # needs a feature bank
    return names - ({"contrast"} if bonus == "none" else set())


@pytest.mark.parametrize(
    "method",
    [
        *("drqv2+mem", "drqv2+re3", "drqv2+rnd", "drqv2+curl", "drqv2+none", "drqv2+pixel+mem", "drqv2+mem+none"),
        *("sac+mem", "sac+mad", "sac+dribo", "sac+icm", "sac+apt", "sac+vcse"),
        *("ppo+mem", "ppo+ride", "ppo+icm", "ppo+none", "ppo+drac", "ppo+ucb_drac"),
    ],
)
def test_the_page_explains_what_is_logged_and_nothing_else(method: str) -> None:
    assert collect_logged_names(method) | {"beta"} == read_method_names(method)


def test_the_page_has_a_line_for_every_kind_of_record() -> None:
    shared_fields = {"kind", "frames", "steps", "updates", "seconds"}
    assert read_explained_names("## Records") == set(get_args(RecordKind)) | shared_fields
