"""The bonuses r̂ of diagnostics and evaluations, which are those of updates."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from manyview.methods import get_rewarded_views
from manyview.training import OffPolicyTrainer
from manyview.training.evaluation import evaluate_policy
from manyview.training.factory import make_env
from tests.support.runs import make_short_config

K, STEPS = 3, 45
NO_SHIFT = {"augmentation": "none", "augmentation_pixels": 0}  # so that rewarded and shown frames are equal
BUFFER: dict[str, Any] = {"search": "buffer", "bank": 0, "k": K, "reward_scale": "raw"}
TARGET: dict[str, Any] = {
    "target_encoder": True,
    "reward_frames": "augmented",
    "bank": 0,
    "k": K,
    "reward_scale": "raw",
}


def make_trainer(method: str, *, agent: dict[str, Any] | None = None, **bonus: Any) -> OffPolicyTrainer:
    """Return a trainer after a few updates."""
    trainer = OffPolicyTrainer(make_short_config(method, replay=NO_SHIFT, agent=agent or {}, bonus=bonus))
    while trainer.counters.steps < STEPS:
        trainer.advance()
    return trainer


def search_by_loops(queries: Tensor, points: list[Tensor], *, joint: bool) -> Tensor:
    """Return float64 distances [B, G] from queries [B, G, P] to K-th nearest points [G, P]."""
    rows = []
    for query in queries.double():
        distances = torch.stack([(query - point.double()).square().sum(-1) for point in points])  # [N, G]
        distances = distances.sum(1, keepdim=True) if joint else distances
        rows.append(distances.sqrt().sort(0).values[K - 1])
    return torch.stack(rows)


def list_stored_features(trainer: OffPolicyTrainer, *, without: int = -1) -> list[Tensor]:
    """Return the stored features of transitions but the newest and one index."""
    replay = trainer.replay
    assert replay.features is not None
    acted = [index for index in range(replay.inserted - 1) if replay.steps["acted"][index]]
    return [torch.from_numpy(replay.features[index]) for index in acted if index != without]


def record_evaluation(trainer: OffPolicyTrainer, **settings: Any) -> tuple[Tensor, Tensor, list[float] | None]:
    """Record an evaluation of one episode; return its views, mask and r̂."""
    env, inputs = make_env(trainer.config), []
    act = trainer.agent.act

    def record_and_act(views: Tensor, mask: Tensor, **kwargs: Any) -> Tensor:
        inputs.append((views, mask))
        return act(views, mask, **kwargs)

    trainer.agent.act = record_and_act  # type: ignore[method-assign, assignment]
    evaluation = evaluate_policy(
        trainer.agent, env, trainer.shapes, episodes=1, seed=0, step=0, video_steps=8, max_steps=8, **settings
    )
    env.close()
    assert evaluation.recording is not None
    views, mask = (torch.cat(parts) for parts in zip(*inputs, strict=True))
    bonuses = evaluation.recording.reward_int
    return views, mask, None if bonuses is None else bonuses[: len(views)]


@pytest.mark.parametrize("state", ["current", "next"])
@pytest.mark.parametrize("entropy", ["marginal", "joint"])
def test_diagnostics_show_the_reward_of_the_search_in_the_buffer(entropy: str, state: str) -> None:
    trainer = make_trainer("drqv2+mem", **BUFFER, entropy=entropy, rewarded_state=state)
    batch = trainer.sampler.sample()
    trainer.last_batch = batch
    diagnostics = trainer.compute_diagnostics()
    trainer.agent.eval()
    assert trainer.agent.bonus is not None
    bonuses = trainer.agent.bonus.compute(batch, None, batch.reward_ext)
    assert bonuses.std() > 1e-3
    assert diagnostics["contrast"] == pytest.approx(trainer.beta * bonuses.std(correction=0).item(), rel=1e-4)
    if state == "current":
        distances = [
            search_by_loops(
                torch.from_numpy(trainer.replay.features[index])[None],  # type: ignore[index]
                list_stored_features(trainer, without=index),
                joint=entropy == "joint",
            )
            for index in batch.indices.tolist()
        ]
        assert diagnostics["reward_mean"] == pytest.approx(torch.cat(distances).log1p().mean().item(), rel=1e-4)
    trainer.close()


@pytest.mark.parametrize("state", ["current", "next"])
def test_diagnostics_show_the_reward_of_the_target_encoder(state: str) -> None:
    trainer = make_trainer("sac+mem", agent={"encoder_tau": 0.01}, **TARGET, rewarded_state=state)
    agent: Any = trainer.agent
    batch = trainer.sampler.sample()
    with torch.no_grad():
        for parameter in agent.representation.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    trainer.last_batch = batch
    views, mask, indices = get_rewarded_views(batch, state)  # type: ignore[arg-type]
    terms = agent.target_representation.encode(views, mask).terms.detach()
    distances = [
        search_by_loops(
            terms[row : row + 1],
            [terms[other] for other in range(len(terms)) if indices[other] != indices[row]],
            joint=False,
        )
        for row in range(len(terms))
    ]
    diagnostics = trainer.compute_diagnostics()
    assert diagnostics["reward_mean"] == pytest.approx(torch.cat(distances).log1p().mean().item(), rel=1e-4)
    agent.eval()
    bonuses = agent.compute_bonus(batch, agent.encode_batch(batch), torch.zeros(2, len(terms)))
    assert diagnostics["contrast"] == pytest.approx(trainer.beta * bonuses.std(correction=0).item(), rel=1e-4)
    trainer.close()


@pytest.mark.parametrize("entropy", ["marginal", "joint"])
def test_an_evaluation_shows_the_distance_to_the_stored_features(entropy: str) -> None:
    trainer = make_trainer("drqv2+mem", **BUFFER, entropy=entropy)
    before = {name: tensor.clone() for name, tensor in trainer.agent.get_state()["tensors"].items()}
    views, mask, bonuses = record_evaluation(trainer, search=trainer.search_neighbors)
    representation: Any = trainer.agent.representation
    terms = representation.encode(views, mask).terms.detach()
    expected = search_by_loops(terms, list_stored_features(trainer), joint=entropy == "joint").log1p().mean(1)
    np.testing.assert_allclose(bonuses, expected, rtol=1e-3, atol=1e-4)  # type: ignore[arg-type]
    assert all(tensor.equal(before[name]) for name, tensor in trainer.agent.get_state()["tensors"].items())
    trainer.close()


def test_an_evaluation_of_re3_shows_its_bonus() -> None:
    trainer = make_trainer("drqv2+re3", k=K, reward_scale="std")
    views, mask, bonuses = record_evaluation(trainer, search=trainer.search_neighbors)
    bonus: Any = trainer.agent.bonus
    queries = bonus.encode(views, mask).embedding.unsqueeze(1)
    expected = (
        search_by_loops(queries, list_stored_features(trainer), joint=False)[:, 0] / bonus.reward_moments.std.double()
    )
    np.testing.assert_allclose(bonuses, expected, rtol=1e-3, atol=1e-4)  # type: ignore[arg-type]
    trainer.close()


def test_without_a_replay_buffer_an_evaluation_shows_no_reward_of_a_search_in_it() -> None:
    trainer = make_trainer("drqv2+re3")
    assert record_evaluation(trainer)[2] is None
    trainer.close()


def test_an_evaluation_shows_the_reward_of_the_target_encoder() -> None:
    trainer = make_trainer("sac+mem", agent={"encoder_tau": 0.01}, **TARGET)
    with torch.no_grad():
        for parameter in trainer.agent.representation.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    views, mask = trainer.sampler.sample()[:2]
    target: Any = trainer.agent.target_representation
    terms = target.encode(views, mask).terms.detach()
    expected = [
        search_by_loops(terms[row : row + 1], [*terms[:row], *terms[row + 1 :]], joint=False).log1p().mean()
        for row in range(len(terms))
    ]
    trainer.agent.eval()
    bonuses = trainer.agent.reward_states(views, mask)
    assert bonuses is not None
    torch.testing.assert_close(bonuses.double(), torch.stack(expected), rtol=1e-4, atol=1e-5)
    trainer.close()
