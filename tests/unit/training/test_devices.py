"""On a machine without an accelerator: everything a training makes lies where its agent is.

A tensor that is made without saying where goes to the default device. Here that is torch's `meta`, whose tensors have
no values, so one that meets the agent's own is an error, as a CPU tensor among those of a GPU would be.
"""

import pytest
import torch

from manyview.training import RunConfig, make_trainer
from manyview.training.loggers import to_floats
from tests.support.runs import make_short_config, make_short_rollout_config

OFF_POLICY = [
    f"{agent}+{method}"
    for agent in ("drqv2", "sac")
    for method in ("mem", "pixel+mem", "re3", "rnd", "icm", "apt", "vcse", "curl", "mad", "none")
] + ["sac+dribo"]
ON_POLICY = [
    f"ppo+{method}"
    for method in ("mem", "pixel+mem", "re3", "rnd", "ride", "icm", "apt", "curl", "drac", "ucb_drac", "none")
]


def second_record(config: RunConfig) -> dict[str, float]:
    """The first one is made as usual: optimisers make their moments on the way to it."""
    trainer, records = make_trainer(config), 0
    while records < 2:
        with torch.device("meta" if records else "cpu"):
            metrics, _, _ = trainer.advance()
        records += metrics is not None
    with torch.device("meta"):
        found = to_floats(metrics or {})
    trainer.close()
    return found


@pytest.mark.parametrize("method", OFF_POLICY)
def test_nothing_is_made_on_another_device_than_the_agents(method: str) -> None:
    assert second_record(make_short_config(method, replay={"n_step": 3}))


@pytest.mark.parametrize("neighbors", ["env", "pooled"])
@pytest.mark.parametrize("method", ON_POLICY)
def test_nor_with_ppo(method: str, neighbors: str) -> None:
    assert second_record(
        make_short_rollout_config(method, env={"augmented_view": "crop"}, agent={"neighbors": neighbors})
    )


def test_a_tensor_on_another_device_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from manyview.agents import PPO

    appraise = PPO.compute_advantages
    monkeypatch.setattr(PPO, "compute_advantages", lambda *given: appraise(*given) | {"beta": torch.tensor(0.1)})
    with pytest.raises((RuntimeError, NotImplementedError)):
        second_record(make_short_rollout_config("ppo+none"))
