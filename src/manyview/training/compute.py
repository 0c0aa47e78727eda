"""Device, precision and threads of a run, and a fingerprint of its numerics."""

import hashlib
import os
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F

from manyview.config.groups import ComputeConfig

NUMERIC_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "DNNL_CPU_ISA_HINTS",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_CPU_ISA_HINTS",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)
"""Environment variables that select numerical kernels.

Variables for torch's threads are left out: the manifest records `threads`.
"""
GL_VARIABLES = (
    "GALLIUM_DRIVER",
    "GALLIUM_OVERRIDE_CPU_CAPS",
    "LIBGL_ALWAYS_SOFTWARE",
    "LP_NATIVE_VECTOR_WIDTH",
    "MESA_EXTENSION_OVERRIDE",
    "MESA_GL_VERSION_OVERRIDE",
    "MESA_GLSL_VERSION_OVERRIDE",
    "MESA_LOADER_DRIVER_OVERRIDE",
    "MUJOCO_GL",
)
"""Environment variables that select how OpenGL renders images."""


def read_numeric_environment(*, with_opengl: bool) -> dict[str, str]:
    """Return the environment variables that are set and can change the last bit of a result."""
    names = (*NUMERIC_VARIABLES, *(GL_VARIABLES if with_opengl else ()))
    return {name: os.environ[name] for name in names if name in os.environ}


def compute_fingerprint(device: torch.device) -> str:
    """Return a short SHA-256 of a small training step; it changes with kernels, instructions and rounding.

    Weights and inputs come from a separate generator, so no other random stream advances.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(device)

    images, shapes = draw(8, 9, 32, 32), [(32, 9, 3, 3), (32, 32, 3, 3), (50, 32 * 13 * 13), (256, 50), (256, 256)]
    weights = [(draw(*shape) * shape[-1] ** -0.5).requires_grad_() for shape in shapes]
    optimizer = torch.optim.Adam(weights, lr=1e-3)
    with torch.backends.cudnn.flags(benchmark=False, deterministic=True, allow_tf32=torch.backends.cudnn.allow_tf32):
        features = F.relu(F.conv2d(images, weights[0], stride=2))  # [8, 32, 15, 15]
        features = F.relu(F.conv2d(features, weights[1])).flatten(1)  # [8, 32 * 13 * 13]
        features = torch.tanh(F.layer_norm(F.linear(features, weights[2]), (50,)))
        values = F.linear(F.relu(F.linear(features, weights[3])), weights[4])  # [8, 256]
        values.square().mean().backward()
        optimizer.step()
    parts = (values, *weights, *(weight.grad for weight in weights if weight.grad is not None))
    return hashlib.sha256(b"".join(part.detach().cpu().numpy().tobytes() for part in parts)).hexdigest()[:16]


def resolve_compute(config: ComputeConfig) -> ComputeConfig:
    """Return the settings with device and threads resolved, as the manifest records them."""
    return replace(config, device=str(resolve_device(config)), threads=config.threads or torch.get_num_threads())


def resolve_device(config: ComputeConfig) -> torch.device:
    """Return the device of the config; `auto` is the accelerator if there is one, else the CPU.

    Raises `ValueError` if the device cannot be used.
    """
    return _find_device(config.device)


@cache  # called at every step
def _find_device(name: str) -> torch.device:
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None else accelerator
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        if "at start of device string" in reason:  # lists some twenty types, most of which no release of torch has
            reason = "expected auto, cpu, cuda or another device type of torch"
        raise ValueError(f"device {name!r} cannot be used here: {reason}") from None
    return device


def configure_torch(config: ComputeConfig) -> None:
    """Apply the settings that torch keeps per process."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)


def autocast(config: ComputeConfig) -> AbstractContextManager[None]:
    """Return a context in which networks compute in the configured precision."""
    return torch.autocast(resolve_device(config).type, torch.bfloat16, enabled=config.precision == "bfloat16")
