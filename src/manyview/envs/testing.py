"""Reusable tests of the environment contract.

    from manyview.envs.testing import EnvironmentContract

    class TestMyRobot(EnvironmentContract):
        def make_env(self):
            return manyview.wrap(MyRobot(), frame_stack=3)

Put this class into a test file and run pytest. `VectorContract` tests vector environments.
"""

import hashlib
import multiprocessing
import warnings
from multiprocessing.connection import Connection
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from manyview.envs.contract import ContractError
from manyview.envs.views import MASK, NotRestorable, Observation, get_dict_space, get_views, restore, snapshot


def hash_rollout(env: gym.Env[Observation, Any], steps: int, *, seed: int) -> str:
    """Return a hash of the observations, rewards and flags of random actions."""
    hasher = hashlib.sha256()
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    add_observation(hasher, observation)
    for _ in range(steps):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        add_observation(hasher, observation)
        hasher.update(repr((float(reward), terminated, truncated)).encode())
        if terminated or truncated:
            observation, _ = env.reset()
            add_observation(hasher, observation)
    return hasher.hexdigest()


def add_observation(hasher: Any, observation: Observation) -> None:
    """Update a hash with an observation."""
    for name in sorted(observation):
        hasher.update(name.encode() + np.ascontiguousarray(observation[name]).tobytes())


def are_equal(first: Observation, second: Observation) -> bool:
    """Return whether two observations have the same views and values."""
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


