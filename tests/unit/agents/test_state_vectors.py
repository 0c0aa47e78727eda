"""State vectors: agents act and learn on them, and agents without support are refused."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from manyview.agents import SAC, ActionSpec, Agent, DrQv2, DrQv2Config
from manyview.agents.base import check_state_vectors
from manyview.envs import StateVector
from manyview.methods import BuildContext
from manyview.training.runner import make_trainer
from tests.support.batches import ACTION_SIZE, IMAGE_SHAPE, VIEW_NAMES, make_agent, make_batch
from tests.support.runs import make_short_config, make_short_rollout_config
from tests.support.state_vectors import VECTOR_SIZE, make_vector_batch

STATE = {"state": ["goal", "clock"]}
SEQUENCES = {"sequence_length": 4, "deterministic_dim": 8, "stochastic_dim": 4, "hidden": 8}


def train_briefly(method: str, **changes: Any) -> Any:
    """Return a trainer of a toy task with two state vectors after three updates."""
    make_config = make_short_rollout_config if method.startswith("ppo") else make_short_config
    task = "toy/told_goal" if method.startswith("ppo") else "toy/told_goal_continuous"
    env = {**STATE, **changes.pop("env", {})}
    trainer = make_trainer(make_config(method, task=task, env=env, **changes))
    while not trainer.counters.updates > 2:
        trainer.advance()
    return trainer


def make_observation(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows = len(vectors)
    return torch.zeros(rows, 1, 1, 20, 20, dtype=torch.uint8), torch.ones(rows, 1, dtype=torch.bool), vectors


METHODS = [
    "drqv2+mem", "drqv2+pixel+none", "drqv2+curl+re3", "drqv2+vcse", "sac+mem", "sac+mad", "sac+pixel+rnd",
    "ppo+mem", "ppo+none", "ppo+ucb_drac", "ppo+pixel+mem",
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_every_agent_acts_and_learns_on_vectors(method: str) -> None:
    trainer = train_briefly(method)
    agent = trainer.agent
    assert agent.vector_encoder.size == 3
    vectors = torch.tensor([[300.0, 1.0, 9.0], [340.0, 1.0, 9.0]])
    views, mask, _ = make_observation(vectors)
    with agent.use_new_memory(2):
        first, second = agent.encode_observation(views, mask, vectors)
    assert not first.equal(second)
    moments = [
        state["exp_avg"].abs().sum()
        for optimizer in (getattr(agent, name, None) for name in ("critic_optimizer", "optimizer"))
        if optimizer is not None
        for parameter, state in optimizer.state.items()
        if any(parameter is other for other in agent.vector_encoder.parameters())
    ]
    assert len(moments) == 4  # weights and biases of the linear layer and LayerNorm
    assert min(moments) > 0
    trainer.close()


def test_a_recurrent_representation_keeps_vectors_out_of_its_memory() -> None:
    trainer = train_briefly("sac+dribo", representation=SEQUENCES)
    agent = trainer.agent
    results = []
    for shift in (0.0, 40.0):
        with agent.use_new_memory():
            state = agent.encode_observation(*make_observation(torch.tensor([[300.0 + shift, 1.0, 9.0]])))
            results.append((state, {name: part.clone() for name, part in agent.memory.get().items()}))
    size = agent.representation.state_dim
    assert results[0][0][:, :size].equal(results[1][0][:, :size])
    assert not results[0][0][:, size:].equal(results[1][0][:, size:])
    assert all(results[0][1][name].equal(results[1][1][name]) for name in results[0][1])
    trainer.close()


def test_statistics_are_those_of_the_batches_of_all_updates() -> None:
    agent = make_vector_agent("drqv2")
    rows = []
    for seed in range(3):
        data = make_vector_batch(seed=seed)
        agent.update(data, 0)
        assert data.vectors is not None
        rows.append(data.vectors)
    normalizer = agent.vector_encoder.normalizer
    torch.testing.assert_close(normalizer.mean, torch.cat(rows).mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(normalizer.std, torch.cat(rows).std(0, correction=0), rtol=1e-3, atol=1e-3)


def test_rollouts_enter_the_statistics_after_their_updates_but_the_first_before() -> None:
    config = make_short_rollout_config("ppo+none", task="toy/told_goal", env=STATE)
    trainer: Any = make_trainer(config)
    rollout_vectors, counts, normalizer = [], [], trainer.agent.vector_encoder.normalizer
    for rollout in range(2):
        while trainer.counters.rollouts == rollout:
            counts.append((trainer.rollout.is_full, int(normalizer.count)))
            if trainer.rollout.is_full:
                vectors = trainer.rollout.vectors[:-1].flatten(0, 1).clone()
            trainer.advance()
        rollout_vectors.append(vectors)
    rows = torch.cat(rollout_vectors)
    assert list(dict.fromkeys(counts)) == [(False, 0), (True, 20), (False, 20)]
    assert normalizer.count == len(rows) == 40
    torch.testing.assert_close(normalizer.mean, rows.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(normalizer.std, rows.std(0, correction=0), rtol=1e-3, atol=1e-3)
    trainer.close()


@pytest.mark.parametrize("method", ["drqv2+none", "ppo+none"])
def test_acting_changes_no_statistics(method: str) -> None:
    trainer = train_briefly(method)
    before = {name: part.clone() for name, part in trainer.agent.vector_encoder.named_buffers()}
    trainer.agent.act(*make_observation(torch.full((5, 3), 1e6)), step=0, explore=True)
    trainer.compute_diagnostics()
    after = dict(trainer.agent.vector_encoder.named_buffers())
    assert all(before[name].equal(after[name]) for name in before)
    trainer.close()


def make_vector_agent(kind: str, **changes: Any) -> Any:
    agent: Any = make_agent(kind, "pixel+none", **changes)
    kwargs: dict[str, Any] = {"vector_size": VECTOR_SIZE, "augmentation": agent.augmentation}
    return type(agent)(agent.representation, ACTION_SIZE, agent.config, **kwargs)


@pytest.mark.parametrize("kind", ["drqv2", "sac"])
def test_values_of_the_next_state_depend_on_its_vectors(kind: str) -> None:
    """The first update's critic loss changes with the vectors of s_{t+n} as with those of s_t."""
    losses = []
    for change in (None, "vectors", "next_vectors"):
        torch.manual_seed(0)
        agent, data = make_vector_agent(kind), make_vector_batch()
        if change is not None:
            data = data._replace(**{change: getattr(data, change).roll(1, 0)})
        losses.append(float(agent.update(data, 0)["critic_loss"]))
    assert len(set(losses)) == 3


