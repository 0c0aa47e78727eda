"""Algorithm 1: schedule of actions and updates, determinism, and skipped updates."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from manyview.agents import NonFiniteError
from manyview.envs import ViewWarning
from manyview.training import factory
from manyview.training.off_policy import OffPolicyTrainer
from manyview.training.trainer import warn_of_large_views
from tests.support.runs import make_short_config

METHODS = ["drqv2+mem", "drqv2+none", "drqv2+re3", "drqv2+curl", "drqv2+curl+re3", "sac+mem", "sac+none", "sac+re3"]


def advance(trainer: OffPolicyTrainer, steps: int) -> OffPolicyTrainer:
    """Advance a trainer by some steps and return it."""
    for _ in range(steps):
        trainer.advance()
    return trainer


@pytest.mark.parametrize("method", METHODS)
def test_every_composition_trains_every_parameter_it_should(method: str) -> None:
    trainer = OffPolicyTrainer(make_short_config(method))
    before = {name: tensor.clone() for name, tensor in trainer.agent.named_parameters()}
    advance(trainer, 60)
    trainer.close()
    frozen = {
        name
        for name, tensor in trainer.agent.named_parameters()
        if torch.equal(tensor, before[name]) and not name.endswith("absent_token")  # no view was ever absent
    }
    assert trainer.counters.updates == 31
    assert all(name.startswith("bonus") for name in frozen), frozen
    assert bool(frozen) == ("re3" in method)


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_gives_the_same_run_again(method: str) -> None:
    first, second = (advance(OffPolicyTrainer(make_short_config(method)), 50) for _ in range(2))
    other_trainer = advance(OffPolicyTrainer(make_short_config(method, seed=2)), 50)
    assert first.agent.get_state()["tensors"].keys() == second.agent.get_state()["tensors"].keys()
    for name, tensor in first.agent.get_state()["tensors"].items():
        assert torch.equal(tensor, second.agent.get_state()["tensors"][name]), name
    actions = [trainer.replay.steps["action"][:40] for trainer in (first, second, other_trainer)]
    assert (actions[0] == actions[1]).all()
    assert (actions[0] != actions[2]).any()


def test_prefetch_changes_nothing() -> None:
    trainer = advance(OffPolicyTrainer(make_short_config()), 60)
    prefetch_trainer = advance(OffPolicyTrainer(make_short_config(replay={"prefetch": True})), 60)
    for name, tensor in trainer.agent.get_state()["tensors"].items():
        assert torch.equal(tensor, prefetch_trainer.agent.get_state()["tensors"][name]), name
    prefetch_trainer.close()


def test_updates_start_after_the_seed_frames_at_regular_intervals() -> None:
    trainer = OffPolicyTrainer(make_short_config(schedule={"seed_frames": 30, "update_every_steps": 3}))
    update_steps = [step for step in range(1, 61) if trainer.advance().metrics is not None]
    assert update_steps == list(range(30, 61, 3))


@pytest.mark.parametrize(("method", "num_steps"), [("sac+none", 3), ("sac+dribo", 4)])
def test_the_first_update_waits_for_a_window_of_steps(method: str, num_steps: int) -> None:
    """`seed_frames=0` suits a run that starts from the weights of another."""
    changes: dict[str, Any] = {"representation": {"sequence_length": 5}} if "dribo" in method else {}
    schedule = {"seed_frames": 0, "random_steps": 0, "update_every_steps": 1}
    config = make_short_config(method, schedule=schedule, replay={"n_step": 3, "batch_size": 20}, **changes)
    trainer = OffPolicyTrainer(config)
    updates = []
    for _ in range(num_steps):
        trainer.advance()
        updates.append(trainer.counters.updates)
    trainer.close()
    assert updates == [0] * (num_steps - 1) + [1]


def test_the_first_actions_are_random_and_the_later_ones_the_policys() -> None:
    drqv2 = advance(OffPolicyTrainer(make_short_config("drqv2+mem")), 25)
    sac = advance(OffPolicyTrainer(make_short_config("sac+none")), 25)
    actions = [trainer.replay.steps["action"][: trainer.replay.inserted] for trainer in (drqv2, sac)]
    acted = drqv2.replay.steps["acted"][: drqv2.replay.inserted]
    random_part, policy_part = acted.nonzero()[0][:20], acted.nonzero()[0][20:]
    assert (actions[0][random_part] == actions[1][random_part]).all()
    assert (actions[0][policy_part] != actions[1][policy_part]).any()


def test_every_step_is_in_the_replay_once() -> None:
    trainer = advance(OffPolicyTrainer(make_short_config()), 60)
    assert int(trainer.replay.steps["acted"].sum()) == 60
    assert trainer.counters.frames == trainer.counters.steps == 60
    assert trainer.replay.inserted == 60 + trainer.counters.episodes


@pytest.mark.quality("S3")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e38])
def test_an_update_that_is_not_finite_is_skipped_and_counted(method: str, value: float) -> None:
    """Environments refuse these rewards, so the test writes them to the replay buffer."""
    trainer = advance(OffPolicyTrainer(make_short_config(method)), 40)
    before = trainer.agent.get_state()["tensors"]
    rewards = trainer.replay.steps["reward"].copy()
    trainer.replay.steps["reward"] = value
    assert trainer.update() is None
    assert (trainer.counters.skipped_updates, trainer.counters.skipped_in_a_row) == (1, 1)
    after = trainer.agent.get_state()["tensors"]
    parameter_names = {name for name, _ in trainer.agent.named_parameters()}
    assert all(torch.equal(before[name], after[name]) for name in parameter_names if "key_encoder" not in name)
    assert all(tensor.isfinite().all() for tensor in after.values())
    trainer.replay.steps["reward"] = rewards
    assert trainer.update() is not None
    assert trainer.counters.skipped_in_a_row == 0


@pytest.mark.quality("S3")
def test_the_error_of_a_non_finite_gradient_has_its_norm() -> None:
    trainer = advance(OffPolicyTrainer(make_short_config()), 40)
    trainer.replay.steps["reward"] = float("nan")
    with pytest.raises(NonFiniteError, match="non-finite gradient: norm nan"):
        trainer.agent.update(trainer.sampler.sample(), 1)


@pytest.mark.parametrize("method", METHODS)
def test_an_agent_resumes_from_its_state_bit_for_bit(method: str) -> None:
    trainer = advance(OffPolicyTrainer(make_short_config(method)), 45)
    copy = OffPolicyTrainer(make_short_config(method, seed=2))
    copy.agent.load_state(trainer.agent.get_state())
    for number in range(3):
        batch = trainer.sampler.sample()
        for agent in (trainer.agent, copy.agent):
            agent.update(batch, 45 + number)
    for name, tensor in trainer.agent.get_state()["tensors"].items():
        assert torch.equal(tensor, copy.agent.get_state()["tensors"][name]), name


def test_a_state_of_another_architecture_is_refused() -> None:
    state = OffPolicyTrainer(make_short_config("drqv2+none")).agent.get_state()
    with pytest.raises(ValueError, match=r"state does not fit this module: tensors: missing .*unexpected "):
        OffPolicyTrainer(make_short_config("drqv2+mem")).agent.load_state(state)
    wider_trainer = OffPolicyTrainer(make_short_config("drqv2+none", agent={"hidden": 17}))
    with pytest.raises(ValueError, match="state does not fit this module: actor"):
        wider_trainer.agent.load_state(state)


def test_a_task_with_discrete_actions_is_refused() -> None:
    with pytest.raises(ValueError, match="drqv2 expected a Box with one dimension"):
        OffPolicyTrainer(make_short_config(task="toy/identity"))


@pytest.mark.parametrize("method", ["drqv2+mem", "sac+mem"])
def test_in_bfloat16_values_and_losses_stay_float32(method: str) -> None:
    trainer = advance(OffPolicyTrainer(make_short_config(method, compute={"precision": "bfloat16"})), 40)
    state = torch.randn(64, trainer.agent.representation.state_dim)
    action = torch.rand(64, trainer.shapes.actions.size)
    with torch.autocast("cpu", torch.bfloat16):
        values = trainer.agent.critic(state, action)
        features = trainer.agent.representation.encode(trainer.last_batch.views)  # type: ignore[union-attr]
    assert values.dtype == torch.float32
    assert torch.equal(values, trainer.agent.critic(state, action))
    assert features.state.dtype == torch.float32
    assert trainer.counters.skipped_updates == 0


def test_returns_and_batches_are_those_of_the_settings() -> None:
    replay = {"n_step": 3, "discount": 0.5, "batch_size": 64}
    trainer = advance(OffPolicyTrainer(make_short_config(replay=replay, schedule={"seed_frames": 100})), 40)
    batch = trainer.sampler.sample()
    trainer.close()
    assert set(batch.discount.tolist()) == {0.5, 0.25, 0.125}  # windows at the end of an episode are shorter
    assert len(batch.indices) == 64


def test_weights_noise_and_batches_depend_on_the_seed() -> None:
    trainer, other_trainer = (OffPolicyTrainer(make_short_config(seed=seed)) for seed in (1, 2))
    for (name, parameter), other_parameter in zip(
        trainer.agent.named_parameters(), other_trainer.agent.parameters(), strict=True
    ):
        assert parameter.unique().numel() == 1 or not torch.equal(parameter, other_parameter), name  # biases start at 0
        other_parameter.data.copy_(parameter.data)
    observation = [torch.from_numpy(part) for part in trainer.replay.get_observation()]
    assert not torch.equal(
        *(each_trainer.agent.act(*observation, step=0, explore=True) for each_trainer in (trainer, other_trainer))
    )
    advance(trainer, 30)
    assert not torch.equal(
        *(
            factory.build_sampler(each_trainer.config, trainer.replay, trainer.agent.bonus).sample().indices
            for each_trainer in (trainer, other_trainer)
        )
    )
    for each_trainer in (trainer, other_trainer):
        each_trainer.close()


def test_environments_have_the_settings_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"views": ("a", "b"), "image_size": 30, "frame_stack": 4, "action_repeat": 5, "render_quality": "fast"}
    settings |= {"state": ("x",), "state_stack": 3}
    settings["render_scale"] = 2
    config = make_short_config(task="dmc/walker_run", env=settings)
    monkeypatch.setattr(factory, "make", lambda task, **options: (task, options))
    monkeypatch.setattr(factory, "make_vector", lambda task, count, *, threads, **options: (task, options))  # noqa: ARG005
    env: Any = factory.make_env(config)
    training_env: Any = factory.make_training_env(config)
    vector_env: Any = factory.make_vector_env(config)
    assert env == ("dmc/walker_run", {**settings, "faults": None, "levels": None})
    assert vector_env == ("dmc/walker_run", settings)
    assert training_env == ("dmc/walker_run", {**settings, "frame_stack": 1, "state_stack": 1})


@pytest.mark.parametrize("method", ["sac+none", "sac+re3"])
def test_a_trainer_builds_one_outline_of_its_agent(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, build = [], factory.build_agent_outline
    monkeypatch.setattr(factory, "build_agent_outline", lambda *args: calls.append(args) or build(*args))  # type: ignore[func-returns-value]
    trainer = OffPolicyTrainer(make_short_config(method))
    trainer.close()
    assert len(calls) == 1


def test_large_views_are_reported_before_the_first_update() -> None:
    with pytest.warns(ViewWarning, match=r"views of 480 x 640 pixels: .* such as --env\.image-size 64"):
        warn_of_large_views(cast("Any", SimpleNamespace(image_shape=(9, 480, 640))))
    warn_of_large_views(cast("Any", SimpleNamespace(image_shape=(9, 128, 128))))  # a warning would raise an error
