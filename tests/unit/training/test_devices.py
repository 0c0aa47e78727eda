"""The device of all tensors of a training, tested without an accelerator.

A tensor that is created without a device goes to the default device. Here that is torch's `meta`, whose tensors have no
values. An operation on one of them and the agent's tensors raises an error, as one on tensors of CPU and GPU does.
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


def compute_second_record(config: RunConfig) -> dict[str, float]:
    """Return the second record of training metrics.

    The first one is made without `meta`, because optimizers create their moments before it.
    """
    trainer, num_records = make_trainer(config), 0
    while num_records < 2:
        with torch.device("meta" if num_records else "cpu"):
            metrics, _, _ = trainer.advance()
        num_records += metrics is not None
    with torch.device("meta"):
        values = to_floats(metrics or {})
    trainer.close()
    return values


@pytest.mark.parametrize("method", OFF_POLICY)
def test_off_policy_tensors_are_on_the_device_of_the_agent(method: str) -> None:
    assert compute_second_record(make_short_config(method, replay={"n_step": 3}))


@pytest.mark.parametrize("neighbors", ["env", "pooled"])
@pytest.mark.parametrize("method", ON_POLICY)
def test_on_policy_tensors_are_on_the_device_of_the_agent(method: str, neighbors: str) -> None:
    assert compute_second_record(
        make_short_rollout_config(method, env={"augmented_view": "crop"}, agent={"neighbors": neighbors})
    )


def test_a_tensor_on_another_device_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from manyview.agents import PPO

    compute_advantages = PPO.compute_advantages
    monkeypatch.setattr(
        PPO, "compute_advantages", lambda *args: compute_advantages(*args) | {"beta": torch.tensor(0.1)}
    )
    with pytest.raises((RuntimeError, NotImplementedError)):
        compute_second_record(make_short_rollout_config("ppo+none"))