def test_the_encoder_of_vectors_learns_even_if_critics_do_not_train_the_representation() -> None:
    agent = make_vector_agent("drqv2", critic_trains_encoder=False)
    before = [part.clone() for part in agent.vector_encoder.parameters()]
    image_parameters = [part.clone() for part in agent.representation.parameters()]
    agent.update(make_vector_batch(), 0)
    assert all(not old.equal(new) for old, new in zip(before, agent.vector_encoder.parameters(), strict=True))
    assert all(old.equal(new) for old, new in zip(image_parameters, agent.representation.parameters(), strict=True))


def test_the_target_vector_encoder_follows_by_encoder_tau() -> None:
    agent = make_vector_agent("sac", encoder_tau=0.25, target_every_updates=1)
    old = agent.target_vector_encoder.get_parameter("projection.0.weight").clone()
    agent.update(make_vector_batch(), 0)
    online, target = (
        encoder.get_parameter("projection.0.weight") for encoder in (agent.vector_encoder, agent.target_vector_encoder)
    )
    torch.testing.assert_close(target, old + 0.25 * (online - old))
    assert not online.equal(target)


def test_missing_and_unexpected_vectors_are_refused() -> None:
    with_vectors, without_vectors, data = (
        make_vector_agent("drqv2"),
        make_agent("drqv2", "pixel+none"),
        make_vector_batch(),
    )
    with pytest.raises(ValueError, match=r"expected \[B, 4\] float32, got none"):
        with_vectors.act(data.views, data.mask, step=0, explore=False)
    with pytest.raises(ValueError, match="got none"):
        with_vectors.update(make_batch(), 0)
    with pytest.raises(ValueError, match="unexpected state vectors"):
        without_vectors.act(data.views, data.mask, data.vectors, step=0, explore=False)


def test_the_official_structure_is_refused_with_its_reason() -> None:
    with pytest.raises(ValueError, match=r"agent.structure=official does not fit state vectors.*structure=shared"):
        train_briefly("drqv2+none", agent={"structure": "official"}, representation={"projection": False})


@dataclass(frozen=True, kw_only=True)
class UndeclaredConfig(DrQv2Config):
    pass


class UndeclaredAgent(DrQv2):
    """Subclass that does not declare state vectors, so it may ignore them."""


class DeclaredAgent(DrQv2):
    supports_state_vectors: ClassVar[bool] = True


@pytest.mark.parametrize("kind", [Agent, UndeclaredAgent])
def test_an_agent_that_does_not_declare_vectors_is_refused(kind: type[Agent]) -> None:
    with pytest.raises(ValueError, match=f"{kind.__name__} does not use state vectors"):
        check_state_vectors(kind, 3)
    check_state_vectors(kind, 0)


def test_building_an_undeclared_agent_names_the_remedy() -> None:
    agent = make_agent("drqv2", "pixel+none")
    context = BuildContext(
        view_names=VIEW_NAMES,
        image_shape=IMAGE_SHAPE,
        frame_stack=1,
        actions=ActionSpec(ACTION_SIZE, discrete=False),
        seed=0,
        representation=agent.representation,
        state_vectors=(StateVector("joints", 2),),
    )
    with pytest.raises(ValueError, match=r"supports_state_vectors = True.*leave out env.state"):
        UndeclaredAgent.build(UndeclaredConfig(), context)
    assert DeclaredAgent.build(DrQv2Config(), context).vector_encoder is not None
    assert SAC.supports_state_vectors
