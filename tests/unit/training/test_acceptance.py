"""Device acceptance: the checks of each section, at small sizes on the CPU."""

import math
import sys
from typing import Any

import pytest
import torch

from manyview.agents.off_policy import OffPolicyAgent
from manyview.mem import MEMRepresentation
from manyview.training import acceptance as kit
from manyview.training.acceptance import Acceptance, SectionFailedError, SectionSkippedError, run_sections
from manyview.training.update_benchmark import MEMUpdate, make_random_batch


@pytest.fixture
def acceptance() -> Acceptance:
    """Quick acceptance of the CPU without output."""
    return Acceptance(device=torch.device("cpu"), quick=True, log=lambda _: None)


def run_section(section: str, acceptance: Acceptance) -> dict[str, Any]:
    """Run a section that must not fail and return its figures."""
    figures: dict[str, Any] = {}
    kit.SECTIONS[section](acceptance, figures)
    return figures


def test_the_machine_is_described_without_its_name(acceptance: Acceptance) -> None:
    figures = run_section("machine", acceptance)
    assert figures["versions"]["torch"] == torch.__version__
    assert not {"host", "pid", "id"} & set(figures)


def test_the_speed_compares_an_update_with_its_bare_networks(acceptance: Acceptance) -> None:
    figures = run_section("speed", acceptance)
    assert figures["ratio"] == pytest.approx(figures["update_ms"] / figures["bare_ms"])
    assert figures["updates_per_s"] == pytest.approx(1e3 / figures["update_ms"])
    assert (figures["views"], acceptance.batch) == (3, figures["batch"])


def test_a_full_acceptance_has_the_sizes_of_the_paper() -> None:
    acceptance = Acceptance(device=torch.device("cpu"))
    config = acceptance.make_config(kit.PAPER_PRESET, kit.PAPER_TASK, {})
    batch = make_random_batch(views=kit.VIEWS, batch=2)
    assert config.env.frame_stack is not None
    assert acceptance.batch == config.replay.batch_size == 256
    assert batch.views.shape == (2, 3, 3 * config.env.frame_stack, config.env.image_size, config.env.image_size)


def test_bfloat16_is_within_its_error(acceptance: Acceptance) -> None:
    figures = run_section("bfloat16", acceptance)
    errors = [figures[f"error_{name}"] for name in ("state", "loss", "reward_int")]
    assert all(error <= 0.02 for error in errors)
    assert max(errors) > 1e-5, "bfloat16 rounds: equal outputs mean that it was not used"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler warns
def test_a_compiled_encoder_equals_the_uncompiled_one(acceptance: Acceptance) -> None:
    assert run_section("compile", acceptance)["error_state"] < 1e-4


