"""Controls of the study of the bonus differ from MEM in one thing each."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from experiments.bonus.controls import (
    BlindSAC,
    BlindSACConfig,
    FrozenMEMConfig,
    NoImagesConfig,
    RandomMEMConfig,
    ShuffledMEMConfig,
    TrueStateConfig,
    UntrainedMEMConfig,
    build_blind_sac,
    build_frozen_mem,
    build_no_images,
    build_random_mem,
    build_shuffled_mem,
    build_true_state,
    build_untrained_mem,
)
from manyview.agents.sac import SAC, SACConfig
from manyview.data.action_spec import ActionSpec
from manyview.envs.views import StateVector
from manyview.mem import MEMRepresentation, MEMRepresentationConfig
from manyview.methods import BuildContext
from manyview.methods.bonuses.mem import MEMBonusConfig, OwnEncoderConfig, build_mem_bonus
from tests.support.batches import IMAGE_SHAPE
from tests.support.state_vectors import VECTOR_SIZE, make_vector_batch

BATCH = make_vector_batch()
ROWS, VIEWS = BATCH.mask.shape
VALUES = torch.zeros(ROWS)


@pytest.fixture
def representation() -> MEMRepresentation:
    torch.manual_seed(0)
    names = [f"camera {index}" for index in range(VIEWS)]
    return MEMRepresentation(names, IMAGE_SHAPE, MEMRepresentationConfig(trunk="small", latent_dim=8))


def make_context(representation: Any = None) -> BuildContext:
    return BuildContext(
        view_names=tuple(f"camera {index}" for index in range(VIEWS)),
        image_shape=IMAGE_SHAPE,
        frame_stack=1,
        actions=ActionSpec(BATCH.action.shape[1], discrete=False),
        seed=0,
        representation=representation,
        state_vectors=(StateVector("state", VECTOR_SIZE),),
    )


def test_shuffled_mem_pays_the_same_rewards_to_other_rows(representation: MEMRepresentation) -> None:
    context, features = make_context(representation), representation.encode(BATCH.views, BATCH.mask)
    mem = build_mem_bonus(MEMBonusConfig(), context).compute(BATCH, features, VALUES)
    shuffled = build_shuffled_mem(ShuffledMEMConfig(), context).compute(BATCH, features, VALUES)
    assert mem.unique().numel() == ROWS
    assert torch.equal(mem.sort().values, shuffled.sort().values)
    assert (mem != shuffled).all()


def test_untrained_mem_is_mem_before_its_first_update() -> None:
    encoder = OwnEncoderConfig(trunk="small", latent_dim=8)
    torch.manual_seed(0)
    untrained = build_untrained_mem(UntrainedMEMConfig(encoder=encoder), make_context())
    torch.manual_seed(0)
    mem = build_mem_bonus(MEMBonusConfig(encoder=encoder), make_context())
    first = untrained.compute(BATCH, None, VALUES)
    assert torch.equal(first, mem.compute(BATCH, None, VALUES))
    untrained.update(BATCH)
    mem.update(BATCH)
    assert torch.equal(first, untrained.compute(BATCH, None, VALUES))
    assert not torch.equal(first, mem.compute(BATCH, None, VALUES))


def test_frozen_mem_searches_the_first_rows_alone() -> None:
    encoder = OwnEncoderConfig(trunk="small", latent_dim=8)
    config = FrozenMEMConfig(encoder=encoder, bank=ROWS, entropy="joint", k=2, reward_scale="raw")
    bonus = build_frozen_mem(config, make_context())
    later = BATCH._replace(views=255 - BATCH.views, indices=BATCH.indices + 1_000)
    bonus.compute(BATCH, None, VALUES)
    bonus.update(BATCH)
    rewards = [bonus.compute(later, None, VALUES) for _ in range(2)]
    assert torch.equal(*rewards)  # the bank is full

    first, states = (bonus.encode(each.views, each.mask) for each in (BATCH, later))
    for row in range(ROWS):
        mask = first.terms_mask & states.terms_mask[row]  # [B, V + 1]
        squared = ((first.terms - states.terms[row]).square().sum(2) * mask).sum(1)
        distances = (squared * states.terms_mask[row].sum() / mask.sum(1)).sqrt()
        assert rewards[0][row].item() == pytest.approx(distances.sort().values[1].log1p().item(), rel=1e-3)

    centered = build_frozen_mem(replace(config, reward_scale="centered"), make_context())
    centered.load_state_dict(bonus.state_dict())
    expected = (rewards[0] - rewards[0].mean()) / rewards[0].std(correction=0)
    torch.testing.assert_close(centered.compute(later, None, VALUES), expected, rtol=1e-4, atol=1e-4)

    with pytest.raises(ValueError, match=r"bonus\.bank > 0"):
        build_frozen_mem(FrozenMEMConfig(encoder=encoder), make_context()).compute(BATCH, None, VALUES)


def test_random_mem_is_a_fixed_linear_function_of_untrained_features() -> None:
    config = RandomMEMConfig(encoder=OwnEncoderConfig(trunk="small", latent_dim=8))
    bonus = build_random_mem(config, make_context())
    first = bonus.compute(BATCH, None, VALUES)
    bonus.update(BATCH)
    assert torch.equal(first, bonus.compute(BATCH, None, VALUES))
    expected = bonus.encode(BATCH.views, BATCH.mask).state @ bonus.direction
    assert torch.corrcoef(torch.stack([first, expected]))[0, 1].item() == pytest.approx(1, abs=1e-4)
    assert first.mean().item() == pytest.approx(0, abs=1e-5)
    assert first.std(correction=0).item() == pytest.approx(1, abs=1e-5)


def test_true_state_is_the_distance_to_the_kth_nearest_state() -> None:
    config = TrueStateConfig(entropy="joint", k=2, reward_scale="raw")
    reward = build_true_state(config, make_context()).compute(BATCH, None, VALUES)
    assert BATCH.vectors is not None
    states = BATCH.vectors.double()
    states = (states - states.mean(0)) / states.std(0, correction=0)
    expected: Tensor = torch.cdist(states, states).sort(1).values[:, 2].log1p()
    torch.testing.assert_close(reward, expected.float(), rtol=1e-4, atol=1e-5)


def test_true_state_asks_for_the_state() -> None:
    bonus = build_true_state(TrueStateConfig(entropy="joint"), make_context())
    with pytest.raises(ValueError, match=r"Set env\.state"):
        bonus.compute(BATCH._replace(vectors=None, next_vectors=None), None, VALUES)
    with pytest.raises(ValueError, match="entropy=joint"):
        build_true_state(TrueStateConfig(entropy="marginal"), make_context())


def test_blind_sac_acts_and_learns_without_the_state(representation: MEMRepresentation) -> None:
    agent = build_blind_sac(BlindSACConfig(hidden=8), make_context(representation))
    assert isinstance(agent, BlindSAC)
    assert agent.vector_encoder is None
    assert BATCH.vectors is not None
    views, vectors = BATCH.views, BATCH.vectors
    actions = [agent.act(views, BATCH.mask, each, step=0, explore=False) for each in (vectors, vectors + 1)]
    assert torch.equal(*actions)
    assert agent.update(BATCH, 0)["critic_loss"].isfinite()


def test_without_images_the_policy_has_the_state_and_the_bonus_the_images() -> None:
    representation = build_no_images(NoImagesConfig(), make_context())
    bonus = build_mem_bonus(MEMBonusConfig(encoder=OwnEncoderConfig(trunk="small", latent_dim=8)), make_context())
    agent = SAC.build(SACConfig(hidden=8), replace(make_context(representation), bonus=bonus, beta=lambda _: 1.0))
    assert BATCH.vectors is not None
    assert agent.update(BATCH, 0)["critic_loss"].isfinite()  # and the statistics of the state vectors begin

    def act(views: Tensor, vectors: Tensor) -> Tensor:
        return agent.act(views, BATCH.mask, vectors, step=0, explore=False)

    assert torch.equal(act(BATCH.views, BATCH.vectors), act(255 - BATCH.views, BATCH.vectors))
    assert not torch.equal(act(BATCH.views, BATCH.vectors), act(BATCH.views, BATCH.vectors + 1))
    rewards = [
        bonus.eval().compute(BATCH._replace(views=views), None, VALUES) for views in (BATCH.views, BATCH.views.flip(2))
    ]
    assert not torch.equal(*rewards)


def test_no_images_asks_for_the_state() -> None:
    with pytest.raises(ValueError, match=r"Set env\.state"):
        build_no_images(NoImagesConfig(), replace(make_context(), state_vectors=()))
