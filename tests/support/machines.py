"""Machine descriptions for the checks of `manyview doctor`."""

from dataclasses import replace

from manyview.cli.doctor.machine import Extra, Finding, MachineInfo, TorchInfo
from manyview.cli.doctor.render_test import RenderTest

HEALTHY_MACHINE = MachineInfo(
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
        "pillow": "13.0.0",
        "imageio": "2.38.1",
        "imageio-ffmpeg": "0.7.0",
    },
    required={"torch": ">=2.10", "rich": ">=13.7", "tyro": ">=1.0"},
    extras={
        "dmc": Extra({"dm-control": "==1.0.49", "mujoco": "==3.16.0"}),
        "procgen": Extra({"envpool": "==1.2.5"}),
        "plots": Extra({"matplotlib": ">=3.9", "pillow": ">=10.1"}),
        "video": Extra({"imageio": ">=2.34", "pillow": ">=10.1"}, ("imageio-ffmpeg",)),
    },
    environment={"MUJOCO_GL": "egl"},
    cores=2,
    cpu_flags=frozenset({"avx2", "avx512_bf16", "amx_bf16"}),
    nvidia=False,
    libraries=frozenset({"EGL", "OSMesa"}),
    torch=TorchInfo(threads=2, built_for="cpu"),
    render_test=RenderTest(
        backend="egl",
        driver="llvmpipe (LLVM 15.0.6, 256 bits)",
        standard_ms=40.0,
        fast_ms=0.7,
        contrast=236,
        changed_fraction=0.2,
    ),
    qt_error=None,
)
CUDA_TORCH = TorchInfo(threads=2, built_for="CUDA 13.0")


def change_versions(**changes: str | None) -> MachineInfo:
    """Return the healthy machine with other package versions.

    None uninstalls a package, and `_` stands for `-`.
    """
    versions = {
        **HEALTHY_MACHINE.versions,
        **{name.replace("_", "-"): v for name, v in changes.items() if v is not None},
    }
    removed = {name.replace("_", "-") for name, v in changes.items() if v is None}
    return replace(HEALTHY_MACHINE, versions={name: v for name, v in versions.items() if name not in removed})


def get_only_finding(findings: list[Finding]) -> Finding:
    """Return the only finding; fail if the count differs from 1."""
    (finding,) = findings
    return finding
