"""All fifty tasks."""

import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from manyview.envs import MASK, get_views, make
from manyview.envs.metaworld.suite import CAMERAS, SUITE, TASK_NAMES
from tests.support.metaworld import ScriptedExpert, get_metaworld_env, make_small_env


def test_the_table_is_metaworlds_own() -> None:
    assert {f"{name}-v3" for name in TASK_NAMES} == set(ALL_V3_ENVIRONMENTS)
    assert len(SUITE.tasks) == len(TASK_NAMES) == len(ALL_V3_ENVIRONMENTS)


@pytest.mark.parametrize("name", TASK_NAMES)
def test_every_task_shows_three_different_views_that_the_seed_decides(name: str) -> None:
    env = make(f"metaworld/{name}", render_quality="fast", frame_stack=1)
    model = get_metaworld_env(env)._simulator.model
    assert tuple(model.camera(number).name for number in range(model.ncam)) == CAMERAS
    observation, _ = env.reset(seed=0)
    assert observation[MASK].all()
    pictures = [observation[view.name] for view in get_views(env)]
    assert len(pictures) == 3
    assert all(picture.std() > 5 for picture in pictures), "a flat picture"
    assert len({picture.tobytes() for picture in pictures}) == 3
    other, _ = env.reset(seed=1)
    assert any(not np.array_equal(other[view.name], observation[view.name]) for view in get_views(env))
    env.close()


@pytest.mark.parametrize("name", TASK_NAMES)
def test_rewards_and_physics_are_metaworlds_own(name: str) -> None:
    env = make_small_env(name)
    env.reset(seed=3)
    bare = ALL_V3_ENVIRONMENTS[f"{name}-v3"]()
    bare._set_task_called, bare._freeze_rand_vec, bare.seeded_rand_vec = True, False, True
    bare.seed(3)
    bare.reset()
    actions = np.random.default_rng(0).uniform(-1, 1, (20, 4)).astype(np.float32)
    for action in actions:
        _, reward, *_, info = env.step(action)
        _, expected, *_, bare_info = bare.step(action)
        assert reward == pytest.approx(expected, rel=0, abs=0)
        assert info["success"] == bool(bare_info["success"])
    assert np.array_equal(get_metaworld_env(env)._simulator.data.qpos, bare.data.qpos)
    env.close()
    bare.close()


@pytest.mark.parametrize("name", TASK_NAMES)
def test_an_episode_owes_nothing_to_those_before_it(name: str) -> None:
    """An expert leaves more behind than random actions: doors stand open, things lie elsewhere."""
    env = make_small_env(name, action_repeat=5)
    env.reset(seed=1)
    fresh = get_metaworld_env(env).get_physics_state()
    expert = ScriptedExpert(name, env)
    env.reset(seed=2)
    for _ in range(40):
        env.step(expert.act())
    env.reset(seed=1)
    assert np.array_equal(get_metaworld_env(env).get_physics_state(), fresh)
    env.close()