@pytest.mark.parametrize("error", [0.03, math.nan])
def test_an_error_above_the_limit_fails(acceptance: Acceptance, error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, figures = MEMUpdate.compute_outputs, dict[str, Any]()

    def compute_with_error(update: MEMUpdate) -> dict[str, torch.Tensor]:
        outputs = compute(update)
        return outputs | {"reward_int": outputs["reward_int"] * (1 + error * update.bfloat16)}

    monkeypatch.setattr(MEMUpdate, "compute_outputs", compute_with_error)
    monkeypatch.setattr(kit, "time_alternating", lambda *works, rounds: [1.0] * len(works))  # noqa: ARG005
    with pytest.raises(SectionFailedError, match=r"error of reward_int .*: expected at most 0.02"):
        kit.check_bfloat16(acceptance, figures)
    assert figures["gain"] == 1, "a failed section keeps its figures"


def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(acceptance: Acceptance) -> None:
    assert run_section("resume", acceptance) == {"frames": 60, "stopped_at": 30, "differences": 0}


def test_a_resume_that_changes_one_weight_fails(acceptance: Acceptance, monkeypatch: pytest.MonkeyPatch) -> None:
    load = OffPolicyAgent.load_state

    def load_with_error(agent: OffPolicyAgent, state: dict[str, Any]) -> None:
        load(agent, state)
        next(agent.actor.parameters()).data.flatten()[0] += 1e-6

    monkeypatch.setattr(OffPolicyAgent, "load_state", load_with_error)
    with pytest.raises(SectionFailedError, match="the resume is not exact; first differences: /agent"):
        run_section("resume", acceptance)


def test_a_nondeterministic_device_is_distinguished_from_an_inexact_resume(
    acceptance: Acceptance, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_loss = MEMRepresentation.compute_loss
    generator = torch.Generator().manual_seed(0)  # shared by both runs

    def compute_with_noise(mem: MEMRepresentation, *args: Any) -> Any:
        loss, metrics = compute_loss(mem, *args)
        return loss * (1 + 1e-3 * torch.rand((), generator=generator)), metrics

    monkeypatch.setattr(MEMRepresentation, "compute_loss", compute_with_noise)
    with pytest.raises(SectionFailedError, match="two runs without a stop differ too"):
        run_section("resume", acceptance)


def test_learning_reports_its_speed_and_score(acceptance: Acceptance) -> None:
    figures = run_section("toy", acceptance)
    assert (figures["frames"], figures["skipped_updates"]) == (60, 0)
    assert 40 <= figures["updates"] <= 41
    assert 0 <= figures["reward_per_step"] <= 1


def test_a_toy_that_is_not_learned_fails(acceptance: Acceptance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kit, "LEARNING_S", 0.0)
    with pytest.raises(SectionFailedError, match="expected updates with finite gradients, got 0"):
        run_section("toy", acceptance)
    monkeypatch.setattr(kit, "_learn", lambda *args, **_: args[2].update(reward_per_step=0.89))
    with pytest.raises(SectionFailedError, match=r"expected at least 0.9, got 0.89"):
        run_section("toy", Acceptance(device=acceptance.device))
    run_section("toy", acceptance)


@pytest.mark.parametrize("section", ["dmc", "forecast"])
def test_a_missing_simulator_skips_with_the_command_that_installs_it(
    section: str, acceptance: Acceptance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(SectionSkippedError, match=r'pip install "manyview\[dmc\]"'):
        run_section(section, acceptance)


@pytest.mark.slow
@pytest.mark.simulator
def test_the_sections_of_the_control_suite_give_their_figures(acceptance: Acceptance) -> None:
    pytest.importorskip("dm_control")
    assert run_section("dmc", acceptance)["updates"] > 0
    forecast = run_section("forecast", acceptance)
    assert forecast["hours"] > 0
    assert (forecast["task"], forecast["preset"]) == ("dmc/cheetah_run", "paper/dmc/drqv2")


def test_every_outcome_is_reported_and_the_next_section_runs(
    acceptance: Acceptance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def skip(_: Acceptance, figures: dict[str, Any]) -> None:
        """Skip."""
        figures["seen"] = 1
        raise SectionSkippedError("no simulator")

    def crash(_: Acceptance, figures: dict[str, Any]) -> None:
        """Crash."""
        figures["half"] = 0.5
        raise RuntimeError("CUDA error:\nout of memory")

    def succeed(_: Acceptance, figures: dict[str, Any]) -> None:
        """Succeed."""
        figures["all"] = 1

    monkeypatch.setattr(kit, "SECTIONS", {"first": skip, "second": crash, "third": succeed})
    steps = [[(result.status, result.reason) for result in results] for results in run_sections(acceptance)]
    assert steps[0] == [("skipped", "no simulator"), ("skipped", "not reached"), ("skipped", "not reached")]
    assert [status for status, _ in steps[-1]] == ["skipped", "failed", "ok"]
    (failed_result,) = [result for result in list(run_sections(acceptance))[-1] if result.status == "failed"]
    assert "\n" not in failed_result.reason
    assert "out of memory" in failed_result.reason
    assert "in crash" in failed_result.traceback
    assert failed_result.figures == {"half": 0.5}
