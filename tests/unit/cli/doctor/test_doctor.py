"""`manyview doctor`: checks of machine descriptions, and the command on this machine."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from manyview.cli.doctor import check_accelerator, check_threads, get_exit_status, print_findings, run_checks
from manyview.cli.doctor.machine import Finding, TorchInfo, inspect_machine
from manyview.cli.doctor.packages import is_matching_version
from manyview.utils.resources import parse_cpu_quota
from tests.support.machines import CUDA_TORCH, HEALTHY_MACHINE, change_versions, get_only_finding


@pytest.fixture(autouse=True)
def no_forced_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset variables of build servers that make rich color piped output."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def run_doctor(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `manyview doctor` in a subprocess."""
    command = [sys.executable, "-m", "manyview", "doctor", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})


def test_a_healthy_machine_is_ok_in_every_row_and_needs_no_fix() -> None:
    findings = run_checks(HEALTHY_MACHINE)
    assert {(finding.status, finding.fix) for finding in findings} == {("ok", None)}
    assert get_exit_status(findings) == 0


def test_everything_that_is_not_ok_has_a_fix() -> None:
    bare_machine = replace(
        HEALTHY_MACHINE,
        versions={},
        environment={},
        libraries=frozenset(),
        torch=TorchInfo(threads=8, built_for="cpu"),
        nvidia=True,
    )
    broken_machine = replace(
        HEALTHY_MACHINE, render_test="crashed with SIGSEGV", qt_error="libGL.so.1: cannot open shared object file"
    )
    for machine in (bare_machine, broken_machine):
        findings = run_checks(machine)
        assert all(finding.fix for finding in findings if finding.status != "ok")
        assert get_exit_status(findings) == 1


# Threads


def test_more_torch_threads_than_cores_is_a_note_with_the_right_number() -> None:
    finding = get_only_finding(
        check_threads(replace(HEALTHY_MACHINE, cores=4, torch=TorchInfo(threads=64, built_for="cpu")))
    )
    assert (finding.status, finding.fix) == ("note", "export OMP_NUM_THREADS=4")
    assert finding.found == "64 torch threads on 4 cores, OMP_NUM_THREADS unset"


def test_fewer_torch_threads_than_cores_is_ok() -> None:
    machine = replace(
        HEALTHY_MACHINE, torch=TorchInfo(threads=1, built_for="cpu"), environment={"OMP_NUM_THREADS": "1"}
    )
    assert get_only_finding(check_threads(machine)) == Finding(
        "threads", "ok", "1 torch thread on 2 cores, OMP_NUM_THREADS 1"
    )


@pytest.mark.parametrize(("cpu_max", "cores"), [("max 100000\n", None), ("200000 100000\n", 2), ("50000 100000", 1)])
def test_the_cpu_quota_of_a_container_is_parsed_as_cores(cpu_max: str, cores: int | None) -> None:
    assert parse_cpu_quota(cpu_max) == cores


# Accelerator


def test_a_torch_that_does_not_import_is_bad_and_shows_the_error() -> None:
    machine = replace(HEALTHY_MACHINE, torch="OSError: libcudart.so.13: cannot open shared object file")
    finding = get_only_finding(check_accelerator(machine))
    assert (finding.check, finding.status) == ("import torch", "bad")
    assert "libcudart" in finding.found
    assert finding.fix is not None
    assert {finding.status for finding in check_threads(machine)} == {"ok"}


def test_a_torch_that_is_not_installed_is_reported_once() -> None:
    machine = replace(change_versions(torch=None), torch="ModuleNotFoundError: No module named 'torch'")
    assert (
        get_only_finding([finding for finding in run_checks(machine) if finding.status == "bad"]).check
        == "core packages"
    )


def test_a_cpu_only_torch_beside_an_nvidia_device_is_bad() -> None:
    finding = get_only_finding(check_accelerator(replace(HEALTHY_MACHINE, nvidia=True)))
    assert (finding.status, finding.fix) == ("bad", "pip uninstall -y torch && pip install torch")


def test_a_cuda_torch_that_finds_no_device_is_a_note() -> None:
    finding = get_only_finding(check_accelerator(replace(HEALTHY_MACHINE, nvidia=True, torch=CUDA_TORCH)))
    assert (finding.status, finding.fix) == ("note", "nvidia-smi")


