"""Build the agent of a run from its config and a checkpoint, both untrusted."""

from pathlib import Path
from shlex import quote

from manyview.agents import Agent
from manyview.config.schema import RunConfig
from manyview.training import factory
from manyview.training.checkpoint import Checkpoint
from manyview.training.counters import Counters
from manyview.training.factory import Shapes


def check_trusted_task(task: str, trusted_task: str | None) -> None:
    """Raise `ValueError` for a custom task other than `trusted_task`: a run must not choose the code to execute."""
    if ":" in task and task != trusted_task:
        raise ValueError(
            f"task {task!r} is code that is not trusted: expected --own-task {quote(task)}, got {trusted_task!r}. Add "
            "the option if the code is yours"
        )


def build_saved_agent(config: RunConfig, shapes: Shapes, path: Path, saved: Checkpoint) -> tuple[Agent, Counters]:
    """Return the agent in the checkpoint read from `path`, and the counters of the run at that time.

    Raises `ValueError` if the checkpoint does not fit the config.
    """
    # Outline first: initializing weights of arbitrary size takes long, and a mismatch shows without them.
    _load_state(factory.build_agent_outline(config, shapes), path, saved)
    agent: Agent = factory.build_agent(config, shapes)
    return agent, _load_state(agent, path, saved)


def _load_state(agent: Agent, path: Path, saved: Checkpoint) -> Counters:
    state, counters = saved.state, Counters()
    try:
        agent.load_state(state["agent"])
        counters.load_state(state["counters"])
    except Exception as error:  # checksums match, but another version or an untrusted source wrote it
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"checkpoint {path} cannot be loaded: {reason}") from error
    return counters
