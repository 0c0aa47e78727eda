"""Sizes in the settings of a run from elsewhere: bounded before anything is built by them."""

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

BOUNDED = pytest.mark.attack("no size in a foreign config makes evaluation take memory or time without bound")
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


def enlarge(plain: dict[str, Any], name: str) -> None:
    """Set a size; names of three parts and more select an agent, a representation or a bonus."""
    match name.split("."):
        case [setting]:
            plain[setting] = SIZES[name]
        case [group, setting]:
            plain[group][setting] = SIZES[name]
        case [kind, part, *path]:
            plain[kind] = {"name": part, **nest_overrides([(".".join(path), SIZES[name])])}


@BOUNDED
@pytest.mark.quality("X5")
@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_nobody_trains_with_is_refused(
    victim: CorruptedRun, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    plain = json.loads(victim.run_dir.config_file.read_text())
    enlarge(plain, name)
    victim.run_dir.config_file.write_text(json.dumps(plain))
    known = reset_peak_memory()
    before, begun_s = read_resident_bytes("VmRSS"), perf_counter()
    assert main(["evaluate", str(victim.run_dir.path), "--episodes", "1"]) == 2
    assert perf_counter() - begun_s < 20
    assert not known or read_resident_bytes("VmHWM") - before < 2**26
    said = capsys.readouterr().err
    assert name.split(".")[-1] in said
    assert "config.json: " in said
    assert said.count("\n") == 1


@BOUNDED
@pytest.mark.quality("X5")
def test_sizes_that_only_together_are_too_large_are_refused() -> None:
    plain = to_plain(make_config())
    plain["env"] |= {"image_size": 1024, "frame_stack": 64, "views": ["a"] * 64}
    with pytest.raises(ValueError, match="expected observations of at most 67,108,864 bytes, got 12,884,901,888"):
        from_plain(RunConfig, plain)


@BOUNDED
@pytest.mark.quality("X5")
def test_an_agent_that_its_checkpoint_does_not_fit_is_refused_before_it_is_built(
    victim: CorruptedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = json.loads(victim.run_dir.config_file.read_text())
    plain["agent"]["hidden"] = 4096
    victim.run_dir.config_file.write_text(json.dumps(plain))
    known = reset_peak_memory()
    before, begun_s = read_resident_bytes("VmRSS"), perf_counter()
    assert main(["evaluate", str(victim.run_dir.path), "--episodes", "1"]) == 2
    assert perf_counter() - begun_s < 20
    assert not known or read_resident_bytes("VmHWM") - before < 2**26
    assert "cannot be loaded: state does not fit this module" in capsys.readouterr().err


@BOUNDED
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
    outline, built = factory.build_agent_outline(settings, shapes), factory.build_agent(settings, shapes)
    tensors = [dict((*agent.named_parameters(), *agent.named_buffers())) for agent in (outline, built)]
    there, expected = ({name: (t.shape, t.dtype) for name, t in each.items()} for each in tensors)
    assert there == expected
    assert {tensor.device.type for tensor in tensors[0].values()} == {"meta"}
    assert {tensor.device.type for tensor in tensors[1].values()} == {"cpu"}
    outline.load_state(built.get_state())
    env.close()


def test_what_people_train_with_is_far_inside_the_bounds() -> None:
    large = {"env.image_size": 512, "env.frame_stack": 4, "env.views": ["0", "1", "2"], "env.action_repeat": 50}
    wide = {"agent.hidden": 4096, "representation.latent_dim": 1024, "compute.threads": 512, "rollout.envs": 65_536}
    apply_overrides(
        load_preset("cpu", task="dmc/hopper_hop", method="drqv2+mem", seed=1), nest_overrides({**large, **wide}.items())
    )
