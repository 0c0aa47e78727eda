"""Sizes in the config of a foreign run are bounded before anything is built from them."""

import json
from time import perf_counter
from typing import Any

import pytest

from manyview.cli.main import main
from manyview.config.overrides import apply_overrides, from_plain, nest_overrides, to_plain
from manyview.data import InsufficientSpaceError
from manyview.methods import AGENTS, REPRESENTATIONS
from manyview.training import RunConfig, factory, load_preset
from manyview.training.memory_estimate import read_resident_bytes, reset_peak_memory
from tests.support.corrupted_run import CorruptedRun, make_config
from tests.support.runs import make_short_config, make_short_rollout_config

BOUNDED_SIZES = pytest.mark.attack("no size in a foreign config makes evaluation take memory or time without bound")
SIZES: dict[str, Any] = {
    "env.image_size": 30_000,
    "env.frame_stack": 10**6,
    "env.action_repeat": 10**9,
    "env.views": ["upright"] * 1000,
    "compute.threads": 10**6,
    "rollout.envs": 10**9,
    "seed": 10**30,
    **{f"agent.{name}.hidden": 10**6 for name in AGENTS.list_names()},
    **{f"representation.{name}.latent_dim": 10**6 for name in REPRESENTATIONS.list_names()},
    **{f"bonus.{name}.latent_dim": 10**6 for name in ("re3", "ride")},
    "bonus.ride.hidden": 10**6,
    "bonus.mem.encoder.latent_dim": 10**6,
}


def enlarge(config: dict[str, Any], name: str) -> None:
    """Set a size; a name with three or more parts selects an agent, representation or bonus."""
    match name.split("."):
        case [setting]:
            config[setting] = SIZES[name]
        case [group, setting]:
            config[group][setting] = SIZES[name]
        case [kind, part, *path]:
            config[kind] = {"name": part, **nest_overrides([(".".join(path), SIZES[name])])}


@BOUNDED_SIZES
@pytest.mark.quality("X5")
@pytest.mark.parametrize("name", SIZES)
def test_an_unrealistic_size_is_rejected(
    corrupted_run: CorruptedRun, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    config = json.loads(corrupted_run.run_dir.config_file.read_text())
    enlarge(config, name)
    corrupted_run.run_dir.config_file.write_text(json.dumps(config))
    is_peak_known = reset_peak_memory()
    before, start_s = read_resident_bytes("VmRSS"), perf_counter()
    assert main(["evaluate", str(corrupted_run.run_dir.path), "--episodes", "1"]) == 2
    assert perf_counter() - start_s < 20
    assert not is_peak_known or read_resident_bytes("VmHWM") - before < 2**26
    error = capsys.readouterr().err
    assert name.split(".")[-1] in error
    assert "config.json: " in error
    assert error.count("\n") == 1


@BOUNDED_SIZES
@pytest.mark.quality("X5")
def test_sizes_that_only_together_are_too_large_are_refused() -> None:
    config = to_plain(make_config())
    config["env"] |= {"image_size": 1024, "frame_stack": 64, "views": ["a"] * 64}
    with pytest.raises(ValueError, match="expected observations of at most 67,108,864 bytes, got 12,884,901,888"):
        from_plain(RunConfig, config)


@BOUNDED_SIZES
@pytest.mark.quality("X5")
def test_an_agent_that_its_checkpoint_does_not_fit_is_refused_before_it_is_built(
    corrupted_run: CorruptedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads(corrupted_run.run_dir.config_file.read_text())
    config["agent"]["hidden"] = 4096
    corrupted_run.run_dir.config_file.write_text(json.dumps(config))
    is_peak_known = reset_peak_memory()
    before, start_s = read_resident_bytes("VmRSS"), perf_counter()
    assert main(["evaluate", str(corrupted_run.run_dir.path), "--episodes", "1"]) == 2
    assert perf_counter() - start_s < 20
    assert not is_peak_known or read_resident_bytes("VmHWM") - before < 2**26
    assert "cannot be loaded: state does not fit this module" in capsys.readouterr().err


@BOUNDED_SIZES
@pytest.mark.quality("X5")
def test_an_agent_that_does_not_fit_into_memory_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_short_config("drqv2+none", agent={"hidden": 4096})
    env = factory.make_env(settings)
    monkeypatch.setattr("manyview.utils.resources.get_free_memory_bytes", lambda _: 2**26)
    with pytest.raises(InsufficientSpaceError, match=r"the agent needs 0\.3 GB of memory, and 67\.1 MB are free"):
        factory.build_agent(settings, factory.infer_shapes(settings, env))
    env.close()


@pytest.mark.parametrize(
    "method", ["drqv2+mem", "sac+curl", "drqv2+pixel+re3", "drqv2+pixel+mem", "ppo+mem", "ppo+ride", "sac+mem"]
)
def test_the_outline_of_an_agent_has_its_tensors_and_takes_its_state(method: str) -> None:
    settings = make_short_rollout_config(method) if method.startswith("ppo") else make_short_config(method)
    env = factory.make_env(settings)
    shapes = factory.infer_shapes(settings, env)
    outline, full_agent = factory.build_agent_outline(settings, shapes), factory.build_agent(settings, shapes)
    tensors = [dict((*agent.named_parameters(), *agent.named_buffers())) for agent in (outline, full_agent)]
    outline_tensors, full_tensors = (
        {name: (t.shape, t.dtype) for name, t in named_tensors.items()} for named_tensors in tensors
    )
    assert outline_tensors == full_tensors
    assert {tensor.device.type for tensor in tensors[0].values()} == {"meta"}
    assert {tensor.device.type for tensor in tensors[1].values()} == {"cpu"}
    outline.load_state(full_agent.get_state())
    env.close()


def test_realistic_sizes_are_accepted() -> None:
    env_sizes = {"env.image_size": 512, "env.frame_stack": 4, "env.views": ["0", "1", "2"], "env.action_repeat": 50}
    other_sizes = {
        "agent.hidden": 4096,
        "representation.latent_dim": 1024,
        "compute.threads": 512,
        "rollout.envs": 65_536,
    }
    apply_overrides(
        load_preset("cpu", task="dmc/hopper_hop", method="drqv2+mem", seed=1),
        nest_overrides({**env_sizes, **other_sizes}.items()),
    )
