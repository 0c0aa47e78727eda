"""Checks of the rendering setup on machine descriptions, and the render test."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from manyview.cli.doctor.machine import Finding, MachineInfo
from manyview.cli.doctor.render_test import RenderTest, parse_render_output, render_in_subprocess
from manyview.cli.doctor.rendering import check_qt, check_render_backend, check_render_driver, check_rendered_images
from tests.support.machines import HEALTHY_MACHINE, change_versions, get_only_finding


def test_no_display_and_no_mujoco_gl_selects_egl() -> None:
    finding = get_only_finding(check_render_backend(replace(HEALTHY_MACHINE, environment={})))
    assert finding.status == "ok"
    assert finding.found.startswith("MUJOCO_GL unset, so egl, no display")


@pytest.mark.parametrize("display", ["DISPLAY", "WAYLAND_DISPLAY"])
def test_a_display_needs_no_setting(display: str) -> None:
    assert get_only_finding(check_render_backend(replace(HEALTHY_MACHINE, environment={display: ":0"}))).status == "ok"


@pytest.mark.parametrize("setting", ["glfw", "", "on", "off", "EGL", "vulkan"])
def test_an_unusable_mujoco_gl_is_bad(setting: str) -> None:
    finding = get_only_finding(check_render_backend(replace(HEALTHY_MACHINE, environment={"MUJOCO_GL": setting})))
    assert (finding.status, finding.fix) == ("bad", "export MUJOCO_GL=egl")


def test_an_unusable_mujoco_gl_without_a_simulator_is_a_note() -> None:
    machine = replace(change_versions(mujoco=None, dm_control=None), environment={"MUJOCO_GL": "glfw"})
    assert get_only_finding(check_render_backend(machine)).status == "note"


def test_egl_without_its_library_names_the_packages_to_install() -> None:
    finding = get_only_finding(check_render_backend(replace(HEALTHY_MACHINE, libraries=frozenset())))
    assert (finding.check, finding.status, finding.fix) == ("libEGL", "bad", "apt-get install libegl1 libgl1")


def test_an_unusable_mujoco_gl_and_no_library_gives_both_fixes() -> None:
    findings = check_render_backend(replace(HEALTHY_MACHINE, environment={"MUJOCO_GL": "glfw"}, libraries=frozenset()))
    assert [finding.fix for finding in findings] == ["export MUJOCO_GL=egl", "apt-get install libegl1 libgl1"]


def test_osmesa_is_advised_if_it_is_the_only_library() -> None:
    finding = get_only_finding(
        check_render_backend(replace(HEALTHY_MACHINE, environment={}, libraries=frozenset({"OSMesa"})))
    )
    assert finding.fix == "export MUJOCO_GL=osmesa"


def test_osmesa_without_its_library_falls_back_to_egl() -> None:
    machine = replace(HEALTHY_MACHINE, environment={"MUJOCO_GL": "osmesa"}, libraries=frozenset({"EGL"}))
    assert get_only_finding(check_render_backend(machine)).fix == "export MUJOCO_GL=egl"
    assert (
        get_only_finding(check_render_backend(replace(machine, libraries=frozenset()))).fix
        == "apt-get install libosmesa6"
    )


def test_other_systems_need_no_setting() -> None:
    assert (
        get_only_finding(
            check_render_backend(replace(HEALTHY_MACHINE, system="Darwin", environment={}, libraries=frozenset()))
        ).status
        == "ok"
    )


# Rendering


def change_render_test(**changes: Any) -> MachineInfo:
    """Return HEALTHY_MACHINE with changes to the result of its render test."""
    assert isinstance(HEALTHY_MACHINE.render_test, RenderTest)
    return replace(HEALTHY_MACHINE, render_test=replace(HEALTHY_MACHINE.render_test, **changes))


def test_the_driver_its_kind_and_the_cost_of_a_view_are_named() -> None:
    finding = get_only_finding(check_render_driver(HEALTHY_MACHINE))
    assert finding.status == "ok"
    assert finding.found == (
        "llvmpipe (LLVM 15.0.6, 256 bits) with egl, software; a view of 84 x 84 takes 40 ms, fast 0.7 ms"
    )


@pytest.mark.parametrize(
    ("driver", "kind"),
    [
        ("NVIDIA L4/PCIe/SSE2", "hardware"),
        ("AMD Radeon RX 7800 XT (radeonsi, navi32, LLVM 17.0.6, DRM 3.57)", "hardware"),
        ("Mesa Intel(R) UHD Graphics 620 (KBL GT2)", "hardware"),
        ("softpipe", "software"),
        ("Software Rasterizer", "software"),
        ("ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (LLVM 10.0.0)))", "software"),
    ],
)
def test_drivers_are_classified_as_hardware_or_software(driver: str, kind: str) -> None:
    assert f", {kind};" in get_only_finding(check_render_driver(change_render_test(driver=driver))).found


def test_software_rendering_beside_an_nvidia_device_is_a_note() -> None:
    finding = get_only_finding(check_render_driver(replace(HEALTHY_MACHINE, nvidia=True)))
    assert (finding.status, finding.fix) == ("note", "ls /usr/share/glvnd/egl_vendor.d")
    assert (
        get_only_finding(
            check_render_driver(replace(change_render_test(driver="NVIDIA L4/PCIe/SSE2"), nvidia=True))
        ).status
        == "ok"
    )


def test_an_image_of_a_single_color_is_bad() -> None:
    finding = get_only_finding(check_rendered_images(change_render_test(contrast=0)))
    assert (finding.status, finding.fix) == ("bad", "export MUJOCO_GL=osmesa")
    assert "single color" in finding.found


def test_images_that_do_not_change_with_the_state_are_bad() -> None:
    finding = get_only_finding(check_rendered_images(change_render_test(changed_fraction=0.0)))
    assert finding.status == "bad"
    assert "same image" in finding.found


def test_a_crashing_driver_is_bad_and_another_backend_is_advised() -> None:
    machine = replace(HEALTHY_MACHINE, render_test="crashed with SIGSEGV")
    assert get_only_finding(check_render_driver(machine)) == Finding(
        "render driver", "bad", "crashed with SIGSEGV", "export MUJOCO_GL=osmesa"
    )
    egl_machine = replace(machine, libraries=frozenset({"EGL"}))
    assert get_only_finding(check_render_driver(egl_machine)).fix == "apt-get install libegl-mesa0 libgl1-mesa-dri"
    osmesa_machine = replace(machine, environment={"MUJOCO_GL": "osmesa"})
    assert get_only_finding(check_render_driver(osmesa_machine)).fix == "export MUJOCO_GL=egl"
    assert check_rendered_images(machine) == []


def test_a_known_cause_is_not_reported_twice() -> None:
    error = "AttributeError: no attribute 'flex_vertedge'"
    assert check_render_driver(replace(change_versions(mujoco="4.0.0"), render_test=error)) == []
    assert (
        check_render_driver(replace(HEALTHY_MACHINE, environment={"MUJOCO_GL": "glfw"}, render_test="FatalError")) == []
    )


def test_rendering_is_not_checked_without_a_simulator() -> None:
    machine = replace(change_versions(mujoco=None, dm_control=None), render_test=None)
    assert check_render_driver(machine) == check_rendered_images(machine) == []


# The render process


def test_the_result_of_the_render_process_is_parsed() -> None:
    assert isinstance(HEALTHY_MACHINE.render_test, RenderTest)
    output = f"a line of the simulator\n{json.dumps(asdict(HEALTHY_MACHINE.render_test))}\n"
    assert parse_render_output(0, output, "a warning") == HEALTHY_MACHINE.render_test


def test_a_failed_render_process_is_reported_by_its_last_line() -> None:
    assert parse_render_output(
        1, "", "Traceback\n  File\nImportError: Cannot initialize a headless EGL display.\n"
    ) == ("ImportError: Cannot initialize a headless EGL display.")
    assert parse_render_output(3, "", "") == "exit status 3"
    assert parse_render_output(-11, "", "") == "crashed with SIGSEGV"


def test_a_hanging_render_process_times_out() -> None:
    assert render_in_subprocess(timeout_s=0.01) == "not finished after 0.01 s"


@pytest.mark.simulator
def test_this_machine_renders() -> None:
    result = render_in_subprocess()
    assert isinstance(result, RenderTest), result
    assert result.driver
    assert result.backend in ("egl", "osmesa", "glfw")
    assert result.fast_ms > 0
    assert result.standard_ms > 0
    assert get_only_finding(check_rendered_images(replace(HEALTHY_MACHINE, render_test=result))).status == "ok"


@pytest.mark.simulator
def test_a_failed_render_test_returns_the_error_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "vulkan")
    result = render_in_subprocess()
    assert isinstance(result, str)
    assert result.startswith("RuntimeError: Environment variable MUJOCO_GL must be one of")


# Qt


def test_qt_that_loads_is_ok() -> None:
    assert get_only_finding(check_qt(HEALTHY_MACHINE)).status == "ok"


@pytest.mark.parametrize(
    ("library", "fix"),
    [("libQt5Gui.so.5", "apt-get install libqt5gui5"), ("libGL.so.1", "apt-get install libgl1")],
)
def test_qt_that_does_not_load_names_the_missing_package(library: str, fix: str) -> None:
    error = f"{library}: cannot open shared object file: No such file or directory"
    finding = get_only_finding(check_qt(replace(HEALTHY_MACHINE, qt_error=error)))
    assert (finding.status, finding.fix) == ("bad", fix)
    assert finding.found.startswith(error)


def test_qt_is_not_checked_without_envpool() -> None:
    assert check_qt(change_versions(envpool=None)) == []
    assert check_qt(replace(HEALTHY_MACHINE, system="Darwin")) == []