class EnvironmentContract:
    """Tests of a single environment; override `make_env` and differing attributes."""

    steps: ClassVar[int] = 20
    """Number of steps to compare."""
    max_episode_steps: ClassVar[int] = 1000
    """Maximum number of steps of an episode."""
    episode_end: ClassVar[Literal["terminated", "truncated", "either"]] = "either"
    """Flag that ends an episode under random actions."""
    seed_matters: ClassVar[bool] = True
    """True if different seeds give different episodes."""
    can_restore: ClassVar[bool] = True
    """True if the environment supports snapshots."""

    def make_env(self) -> gym.Env[Observation, Any]:
        """Return a new environment to test."""
        raise NotImplementedError("make_env is not implemented: override it to return the environment to test")

    @pytest.fixture
    def env(self) -> Any:
        env = self.make_env()
        yield env
        env.close()

    def test_the_space_is_named_uint8_views_and_a_mask(self, env: gym.Env[Observation, Any]) -> None:
        views, vectors, space = get_views(env), env.metadata.get("state_vectors", ()), get_dict_space(env)
        assert list(space.spaces) == [*(view.name for view in views), *(vector.name for vector in vectors), MASK]
        assert space[MASK] == spaces.MultiBinary(len(views))
        for view in views:
            box = space[view.name]
            assert isinstance(box, spaces.Box)
            assert box.dtype == np.uint8
            assert box.shape[:2] == view.shape[:2]
            assert box.shape[2] % view.channels == 0
        for vector in vectors:
            assert space[vector.name].dtype == np.float32
            assert (space[vector.name].shape or (0,))[0] % vector.size == 0

    def test_observations_lie_in_the_space(self, env: gym.Env[Observation, Any]) -> None:
        env.action_space.seed(0)
        observation, _ = env.reset(seed=0)
        assert env.observation_space.contains(observation)
        for _ in range(self.steps):
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            assert env.observation_space.contains(observation)
            assert isinstance(reward, float)
            assert isinstance(terminated, bool)
            assert isinstance(truncated, bool)
            if terminated or truncated:
                env.reset()

    def test_an_absent_view_is_black(self, env: gym.Env[Observation, Any]) -> None:
        env.action_space.seed(0)
        observation, _ = env.reset(seed=0)
        for _ in range(self.steps):
            for view, present in zip(get_views(env), observation[MASK], strict=True):
                assert present or not observation[view.name].any()
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset()

    def test_a_seed_reproduces_the_episode(self, env: gym.Env[Observation, Any]) -> None:
        other = self.make_env()
        first = hash_rollout(env, self.steps, seed=7)
        assert hash_rollout(other, self.steps, seed=7) == first
        assert hash_rollout(env, self.steps, seed=7) == first
        other.close()

    def test_a_seed_reproduces_the_episode_in_another_process(self, env: gym.Env[Observation, Any]) -> None:
        receive, send = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(target=_send_rollout_hash, args=(self, 7, send))
        process.start()
        send.close()
        local_hash, remote_hash = hash_rollout(env, self.steps, seed=7), receive.recv()
        process.join()
        assert remote_hash == local_hash

    def test_different_seeds_give_different_episodes(self, env: gym.Env[Observation, Any]) -> None:
        if self.seed_matters:
            first, _ = env.reset(seed=1)
            env.action_space.seed(0)
            for _ in range(5):
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                if terminated or truncated:
                    break
            others = [env.reset(seed=seed)[0] for seed in range(2, 8)]
            assert not all(are_equal(first, other) for other in others)

    def test_episodes_end_and_restart(self, env: gym.Env[Observation, Any]) -> None:
        env.action_space.seed(0)
        env.reset(seed=0)
        rewards: list[float] = []
        for _ in range(self.max_episode_steps):
            _, reward, terminated, truncated, info = env.step(env.action_space.sample())
            rewards.append(float(reward))
            if terminated or truncated:
                break
        assert terminated or truncated, f"the episode did not end within {self.max_episode_steps} steps"
        if self.episode_end != "either":
            assert (terminated, truncated) == (self.episode_end == "terminated", self.episode_end == "truncated")
        assert info["episode"]["steps"] == len(rewards)
        assert info["episode"]["return"] == pytest.approx(sum(rewards))
        with pytest.raises(ContractError, match="reset"):
            env.step(env.action_space.sample())
        env.reset()
        env.step(env.action_space.sample())

    def test_later_steps_do_not_modify_an_observation(self, env: gym.Env[Observation, Any]) -> None:
        env.action_space.seed(0)
        first, _ = env.reset(seed=0)
        copy = {name: part.copy() for name, part in first.items()}
        for _ in range(5):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()
        assert are_equal(first, copy)

    def test_writing_into_an_observation_affects_no_other(self, env: gym.Env[Observation, Any]) -> None:
        other = self.make_env()
        env.action_space.seed(0)
        overwritten, expected = env.reset(seed=0)[0], other.reset(seed=0)[0]
        for _ in range(5):
            assert are_equal(overwritten, expected)
            for part in overwritten.values():
                part[...] = 1
            action = env.action_space.sample()
            overwritten, _, terminated, truncated, _ = env.step(action)
            expected = other.step(action)[0]
            if terminated or truncated:
                break
        other.close()

    def test_a_step_before_reset_is_rejected(self) -> None:
        env = self.make_env()
        with pytest.raises(ContractError, match="reset"):
            env.step(env.action_space.sample())
        env.close()

    def test_an_invalid_action_is_rejected(self, env: gym.Env[Observation, Any]) -> None:
        env.reset(seed=0)
        valid = env.action_space.sample()
        invalid: list[Any] = [None, "left", np.full(np.shape(valid), np.nan), np.full((*np.shape(valid), 3), 0)]
        invalid += [np.full(np.shape(valid), value) for value in (np.inf, -np.inf, 1e9, -1e9)]
        for action in invalid:
            with pytest.raises(ContractError, match=r"action: expected .* got"):
                env.step(action)
        env.step(valid)

    def test_a_restored_snapshot_continues_exactly(self, env: gym.Env[Observation, Any]) -> None:
        env.action_space.seed(3)
        observation, _ = env.reset(seed=3)
        for _ in range(min(self.steps, 5)):
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                observation, _ = env.reset()
        if not self.can_restore:
            with pytest.raises(NotRestorable):
                snapshot(env)
            return
        state = snapshot(env)
        actions = [env.action_space.sample() for _ in range(self.steps)]
        expected = _hash_steps(env, actions)
        other = self.make_env()
        restored = restore(other, state)
        assert are_equal(restored, observation)
        restored[get_views(env)[0].name][...] = 0  # must not modify the snapshot
        assert _hash_steps(other, actions) == expected
        assert are_equal(restore(env, state), observation)
        assert _hash_steps(env, actions) == expected
        other.close()

    def test_a_closed_environment_rejects_calls_and_can_be_closed_again(self) -> None:
        env = self.make_env()
        env.reset(seed=0)
        env.close()
        env.close()
        for call in (lambda: env.step(env.action_space.sample()), env.reset):
            with pytest.raises(ContractError, match="reset"):
                call()


