"""`manyview doctor`: what is wrong with this installation, and the command that repairs it.

Every check is a pure function of a `Machine`, so a test can describe any. A torch that does not import is a finding,
and so is a driver that crashes.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict

from manyview.cli.arguments import JsonFlag
from manyview.cli.doctor.machine import Finding, MachineInfo, inspect_machine
from manyview.cli.doctor.packages import EXTRAS, check_core_packages, check_extras, check_known_bad
from manyview.cli.doctor.rendering import check_qt, check_render_backend, check_render_driver, check_rendered_images
from manyview.utils.text import format_count


def check_python(machine: MachineInfo) -> list[Finding]:
    """The two versions that a report of a problem has to name."""
    return [Finding("python", "ok", f"Python {machine.python}, manyview {machine.versions.get('manyview', 'unknown')}")]


def check_threads(machine: MachineInfo) -> list[Finding]:
    """More threads than cores make every update slower, and several runs on one machine slow each other."""
    setting = machine.environment.get("OMP_NUM_THREADS", "")
    found = f"{format_count(machine.cores, 'core')}, OMP_NUM_THREADS {setting or 'unset'}"
    if isinstance(machine.torch, str):
        return [Finding("threads", "ok", found)]
    found = f"{format_count(machine.torch.threads, 'torch thread')} on {found}"
    if machine.torch.threads > machine.cores:
        return [Finding("threads", "note", found, f"export OMP_NUM_THREADS={machine.cores}")]
    return [Finding("threads", "ok", found)]


def check_accelerator(machine: MachineInfo) -> list[Finding]:
    """What torch would train on, and whether bf16 pays there."""
    torch = machine.torch
    if isinstance(torch, str):
        if "torch" not in machine.versions:
            return []  # a finding of `check_core_packages`
        return [Finding("import torch", "bad", torch, "pip uninstall -y torch && pip install torch")]
    if torch.accelerator is not None:
        return [Finding("accelerator", "ok", f"{torch.accelerator}, torch built for {torch.built_for}")]
    hidden = machine.environment.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    if machine.nvidia and torch.built_for == "cpu":
        found = "an NVIDIA device is visible, but this torch is built for CPUs only"
        return [Finding("accelerator", "bad", found, "pip uninstall -y torch && pip install torch")]
    if machine.nvidia and not hidden:
        found = f"torch built for {torch.built_for} finds no device: an old driver, or no GPU given to this process"
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
    """All findings, in the order in which they are shown."""
    return [finding for check in CHECKS for finding in check(machine)]


def get_exit_status(findings: Sequence[Finding]) -> int:
    """1 if anything is bad, else 0: a note does not stop a script."""
    return int(any(finding.status == "bad" for finding in findings))


def doctor(*, as_json: JsonFlag = False) -> int:
    """Check this installation; name the command that repairs it.

    The exit status is 1 if something is bad.
    A note tells of a part that is missing and may stay so.
    """
    findings = run_checks(inspect_machine(name for extra in EXTRAS for name in extra.packages))
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        print_findings(findings)
    return get_exit_status(findings)


def print_findings(findings: Sequence[Finding]) -> None:
    """A table with each fix on a line of its own, short enough to be copied from 80 columns."""
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
        return "whether bf16 is native is unknown"
    native = sorted(flags & {"amx_bf16", "avx512_bf16", "bf16"})
    if native:
        return f"bf16 is native ({', '.join(native)}), so autocast to it pays"
    return "bf16 is emulated, so autocast to it does not pay"
