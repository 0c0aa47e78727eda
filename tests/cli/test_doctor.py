"""The checks on described machines, and the real command on this one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from manyview.cli.doctor import (
    DMC_PIN,
    EXTRAS,
    Extra,
    Finding,
    accelerator,
    core_packages,
    diagnose,
    exit_status,
    extras,
    known_bad,
    matches,
    print_table,
    rendering,
    threads,
)
from manyview.cli.machine import Machine, Torch, cores_of_quota, examine

HEALTHY = Machine(
    system="Linux",
    python="3.11.7",
    versions={
        "manyview": "0.1.0",
        "torch": "2.13.0+cpu",
        "numpy": "2.4.6",
        "rich": "15.0.0",
        "tyro": "1.0.16",
        "gymnasium": "1.4.0",
        "dm-control": "1.0.49",
        "mujoco": "3.16.0",
        "envpool": "1.2.5",
        "matplotlib": "3.11.2",
    },
    required={"torch": ">=2.10", "rich": ">=13.7", "tyro": ">=1.0"},
    environment={"MUJOCO_GL": "egl"},
    cores=2,
    cpu_flags=frozenset({"avx2", "avx512_bf16", "amx_bf16"}),
    nvidia=False,
    libraries=frozenset({"EGL", "OSMesa"}),
    torch=Torch(threads=2, built_for="cpu"),
)
CUDA = Torch(threads=2, built_for="CUDA 13.0")


@pytest.fixture(autouse=True)
def no_forced_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes rich colour a pipe, as some build servers set it."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def with_versions(**changed: str | None) -> Machine:
    """HEALTHY with other versions; None uninstalls, and `_` stands for `-`."""
    versions = {**HEALTHY.versions, **{name.replace("_", "-"): v for name, v in changed.items() if v is not None}}
    gone = {name.replace("_", "-") for name, v in changed.items() if v is None}
    return replace(HEALTHY, versions={name: v for name, v in versions.items() if name not in gone})


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "manyview", "doctor", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **environment})


def test_a_healthy_machine_is_ok_in_every_row_and_needs_no_fix() -> None:
    findings = diagnose(HEALTHY)
    assert {(finding.status, finding.fix) for finding in findings} == {("ok", None)}
    assert exit_status(findings) == 0


def test_everything_that_is_not_ok_has_a_fix() -> None:
    bare = replace(
        HEALTHY,
        versions={},
        environment={},
        libraries=frozenset(),
        torch=Torch(threads=8, built_for="cpu"),
        nvidia=True,
    )
    findings = diagnose(bare)
    assert all(finding.fix for finding in findings if finding.status != "ok")
    assert exit_status(findings) == 1


# Packages


def test_a_missing_core_package_is_bad_and_the_fix_names_its_least_version() -> None:
    finding = only(core_packages(with_versions(torch=None)))
    assert (finding.status, finding.fix) == ("bad", 'pip install "torch>=2.10"')
    assert "needed: torch>=2.10" in finding.found


def test_a_core_package_that_is_too_old_is_bad() -> None:
    finding = only(core_packages(with_versions(torch="2.9.1+cu128", tyro="0.9.9")))
    assert (finding.status, finding.fix) == ("bad", 'pip install "torch>=2.10" "tyro>=1.0"')


def test_a_core_package_that_is_too_new_is_bad_and_the_fix_keeps_the_upper_bound() -> None:
    machine = replace(with_versions(numpy="3.0.0"), required={"numpy": "<3,>=2", "rich": ""})
    finding = only(core_packages(machine))
    assert (finding.status, finding.fix) == ("bad", 'pip install "numpy<3,>=2"')


def test_numpy_is_named_when_there_and_not_missed_when_not() -> None:
    assert "numpy 2.4.6" in only(core_packages(HEALTHY)).found
    without = only(core_packages(with_versions(numpy=None)))
    assert without.status == "ok"
    assert "numpy" not in without.found


@pytest.mark.parametrize("extra", EXTRAS, ids=lambda extra: extra.name)
def test_a_missing_optional_package_is_a_note_with_its_pip_line(extra: Extra) -> None:
    machine = with_versions(**{name.replace("-", "_"): None for name in extra.packages})
    finding = only([finding for finding in extras(machine) if finding.status != "ok"])
    assert (finding.check, finding.status, finding.fix) == (extra.name, "note", extra.fix)


def test_half_an_extra_says_which_half_is_missing() -> None:
    finding = only([finding for finding in extras(with_versions(mujoco=None)) if finding.status != "ok"])
    assert finding.found == "dm-control 1.0.49; mujoco not installed"


def test_an_optional_package_that_became_a_dependency_is_reported_once() -> None:
    machine = replace(HEALTHY, required={**HEALTHY.required, "gymnasium": ">=1.0"})
    assert "gymnasium 1.4.0" in only(core_packages(machine)).found
    assert "gymnasium" not in {finding.check for finding in extras(machine)}


# Known-bad versions


def test_mujoco_4_with_dm_control_is_bad_and_names_the_fix() -> None:
    finding = only(known_bad(with_versions(mujoco="4.0.0")))
    assert (finding.check, finding.status) == ("mujoco with dm-control", "bad")
    assert finding.found.startswith("mujoco 4.0.0 with dm-control 1.0.49: every suite.load fails")
    assert finding.fix == DMC_PIN == 'pip install "dm-control==1.0.49" "mujoco==3.16.0"'


def test_mujoco_4_is_bad_with_any_dm_control_and_fine_without_one() -> None:
    assert only(known_bad(with_versions(mujoco="4.1.0", dm_control="1.0.50"))).status == "bad"
    assert only(known_bad(with_versions(mujoco="4.0.0", dm_control=None))).status == "ok"


@pytest.mark.parametrize("dm_control", ["1.0.50", "1.0.49", None])
def test_mujoco_3_17_is_bad_whatever_is_beside_it(dm_control: str | None) -> None:
    finding = only(known_bad(with_versions(mujoco="3.17.1", dm_control=dm_control)))
    assert (finding.check, finding.status, finding.fix) == ("mujoco", "bad", DMC_PIN)
    assert "garbage images" in finding.found


@pytest.mark.parametrize("mujoco", ["3.15.0", "3.18.0", "3.3.0"])
def test_dm_control_1_0_49_is_bad_with_another_mujoco_than_3_16(mujoco: str) -> None:
    finding = only(known_bad(with_versions(mujoco=mujoco)))
    assert (finding.check, finding.status, finding.fix) == ("mujoco with dm-control", "bad", DMC_PIN)


def test_an_older_pair_that_belongs_together_is_not_called_bad() -> None:
    assert only(known_bad(with_versions(mujoco="3.3.0", dm_control="1.0.28"))).status == "ok"


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("4.0.0", ">=4", True),
        ("4", ">=4.0.0", True),
        ("4.0.0rc1", ">=4", True),
        ("3.16.0", ">=4", False),
        ("10.0", ">=9.1", True),
        ("2.13.0+cpu", ">=2.10", True),
        ("2.9.1", ">=2.10", False),
        ("3.17.0", "==3.17.*", True),
        ("3.17", "==3.17.*", True),
        ("3.1.7", "==3.17.*", False),
        ("3.16.1", "!=3.16.*", False),
        ("3", "!=3.16.*", True),
        ("1.0.49", "==1.0.49", True),
        ("1.0.49.0", "==1.0.49", True),
        ("1.0.490", "==1.0.49", False),
        ("2.4.6", "<3,>=2", True),
        ("3.0.0", "<3,>=2", False),
        ("0.1.0.dev0", "", True),
    ],
)
def test_versions_compare_by_number(version: str, wanted: str, expected: bool) -> None:
    assert matches(version, wanted) is expected


# Threads


def test_more_torch_threads_than_cores_is_a_note_with_the_right_number() -> None:
    finding = only(threads(replace(HEALTHY, cores=4, torch=Torch(threads=64, built_for="cpu"))))
    assert (finding.status, finding.fix) == ("note", "export OMP_NUM_THREADS=4")
    assert finding.found == "64 torch threads on 4 cores, OMP_NUM_THREADS unset"


def test_fewer_torch_threads_than_cores_is_a_choice_and_ok() -> None:
    machine = replace(HEALTHY, torch=Torch(threads=1, built_for="cpu"), environment={"OMP_NUM_THREADS": "1"})
    assert only(threads(machine)) == Finding("threads", "ok", "1 torch thread on 2 cores, OMP_NUM_THREADS 1")


@pytest.mark.parametrize(("cpu_max", "cores"), [("max 100000\n", None), ("200000 100000\n", 2), ("50000 100000", 1)])
def test_the_quota_of_a_container_counts_in_cores(cpu_max: str, cores: int | None) -> None:
    assert cores_of_quota(cpu_max) == cores


# Accelerator


def test_a_torch_that_does_not_import_is_bad_and_shows_the_error() -> None:
    machine = replace(HEALTHY, torch="OSError: libcudart.so.13: cannot open shared object file")
    finding = only(accelerator(machine))
    assert (finding.check, finding.status) == ("import torch", "bad")
    assert "libcudart" in finding.found
    assert finding.fix is not None
    assert {finding.status for finding in threads(machine)} == {"ok"}


def test_a_torch_that_is_not_installed_is_reported_once() -> None:
    machine = replace(with_versions(torch=None), torch="ModuleNotFoundError: No module named 'torch'")
    assert only([finding for finding in diagnose(machine) if finding.status == "bad"]).check == "core packages"


def test_a_cpu_only_torch_beside_an_nvidia_device_is_bad() -> None:
    finding = only(accelerator(replace(HEALTHY, nvidia=True)))
    assert (finding.status, finding.fix) == ("bad", "pip uninstall -y torch && pip install torch")


def test_a_cuda_torch_that_finds_no_device_is_a_note() -> None:
    finding = only(accelerator(replace(HEALTHY, nvidia=True, torch=CUDA)))
    assert (finding.status, finding.fix) == ("note", "nvidia-smi")


def test_a_device_hidden_on_purpose_is_ok() -> None:
    machine = replace(HEALTHY, nvidia=True, torch=CUDA, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert only(accelerator(machine)).status == "ok"


def test_an_accelerator_is_named() -> None:
    machine = replace(HEALTHY, nvidia=True, torch=replace(CUDA, accelerator="2 x cuda NVIDIA L4"))
    assert only(accelerator(machine)) == Finding("accelerator", "ok", "2 x cuda NVIDIA L4, torch built for CUDA 13.0")


def test_a_cpu_says_whether_bf16_pays() -> None:
    assert "bf16 is native (amx_bf16, avx512_bf16)" in only(accelerator(HEALTHY)).found
    assert "does not pay" in only(accelerator(replace(HEALTHY, cpu_flags=frozenset({"avx2"})))).found
    assert "unknown" in only(accelerator(replace(HEALTHY, cpu_flags=None))).found


# Rendering


def test_no_display_and_no_mujoco_gl_is_bad_when_mujoco_is_installed() -> None:
    finding = only(rendering(replace(HEALTHY, environment={})))
    assert (finding.status, finding.fix) == ("bad", "export MUJOCO_GL=egl")


def test_no_display_and_no_mujoco_gl_is_a_note_when_nothing_renders() -> None:
    machine = replace(with_versions(mujoco=None, dm_control=None), environment={})
    assert only(rendering(machine)).status == "note"


@pytest.mark.parametrize("display", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_a_display_needs_no_setting(display: str) -> None:
    assert only(rendering(replace(HEALTHY, environment={display: ":0"}))).status == "ok"


def test_glfw_without_a_display_is_bad() -> None:
    finding = only(rendering(replace(HEALTHY, environment={"MUJOCO_GL": "glfw"})))
    assert (finding.status, finding.fix) == ("bad", "export MUJOCO_GL=egl")


def test_egl_without_its_library_names_the_packages_to_install() -> None:
    finding = only(rendering(replace(HEALTHY, libraries=frozenset())))
    assert (finding.check, finding.status, finding.fix) == ("libEGL", "bad", "apt-get install libegl1 libgl1")


def test_neither_setting_nor_library_gives_both_fixes() -> None:
    findings = rendering(replace(HEALTHY, environment={}, libraries=frozenset()))
    assert [finding.fix for finding in findings] == ["export MUJOCO_GL=egl", "apt-get install libegl1 libgl1"]


def test_osmesa_is_advised_where_it_is_all_there_is() -> None:
    finding = only(rendering(replace(HEALTHY, environment={}, libraries=frozenset({"OSMesa"}))))
    assert finding.fix == "export MUJOCO_GL=osmesa"


def test_osmesa_without_its_library_falls_back_to_egl() -> None:
    machine = replace(HEALTHY, environment={"MUJOCO_GL": "osmesa"}, libraries=frozenset({"EGL"}))
    assert only(rendering(machine)).fix == "export MUJOCO_GL=egl"
    assert only(rendering(replace(machine, libraries=frozenset()))).fix == "apt-get install libosmesa6"


def test_other_systems_need_no_setting() -> None:
    assert only(rendering(replace(HEALTHY, system="Darwin", environment={}, libraries=frozenset()))).status == "ok"


# Output


def test_every_fix_is_one_unbroken_line_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    machines = (
        HEALTHY,
        with_versions(mujoco="4.0.0"),
        replace(HEALTHY, versions={}, environment={}, libraries=frozenset()),
        replace(HEALTHY, torch="OSError: " + "x" * 200),
        replace(HEALTHY, nvidia=True, torch=CUDA),
    )
    for machine in machines:
        findings = diagnose(machine)
        print_table(findings)
        lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
        for finding in findings:
            assert finding.fix is None or f"fix: {finding.fix}" in lines


def test_the_last_line_counts_what_is_bad(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([Finding("a", "bad", "x", "y"), Finding("b", "note", "x", "y")])
    assert capsys.readouterr().out.splitlines()[-1] == "1 bad, 1 note."
    print_table([Finding("a", "ok", "x")])
    assert capsys.readouterr().out.splitlines()[-1] == "Nothing bad, no notes."


def test_this_machine_can_be_examined() -> None:
    machine = examine([])
    assert machine.cores >= 1
    assert all(matches(machine.versions[name], wanted) for name, wanted in machine.required.items())
    assert {"torch", "rich", "tyro"} <= machine.required.keys()
    assert "manyview" in machine.versions


def test_the_json_tells_what_the_exit_status_tells() -> None:
    shown = run("--json")
    findings = [Finding(**finding) for finding in json.loads(shown.stdout)]
    assert shown.returncode == exit_status(findings)
    assert {"python", "core packages", "threads"} <= {finding.check for finding in findings}


def test_the_table_is_plain_text_when_not_on_a_terminal() -> None:
    shown = run(COLUMNS="80")
    assert "\x1b" not in shown.stdout
    assert "core packages" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_a_broken_torch_is_a_bad_row_and_not_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text('raise OSError("libcudart.so.13: cannot open shared object file")')
    shown = run("--json", PYTHONPATH=str(tmp_path))
    assert shown.returncode == 1
    assert "Traceback" not in shown.stderr
    findings = [Finding(**finding) for finding in json.loads(shown.stdout)]
    broken = only([finding for finding in findings if finding.check == "import torch"])
    assert broken.status == "bad"
    assert broken.found == "OSError: libcudart.so.13: cannot open shared object file"