class VectorContract:
    """Tests of a vector environment, whose episodes reset in the same step."""

    num_envs: ClassVar[int] = 4
    """Number of environments."""
    steps: ClassVar[int] = 20
    """Number of steps to compare."""
    max_episode_steps: ClassVar[int] = 1000
    """Maximum number of steps of an episode."""

    def make_vector(self) -> VectorEnv[Any, Any, Any]:
        """Return a new vector environment to test."""
        raise NotImplementedError("make_vector is not implemented: override it to return the vector env to test")

    @pytest.fixture
    def vector(self) -> Any:
        vector = self.make_vector()
        yield vector
        vector.close()

    def test_spaces_are_the_single_spaces_batched(self, vector: VectorEnv[Any, Any, Any]) -> None:
        assert vector.num_envs == self.num_envs
        assert vector.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
        single, batched = vector.single_observation_space, vector.observation_space
        assert isinstance(single, spaces.Dict)
        assert isinstance(batched, spaces.Dict)
        for name in single.spaces:
            assert batched[name].shape == (self.num_envs, *(single[name].shape or ()))
            assert batched[name].dtype == single[name].dtype

    def test_observations_lie_in_the_space(self, vector: VectorEnv[Any, Any, Any]) -> None:
        vector.action_space.seed(0)
        observation, _ = vector.reset(seed=0)
        for _ in range(self.steps):
            for name, part in vector.observation_space.spaces.items():  # type: ignore[attr-defined]
                assert observation[name].shape == part.shape
                assert observation[name].dtype == part.dtype
            observation, reward, terminated, truncated, _ = vector.step(vector.action_space.sample())
            assert reward.shape == terminated.shape == truncated.shape == (self.num_envs,)
            assert terminated.dtype == truncated.dtype == np.bool_
            assert np.isfinite(reward).all()

    def test_a_seed_reproduces_the_episodes(self) -> None:
        digests = set()
        for _ in range(2):
            vector = self.make_vector()
            vector.action_space.seed(1)
            hasher = hashlib.sha256()
            add_observation(hasher, vector.reset(seed=1)[0])
            for _ in range(self.steps):
                observation, reward, terminated, truncated, _ = vector.step(vector.action_space.sample())
                add_observation(hasher, observation)
                hasher.update(reward.astype(np.float64).tobytes() + terminated.tobytes() + truncated.tobytes())
            digests.add(hasher.hexdigest())
            vector.close()
        assert len(digests) == 1

    def test_every_step_is_a_real_transition(self, vector: VectorEnv[Any, Any, Any]) -> None:
        """Check that an episode end reports `final_obs` and the episode's return and steps."""
        vector.action_space.seed(0)
        vector.reset(seed=0)
        returns, lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, int)
        ended = 0
        for _ in range(self.max_episode_steps):
            _, reward, terminated, truncated, info = vector.step(vector.action_space.sample())
            returns, lengths = returns + reward, lengths + 1
            for index in np.flatnonzero(terminated | truncated):
                last = info["final_obs"][index]
                assert vector.single_observation_space.contains(last)
                episode = info["final_info"]["episode"]
                assert episode["return"][index] == pytest.approx(returns[index], rel=1e-5)
                assert episode["steps"][index] == lengths[index]
                returns[index], lengths[index] = 0, 0
                ended += 1
            if ended >= self.num_envs:
                break
        assert ended, f"no episode ended within {self.max_episode_steps} steps"

    def test_an_invalid_action_is_rejected(self) -> None:
        template = self.make_vector()
        valid = np.asarray(template.action_space.sample())
        template.close()
        for invalid in (np.full(valid.shape, np.nan), np.full(valid.shape, 1e9)):
            vector = self.make_vector()
            vector.reset(seed=0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a worker process warns when it stops
                with pytest.raises((ContractError, ValueError), match="action"):
                    vector.step(invalid)
                vector.close(terminate=True)


def _send_rollout_hash(contract: EnvironmentContract, seed: int, connection: Connection) -> None:
    env = contract.make_env()
    connection.send(hash_rollout(env, contract.steps, seed=seed))
    env.close()


def _hash_steps(env: gym.Env[Observation, Any], actions: list[Any]) -> list[str]:
    """Return a hash of each step, resetting the environment when an episode ends."""
    hashes = []
    for action in actions:
        hasher = hashlib.sha256()
        observation, reward, terminated, truncated, _ = env.step(action)
        add_observation(hasher, observation)
        hasher.update(repr((float(reward), terminated, truncated)).encode())
        if terminated or truncated:
            add_observation(hasher, env.reset()[0])
        hashes.append(hasher.hexdigest())
    return hashes
