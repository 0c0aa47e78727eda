"""Recurrent state of acting: episode starts, checkpoints and evaluations."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from manyview.methods.recurrent import Memory
from manyview.training import factory
from manyview.training.evaluation import evaluate_policy
from manyview.training.off_policy import OffPolicyTrainer
from tests.support.batches import make_agent as make_feed_forward_agent
from tests.support.checkpoints import train_and_resume
from tests.support.runs import make_short_config
from tests.unit.methods.representations.test_dribo import make_agent, make_batch, make_dribo


def make_config(**changes: Any) -> Any:
    representation = {"sequence_length": 4, "deterministic_dim": 8, "stochastic_dim": 4, "hidden": 8}
    return make_short_config(
        "sac+dribo",
        task="toy/cue_continuous",
        representation=representation,
        schedule={"random_steps": 6, "seed_frames": 20, "frames": 100},
        **changes,
    )


def get_memory(agent: Any) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in agent.memory.get().items()}


def record_empty_memory(agent: Any) -> list[bool]:
    """Return a list that records at each action whether the memory is empty."""
    act, is_empty = agent.act, list[bool]()

    def record(*args: Any, **options: Any) -> Any:
        is_empty.append(all(bool((buffer == 0).all()) for buffer in agent.memory.buffers()))
        return act(*args, **options)

    agent.act = record
    return is_empty


def test_a_reset_clears_the_memory_of_selected_environments() -> None:
    memory = Memory(make_dribo(), 3)
    names = {"deterministic", "stochastic", "previous_action"}
    assert memory.get().keys() == names
    memory.store(**{name: torch.ones_like(buffer) for name, buffer in memory.get().items()})
    memory.reset(torch.tensor([False, True, False]))
    for buffer in memory.buffers():
        assert buffer.amax(1).tolist() == [1, 0, 1]
    memory.reset()
    assert all((buffer == 0).all() for buffer in memory.buffers())


def test_acting_one_step_after_another_is_encoding_the_sequence() -> None:
    agent, batch = make_agent(), make_batch((3, 3))
    views, mask = batch.views.unflatten(0, (2, 3)), batch.mask.unflatten(0, (2, 3))
    with agent.use_new_memory(2):
        actions = [agent.act(views[:, time], mask[:, time], step=0, explore=False) for time in range(3)]
        state = {name: torch.zeros(2, size) for name, size in agent.representation.memory_sizes.items()}
        previous = state.pop("previous_action")
        for time in range(3):
            state, features = agent.representation.step(state, views[:, time], mask[:, time], previous)
            previous = agent.actor(features.state).chunk(2, dim=1)[0].tanh()
            torch.testing.assert_close(actions[time], previous)
        for name, value in {**state, "previous_action": previous}.items():
            torch.testing.assert_close(agent.memory.get()[name], value)


def test_environments_do_not_see_each_others_memory() -> None:
    agent, batch = make_agent(), make_batch((4,))
    other = batch.views.clone()
    other[:, :] = 255 - other
    results = []
    for neighbors in (batch.views, other):
        with agent.use_new_memory(2):
            for time in range(4):
                views = torch.stack([batch.views[time], neighbors[time]])
                action = agent.act(views, batch.mask[:2], step=0, explore=False)
            results.append(action[0])
    assert torch.equal(*results)


def test_the_memory_of_a_feed_forward_policy_is_empty_and_not_saved() -> None:
    agent = make_feed_forward_agent("sac", "pixel")
    assert not agent.memory.get()
    assert not [name for name in agent.get_state()["tensors"] if "memory" in name]
    agent.act(make_batch().views, make_batch().mask, step=0, explore=True)


def test_the_collector_starts_each_episode_with_an_empty_memory() -> None:
    trainer = OffPolicyTrainer(make_config())
    is_empty = record_empty_memory(trainer.agent)
    for _ in range(24):
        trainer.advance()
    # Episodes of four steps; the policy acts from step 6 on.
    assert is_empty == [step % 4 == 0 or step == 6 for step in range(6, 24)]
    trainer.close()


def test_an_evaluation_leaves_the_memory_as_it_was_and_has_its_own() -> None:
    config = make_config()
    trainer, env = OffPolicyTrainer(config), factory.make_env(config)
    for _ in range(22):
        trainer.advance()
    before, state = get_memory(trainer.agent), trainer.agent.get_state()
    assert all((buffer != 0).any() for buffer in before.values())
    is_empty = record_empty_memory(trainer.agent)
    evaluate_policy(trainer.agent, env, trainer.shapes, episodes=3, seed=0, step=0)
    assert is_empty == 3 * [True, False, False, False], "each episode starts with an empty memory"
    after = trainer.agent.get_state()
    assert all(torch.equal(value, after["tensors"][name]) for name, value in state["tensors"].items())
    assert all(torch.equal(value, after["generators"][name]) for name, value in state["generators"].items())
    trainer.close()
    env.close()


def test_a_failed_evaluation_returns_the_memory_too() -> None:
    agent = make_agent()
    memory = agent.memory
    with pytest.raises(KeyError), agent.use_new_memory(4):
        raise KeyError
    assert agent.memory is memory


def test_a_run_resumes_in_mid_episode_with_its_memory(tmp_path: Path) -> None:
    trainer, resumed = train_and_resume(make_config(), tmp_path, steps=22)
    before = get_memory(trainer.agent)
    assert all((buffer != 0).any() for buffer in before.values()), "in the middle of an episode"
    assert all(torch.equal(buffer, before[name]) for name, buffer in get_memory(resumed.agent).items())
    for _ in range(7):
        trainer.advance()
        resumed.advance()
    for name, value in trainer.agent.get_state()["tensors"].items():
        assert torch.equal(value, resumed.agent.get_state()["tensors"][name]), name
    trainer.close()
    resumed.close()


def test_a_rollback_keeps_the_memory_of_the_running_episodes() -> None:
    agent, batch = make_agent(), make_batch()
    state = agent.get_state()
    agent.act(batch.views[:1], batch.mask[:1], step=0, explore=True)
    memory = get_memory(agent)
    agent.rollback(state)
    assert all(torch.equal(buffer, memory[name]) for name, buffer in agent.memory.get().items())
