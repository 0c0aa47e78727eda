"""`examples/mem_drqv2.py` computes the library's updates and learns its toy task."""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from manyview.agents import ActionSpec, DrQv2, DrQv2Config
from manyview.data import Batch
from manyview.data.batch_augmentation import ImageAugmentation
from manyview.mem import BetaSchedule, MEMRepresentation, MEMRepresentationConfig
from manyview.methods import BONUSES, BuildContext, MEMBonusConfig

EXAMPLE_FILE = Path(__file__).parents[2] / "examples" / "mem_drqv2.py"
IMAGE_SHAPE, BATCH_SIZE = (1, 20, 20), 16


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """Return the imported module of the example."""
    spec = importlib.util.spec_from_file_location("mem_drqv2", EXAMPLE_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build_library_agent(args: Any) -> DrQv2:
    """Return the library's agent with the settings of the example."""
    config = MEMRepresentationConfig(latent_dim=args.latent_dim, trunk="tiny")
    representation = MEMRepresentation(("column", "row"), IMAGE_SHAPE, config)
    bonus_config: Any = MEMBonusConfig(beta0=args.beta0, beta_decay=args.beta_decay).fit_representation(config)
    augmentation = ImageAugmentation("none", 0)
    context = BuildContext(
        view_names=("column", "row"),
        image_shape=IMAGE_SHAPE,
        frame_stack=1,
        actions=ActionSpec(2, discrete=False),
        seed=0,
        augmentation=augmentation,
        representation=representation,
    )
    return DrQv2(
        representation,
        2,
        DrQv2Config(hidden=args.hidden, lr=args.lr, critic_tau=args.tau, std_start=0.0, std_end=0.0),
        bonus=BONUSES["mem"].build(bonus_config, context),
        beta=BetaSchedule(args.beta0, args.beta_decay),
        augmentation=augmentation,
    )


def pair_parameters(agent: Any, library: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the parameters of the example's agent paired with those of the library's."""
    library_encoder, example_encoder = library.representation.encoder, agent.encoder
    shared, specific = library_encoder.heads.weight.chunk(2)
    shared_bias, specific_bias = library_encoder.heads.bias.chunk(2)
    pairs = [(example_encoder.shared.weight, shared), (example_encoder.specific.weight, specific)]
    pairs += [(example_encoder.shared.bias, shared_bias), (example_encoder.specific.bias, specific_bias)]
    for example_module, library_module in (
        (example_encoder.trunk, library_encoder.trunk),
        (agent.actor, library.actor),
        (agent.critic, library.critic),
        (agent.target_critic, library.target_critic),
        (agent.discriminator, library.representation.discriminator),
    ):
        pairs += list(zip(example_module.parameters(), library_module.parameters(), strict=True))
    return pairs


def make_batch(seed: int) -> dict[str, Tensor]:
    """Return a random batch in the format of the example."""
    rng = torch.Generator().manual_seed(seed)
    views, next_views = torch.randint(256, (2, BATCH_SIZE, 2, *IMAGE_SHAPE), generator=rng, dtype=torch.uint8)
    indices = torch.randint(3 * BATCH_SIZE, (BATCH_SIZE,), generator=rng)  # some transitions are in the batch twice
    return {
        "views": views,
        "next_views": next_views,
        "indices": indices,
        "action": 2 * torch.rand(BATCH_SIZE, 2, generator=rng) - 1,
        "reward": torch.rand(BATCH_SIZE, generator=rng),
        "discount": 0.9 * (torch.rand(BATCH_SIZE, generator=rng) > 0.2),
    }


def convert_to_library_batch(batch: dict[str, Tensor]) -> Batch:
    """Convert a batch of the example to one of the library."""
    mask = torch.ones(BATCH_SIZE, 2, dtype=torch.bool)
    return Batch(
        views=batch["views"],
        mask=mask,
        action=batch["action"],
        reward_ext=batch["reward"],
        discount=batch["discount"],
        next_views=batch["next_views"],
        next_mask=mask,
        indices=batch["indices"],
        next_indices=batch["indices"] + 1,
    )


def test_twenty_updates_are_those_of_the_library(example: ModuleType) -> None:
    torch.manual_seed(0)
    args = replace(example.Args(), shift=0)
    agent, library = example.Agent(2, IMAGE_SHAPE, 2, args), build_library_agent(args)
    with torch.no_grad():
        for example_parameter, library_parameter in pair_parameters(agent, library):
            library_parameter.copy_(example_parameter)
    for number in range(20):
        batch = make_batch(number)
        losses = agent.update(batch, number, std=0.0)
        metrics = library.update(convert_to_library_batch(batch), number)
        names = {"critic": "critic_loss", "mem": "mem_loss", "actor": "actor_loss", "reward_int": "reward_int"}
        for loss_name, metric_name in names.items():
            assert losses[loss_name] == pytest.approx(metrics[metric_name].item(), abs=1e-5), (number, metric_name)
    for example_parameter, library_parameter in pair_parameters(agent, library):
        torch.testing.assert_close(example_parameter, library_parameter, atol=1e-5, rtol=1e-5)


def test_the_example_is_one_short_file_without_manyview() -> None:
    assert len(EXAMPLE_FILE.read_text().splitlines()) <= 350
    code = (
        f"import runpy, sys; sys.modules['manyview'] = None; runpy.run_path({str(EXAMPLE_FILE)!r}, run_name='example')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_example_learns_the_hidden_goal(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    agent = example.train(replace(example.Args(), frames=750), example.HiddenGoal(), example.HiddenGoal())
    assert "500 frames  return" in capsys.readouterr().out
    assert example.evaluate(agent, example.HiddenGoal(), episodes=20) > 6, "one camera alone: at most 3.3"
