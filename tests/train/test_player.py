"""Lines 4 to 14 of Algorithm 1: what the agent is asked, and when."""

from typing import Any

from torch import Tensor

from manyview.train.observe import to_tensors
from manyview.train.off_policy import OffPolicyTrainer
from tests.train.runs import short_run


def test_the_agent_acts_on_what_was_shown_last_and_learns_at_the_step_it_is_at() -> None:
    trainer: Any = OffPolicyTrainer(short_run(schedule={"random_steps": 20, "seed_frames": 30}))
    agent, replay = trainer.agent, trainer.replay
    shown: Any = [trainer.player.observation]
    asked: Any = []
    learned: Any = []
    begin, add, act, update = replay.begin, replay.add, agent.act, agent.update
    replay.begin = lambda seen: shown.append(seen) or begin(seen)
    replay.add = lambda *step: shown.append(step[-1]) or add(*step)
    agent.update = lambda batch, step: learned.append(step) or update(batch, step)

    def acted(views: Tensor, mask: Tensor, *, step: int, explore: bool) -> Any:
        asked.append(step)
        assert explore
        assert views.equal(to_tensors(shown[-1], trainer.shapes.views, trainer.device)[0])
        return act(views, mask, step=step, explore=explore)

    agent.act = acted
    for _ in range(40):
        trainer.advance()
    assert asked == list(range(20, 40))
    assert learned == list(range(30, 41))
