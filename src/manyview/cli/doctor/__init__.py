"""`manyview doctor`: check the installation and show commands that repair it.

Every check is a pure function of a `MachineInfo`, so tests can describe any machine. A torch that fails to import is a
finding, and so is a driver that crashes.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

from manyview.cli.arguments import JsonFlag
from manyview.cli.doctor.machine import Finding, MachineInfo, inspect_machine
from manyview.cli.doctor.packages import check_core_packages, check_extras, check_known_bad
from manyview.cli.doctor.rendering import check_qt, check_render_backend, check_render_driver, check_rendered_images
from manyview.utils.text import format_count


def check_python(machine: MachineInfo) -> list[Finding]:
    """Report the versions of Python and manyview, which every bug report needs."""
    return [Finding("python", "ok", f"Python {machine.python}, manyview {machine.versions.get('manyview', 'unknown')}")]


def check_threads(machine: MachineInfo) -> list[Finding]:
    """Check that torch uses no more threads than cores, which would slow down updates and parallel runs."""
    setting = machine.environment.get("OMP_NUM_THREADS", "")
    found = f"{format_count(machine.cores, 'core')}, OMP_NUM_THREADS {setting or 'unset'}"
    if isinstance(machine.torch, str):
        return [Finding("threads", "ok", found)]
    found = f"{format_count(machine.torch.threads, 'torch thread')} on {found}"
    if machine.torch.threads > machine.cores:
        return [Finding("threads", "note", found, f"export OMP_NUM_THREADS={machine.cores}")]
    return [Finding("threads", "ok", found)]


def check_accelerator(machine: MachineInfo) -> list[Finding]:
    """Check the device torch would train on, and report whether the CPU has native bf16."""
    torch = machine.torch
    if isinstance(torch, str):
        if "torch" not in machine.versions:
            return []  # reported by `check_core_packages`
        return [Finding("import torch", "bad", torch, "pip uninstall -y torch && pip install torch")]
    if torch.accelerator is not None:
        return [Finding("accelerator", "ok", f"{torch.accelerator}, torch built for {torch.built_for}")]
    hidden = machine.environment.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    if machine.nvidia and torch.built_for == "cpu":
        found = "an NVIDIA device is visible, but the installed torch is built for CPUs only"
        return [Finding("accelerator", "bad", found, "pip uninstall -y torch && pip install torch")]
    if machine.nvidia and not hidden:
        found = f"torch built for {torch.built_for} finds no device: old driver, or no GPU assigned to this process"
        return [Finding("accelerator", "note", found, "nvidia-smi")]
    return [Finding("accelerator", "ok", f"none, torch runs on the CPU; {_describe_bf16(machine.cpu_flags)}")]


CHECKS = (
    check_python,
    check_core_packages,
    check_extras,
    check_known_bad,
    check_threads,
    check_accelerator,
    check_render_backend,
    check_render_driver,
    check_rendered_images,
    check_qt,
)


def run_checks(machine: MachineInfo) -> list[Finding]:
    """Return all findings in display order."""
    return [finding for check in CHECKS for finding in check(machine)]


def get_exit_status(findings: Sequence[Finding]) -> int:
    """Return 1 if any finding is bad, otherwise 0; notes do not fail scripts."""
    return int(any(finding.status == "bad" for finding in findings))


def doctor(*, as_json: JsonFlag = False) -> int:
    """Check the installation and show commands that repair it.

    The exit status is 1 if a finding is bad.
    A note names an optional part that is missing.
    """
    findings = run_checks(inspect_machine())
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        print_findings(findings)
    return get_exit_status(findings)


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a table with each fix on a separate line, so that it can be copied from 80 columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    style = {"ok": "green", "note": "yellow", "bad": "bold red"}
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("check", max_width=len("core packages"))
    table.add_column("status")
    table.add_column("found")
    for finding in findings:
        found = Text(finding.found)  # never markup: "manyview[dmc]" would lose its extra
        if finding.fix is not None:
            found.append("\nfix: ", style="dim").append(finding.fix, style="bold")
        table.add_row(finding.check, Text(finding.status, style=style[finding.status]), found)
    console = Console()
    console.print(table)
    bad, notes = (sum(finding.status == status for finding in findings) for status in ("bad", "note"))
    console.print(f"\n{bad or 'Nothing'} bad, {format_count(notes, 'note') if notes else 'no notes'}.", highlight=False)


def _describe_bf16(flags: frozenset[str] | None) -> str:
    if flags is None:
        return "native bf16 support is unknown"
    native = sorted(flags & {"amx_bf16", "avx512_bf16", "bf16"})
    if native:
        return f"bf16 is native ({', '.join(native)}); autocast to it is faster for large networks only"
    return "bf16 is emulated, so autocast to bf16 is not faster"