def test_a_device_hidden_on_purpose_is_ok() -> None:
    machine = replace(HEALTHY_MACHINE, nvidia=True, torch=CUDA_TORCH, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert get_only_finding(check_accelerator(machine)).status == "ok"


def test_an_accelerator_is_named() -> None:
    machine = replace(HEALTHY_MACHINE, nvidia=True, torch=replace(CUDA_TORCH, accelerator="2 x cuda NVIDIA L4"))
    assert get_only_finding(check_accelerator(machine)) == Finding(
        "accelerator", "ok", "2 x cuda NVIDIA L4, torch built for CUDA 13.0"
    )


def test_a_cpu_finding_says_whether_bf16_is_native() -> None:
    assert "bf16 is native (amx_bf16, avx512_bf16)" in get_only_finding(check_accelerator(HEALTHY_MACHINE)).found
    assert (
        "is not faster"
        in get_only_finding(check_accelerator(replace(HEALTHY_MACHINE, cpu_flags=frozenset({"avx2"})))).found
    )
    assert "unknown" in get_only_finding(check_accelerator(replace(HEALTHY_MACHINE, cpu_flags=None))).found


# Output


def test_every_fix_is_one_unbroken_line_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    machines = (
        HEALTHY_MACHINE,
        change_versions(mujoco="4.0.0"),
        replace(HEALTHY_MACHINE, versions={}, environment={}, libraries=frozenset()),
        replace(HEALTHY_MACHINE, torch="OSError: " + "x" * 200),
        replace(HEALTHY_MACHINE, nvidia=True, torch=CUDA_TORCH),
        replace(
            HEALTHY_MACHINE,
            libraries=frozenset({"EGL"}),
            render_test="crashed with SIGSEGV",
            qt_error="libGL.so.1: " + "x" * 99,
        ),
    )
    for machine in machines:
        findings = run_checks(machine)
        print_findings(findings)
        lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
        for finding in findings:
            assert finding.fix is None or f"fix: {finding.fix}" in lines


def test_the_last_line_counts_bad_findings_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([Finding("a", "bad", "x", "y"), Finding("b", "note", "x", "y")])
    assert capsys.readouterr().out.splitlines()[-1] == "1 bad, 1 note."
    print_findings([Finding("a", "ok", "x")])
    assert capsys.readouterr().out.splitlines()[-1] == "Nothing bad, no notes."


def test_this_machine_can_be_inspected() -> None:
    machine = inspect_machine()
    assert machine.cores >= 1
    assert all(is_matching_version(machine.versions[name], specifier) for name, specifier in machine.required.items())
    assert {"torch", "rich", "tyro"} <= machine.required.keys()
    assert "manyview" in machine.versions


def test_the_exit_status_fits_the_json_findings() -> None:
    result = run_doctor("--json")
    findings = [Finding(**finding) for finding in json.loads(result.stdout)]
    assert result.returncode == get_exit_status(findings)
    assert {"python", "core packages", "threads"} <= {finding.check for finding in findings}


@pytest.mark.simulator
def test_rendering_is_checked_if_simulators_are_installed() -> None:
    findings = {finding["check"]: Finding(**finding) for finding in json.loads(run_doctor("--json").stdout)}
    assert findings["render images"].status == "ok"
    assert " with " in findings["render driver"].found
    assert "ms" in findings["render driver"].found
    assert findings["Qt"].status == "ok"


def test_the_table_is_plain_text_when_not_on_a_terminal() -> None:
    result = run_doctor(COLUMNS="80")
    assert "\x1b" not in result.stdout
    assert "core packages" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_broken_torch_is_a_bad_row_and_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text('raise OSError("libcudart.so.13: cannot open shared object file")')
    result = run_doctor("--json", PYTHONPATH=str(tmp_path))
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    findings = [Finding(**finding) for finding in json.loads(result.stdout)]
    torch_finding = get_only_finding([finding for finding in findings if finding.check == "import torch"])
    assert torch_finding.status == "bad"
    assert torch_finding.found == "OSError: libcudart.so.13: cannot open shared object file"
