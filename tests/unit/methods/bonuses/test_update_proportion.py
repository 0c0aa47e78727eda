"""The setting `update_proportion`: updates of a bonus by a part of each batch."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from manyview.data import Batch, Minibatch
from manyview.data.action_spec import ActionSpec
from manyview.methods import BONUSES, Bonus, BonusConfig, BuildContext, PixelEncoder, PixelEncoderConfig
from manyview.methods.bonuses.mem import MEMBonusConfig
from manyview.methods.bonuses.update_proportion import BonusUpdateConfig, take_proportion
from manyview.utils.validation import SettingError
from tests.support.batches import ACTION_SIZE, IMAGE_SHAPE, VIEW_NAMES, make_batch

ROWS = 16
BONUS_NAMES = ("mem", "rnd", "icm", "apt", "ride", "vcse")
POLICY_ENCODER = PixelEncoderConfig(trunk="tiny", latent_dim=8)


def make_bonus(name: str, proportion: float) -> Bonus:
    torch.manual_seed(0)
    context = BuildContext(
        view_names=VIEW_NAMES,
        image_shape=IMAGE_SHAPE,
        frame_stack=1,
        actions=ActionSpec(ACTION_SIZE, discrete=False),
        seed=0,
        representation=PixelEncoder(len(VIEW_NAMES), IMAGE_SHAPE, POLICY_ENCODER),
    )
    config: BonusConfig = BONUSES[name].config().fit_representation(POLICY_ENCODER)
    small_settings: dict[str, Any] = {"trunk": "tiny", "latent_dim": 8, "lr": 0.01, "update_proportion": proportion}
    if isinstance(config, MEMBonusConfig):
        assert config.encoder is not None
        config = replace(config, encoder=replace(config.encoder, **small_settings))
    else:
        config = replace(config, **small_settings)
    bonus: Bonus = BONUSES[name].build(config, context)
    return bonus


def make_minibatch(data: Batch) -> Minibatch:
    zeros = torch.zeros(len(data.mask))
    return Minibatch(
        *(data.views, data.mask, data.action, zeros, zeros, zeros, zeros),
        next_features=PixelEncoder(len(VIEW_NAMES), IMAGE_SHAPE, POLICY_ENCODER).encode(
            data.next_views, data.next_mask
        ),
        next_views=data.next_views,
        next_mask=data.next_mask,
        has_next=data.indices % 3 > 0,
    )


def test_every_bonus_with_networks_of_its_own_is_listed() -> None:
    configs = {name: BONUSES[name].config() for name in BONUSES.list_names()}
    trained_names = {name for name, config in configs.items() if isinstance(config, BonusUpdateConfig)}
    assert trained_names | {"mem"} == {*BONUS_NAMES}


@pytest.mark.parametrize("kind", ["replay", "rollout"])
@pytest.mark.parametrize("name", BONUS_NAMES)
def test_a_proportion_of_a_quarter_uses_every_fourth_row(name: str, kind: str) -> None:
    quarter_bonus, expected_bonus, full_bonus = make_bonus(name, 0.25), make_bonus(name, 1.0), make_bonus(name, 1.0)
    for seed in range(3):
        data, quarter_data = make_batch(ROWS, seed=seed), make_batch(ROWS, seed=seed).map(lambda tensor: tensor[::4])
        for bonus, rows in ((quarter_bonus, data), (expected_bonus, quarter_data), (full_bonus, data)):
            bonus.update(rows if kind == "replay" else make_minibatch(rows))
    states = [
        torch.cat([value.flatten().double() for value in bonus.state_dict().values()])
        for bonus in (quarter_bonus, expected_bonus)
    ]
    assert states[0].equal(states[1])
    assert not all(map(torch.equal, quarter_bonus.state_dict().values(), full_bonus.state_dict().values()))


@pytest.mark.parametrize("proportion", [0.5, 0.25, 0.3])
def test_the_rows_come_evenly_from_all_parts_of_a_batch(proportion: float) -> None:
    subset = take_proportion(make_batch(64), proportion)
    assert subset.views.equal(make_batch(64).views[subset.indices])
    assert torch.bincount(subset.indices // 16, minlength=4).tolist() == pytest.approx([16 * proportion] * 4, abs=1)


def test_the_reward_covers_all_rows_and_an_update_learns_from_at_least_one() -> None:
    bonus = make_bonus("mem", 0.01)
    assert len(bonus.compute(make_batch(ROWS), None, torch.zeros(ROWS)).unique()) > ROWS / 2
    before = torch.cat([parameter.detach().flatten() for parameter in bonus.parameters()])
    bonus.update(make_batch(ROWS))
    assert not before.equal(torch.cat([parameter.detach().flatten() for parameter in bonus.parameters()]))


@pytest.mark.parametrize("proportion", [0.0, -0.5, 1.5, float("nan")])
def test_a_proportion_outside_of_0_to_1_is_refused(proportion: float) -> None:
    with pytest.raises(SettingError, match="update_proportion"):
        make_bonus("rnd", proportion)
