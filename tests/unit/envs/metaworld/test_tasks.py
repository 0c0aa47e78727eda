"""All fifty Meta-World tasks: cameras, rewards, physics and resets."""

import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from manyview.envs import MASK, get_views, make
from manyview.envs.metaworld.suite import CAMERAS, SUITE, TASK_NAMES
from tests.support.metaworld import ScriptedExpert, get_metaworld_env, make_small_env


def test_the_task_table_is_that_of_metaworld() -> None:
    assert {f"{name}-v3" for name in TASK_NAMES} == set(ALL_V3_ENVIRONMENTS)
    assert len(SUITE.tasks) == len(TASK_NAMES) == len(ALL_V3_ENVIRONMENTS)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_every_task_has_three_different_views_that_depend_on_the_seed(name: str) -> None:
    env = make(f"metaworld/{name}", render_quality="fast", frame_stack=1)
    model = get_metaworld_env(env)._simulator.model
    assert tuple(model.camera(number).name for number in range(model.ncam)) == CAMERAS
    observation, _ = env.reset(seed=0)
    assert observation[MASK].all()
    images = [observation[view.name] for view in get_views(env)]
    assert len(images) == 3
    assert all(image.std() > 5 for image in images), "a flat picture"
    assert len({image.tobytes() for image in images}) == 3
    other_observation, _ = env.reset(seed=1)
    assert any(not np.array_equal(other_observation[view.name], observation[view.name]) for view in get_views(env))
    env.close()


@pytest.mark.parametrize("name", TASK_NAMES)
def test_rewards_and_physics_are_those_of_metaworld(name: str) -> None:
    env = make_small_env(name)
    env.reset(seed=3)
    reference_env = ALL_V3_ENVIRONMENTS[f"{name}-v3"]()
    reference_env._set_task_called, reference_env._freeze_rand_vec, reference_env.seeded_rand_vec = True, False, True
    reference_env.seed(3)
    reference_env.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 4)).astype(np.float32)
    for action in actions:
        _, reward, *_, info = env.step(action)
        _, expected_reward, *_, expected_info = reference_env.step(action)
        assert reward == pytest.approx(expected_reward, rel=0, abs=0)
        assert info["success"] == bool(expected_info["success"])
    assert np.array_equal(get_metaworld_env(env)._simulator.data.qpos, reference_env.data.qpos)
    env.close()
    reference_env.close()


@pytest.mark.parametrize("name", TASK_NAMES)
def test_an_episode_does_not_depend_on_earlier_ones(name: str) -> None:
    """An expert changes more than random actions: it opens doors and moves objects."""
    env = make_small_env(name, action_repeat=5)
    env.reset(seed=1)
    expected_state = get_metaworld_env(env).get_physics_state()
    expert = ScriptedExpert(name, env)
    env.reset(seed=2)
    for _ in range(40):
        env.step(expert.act())
    env.reset(seed=1)
    assert np.array_equal(get_metaworld_env(env).get_physics_state(), expected_state)
    env.close()
