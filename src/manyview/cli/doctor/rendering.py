"""Checks of rendering: OpenGL for MuJoCo, and Qt for EnvPool's Procgen."""

import re

from manyview.cli.doctor.machine import Finding, MachineInfo, Status
from manyview.cli.doctor.packages import check_known_bad

GLFW_VALUES = ("", "glfw", "on", "enable", "enabled", "true", "1")
"""Values of MUJOCO_GL that dm_control reads as glfw. It accepts only these, egl and osmesa, in lower case."""

SOFTWARE_DRIVERS = re.compile("llvmpipe|softpipe|swrast|swiftshader|software", re.IGNORECASE)
"""Names of OpenGL drivers that render on the CPU."""


def check_render_backend(machine: MachineInfo) -> list[Finding]:
    """Check that MUJOCO_GL selects a backend that works here; MuJoCo's default needs a display."""
    if machine.system != "Linux":
        return [Finding("rendering", "ok", f"the window system of {machine.system}")]
    setting, backend = machine.environment.get("MUJOCO_GL"), resolve_backend(machine)
    window = machine.environment.get("DISPLAY") or machine.environment.get("WAYLAND_DISPLAY")
    found = ", ".join(
        (
            f"MUJOCO_GL unset, so {backend}" if setting is None else f"MUJOCO_GL {setting or 'empty'}",
            f"display {window}" if window else "no display",
            *(f"lib{name} {'found' if name in machine.libraries else 'not found'}" for name in ("EGL", "OSMesa")),
        )
    )
    failing: Status = "bad" if {"mujoco", "dm-control"} & machine.versions.keys() else "note"
    working_backend = "osmesa" if machine.libraries == {"OSMesa"} else "egl"
    findings = []
    if backend not in ("egl", "osmesa", "glfw") or (backend == "glfw" and not window):
        findings.append(Finding("rendering", failing, found, f"export MUJOCO_GL={working_backend}"))
        backend = working_backend
    if backend == "egl" and "EGL" not in machine.libraries:
        fix = f"export MUJOCO_GL={working_backend}" if working_backend == "osmesa" else "apt-get install libegl1 libgl1"
        findings.append(Finding("libEGL", failing, "not found; MUJOCO_GL=egl renders through it", fix))
    if backend == "osmesa" and "OSMesa" not in machine.libraries:
        fix = "export MUJOCO_GL=egl" if "EGL" in machine.libraries else "apt-get install libosmesa6"
        findings.append(Finding("libOSMesa", failing, "not found; MUJOCO_GL=osmesa renders through it", fix))
    return findings or [Finding("rendering", "ok", found)]


def resolve_backend(machine: MachineInfo) -> str:
    """Return the backend that MUJOCO_GL selects; if it is unset, the one `manyview.make` chooses."""
    setting = machine.environment.get("MUJOCO_GL")
    if setting is None:
        return "glfw" if machine.environment.get("DISPLAY") else "egl"
    return "glfw" if setting in GLFW_VALUES else setting


def check_render_driver(machine: MachineInfo) -> list[Finding]:
    """Report the OpenGL driver and the render time of a view."""
    render_test = machine.render_test
    if render_test is None:
        return []
    if isinstance(render_test, str):
        if _has_bad([*check_render_backend(machine), *check_known_bad(machine)]):
            return []  # the cause is reported by these checks
        return [Finding("render driver", "bad", render_test, _choose_driver_fix(machine))]
    software = SOFTWARE_DRIVERS.search(render_test.driver) is not None
    found = (
        f"{render_test.driver} with {render_test.backend}, {'software' if software else 'hardware'}; "
        f"a view of 84 x 84 takes {render_test.standard_ms:.3g} ms, fast {render_test.fast_ms:.3g} ms"
    )
    if software and machine.nvidia:
        found += "; the NVIDIA device is not used because its EGL driver is missing from this directory:"
        return [Finding("render driver", "note", found, "ls /usr/share/glvnd/egl_vendor.d")]
    return [Finding("render driver", "ok", found)]


def check_rendered_images(machine: MachineInfo) -> list[Finding]:
    """Check that images are not flat and change with the state; broken drivers fail without an error."""
    render_test = machine.render_test
    if render_test is None or isinstance(render_test, str):
        return []
    if render_test.contrast == 0:
        return [
            Finding("render images", "bad", "an image of the simulator has a single color", _choose_driver_fix(machine))
        ]
    if render_test.changed_fraction == 0:
        found = "two different states of the simulator give the same image"
        return [Finding("render images", "bad", found, _choose_driver_fix(machine))]
    found = (
        f"two states of the simulator differ in {render_test.changed_fraction:.0%} of the pixels, and no image is flat"
    )
    return [Finding("render images", "ok", found)]


def check_qt(machine: MachineInfo) -> list[Finding]:
    """Check that Qt loads, with which EnvPool renders Procgen and which it does not install."""
    if machine.system != "Linux" or "envpool" not in machine.versions:
        return []
    error = machine.qt_error
    if error is None:
        return [Finding("Qt", "ok", "libQt5Gui loads; EnvPool renders Procgen with it")]
    missing = "libgl1" if "libGL.so" in error else "libqt5gui5"
    return [Finding("Qt", "bad", f"{error}; EnvPool renders Procgen with it", f"apt-get install {missing}")]


def _has_bad(findings: list[Finding]) -> bool:
    return any(finding.status == "bad" for finding in findings)


def _choose_driver_fix(machine: MachineInfo) -> str:
    """Return the command most likely to provide a working driver."""
    if resolve_backend(machine) != "egl":
        return "export MUJOCO_GL=egl"
    if "OSMesa" in machine.libraries:
        return "export MUJOCO_GL=osmesa"
    return "apt-get install libegl-mesa0 libgl1-mesa-dri"
