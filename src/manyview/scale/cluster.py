"""Connection to Ray: an existing cluster by its address, or a private local one for this user and machine only."""

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from threading import Timer
from typing import Any

from manyview.training import RunConfig
from manyview.training.compute import resolve_compute
from manyview.utils.private_dir import make_private_directory
from manyview.utils.resources import count_usable_cores

OBJECT_STORE_BYTES = 2**31
"""Size of the object store for batches and weights; the shards hold the replay. Four of the paper's batches: 0.4 GB."""
MAX_DIRECTORY_CHARS = 40
"""Limit of the path of Ray's directory, below which socket paths have up to 66 more characters."""
SHUTDOWN_S = 5.0
"""Time after which hanging processes of a local Ray are killed; a normal shutdown takes about 1 s."""
QUIET_OPTIONS: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
"""Options of `ray.init` that suppress its output."""


@contextmanager
def connect(address: str | None, *, cpus: int = 1) -> Iterator[None]:
    """Connect to Ray within the context. A local cluster ends with this process, however that ends.

    A cluster with an address follows Ray's own settings, such as RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH.

    Raises:
        ConnectionError: The cluster at `address` cannot be reached.

    """
    if address is None:
        _configure_local_ray()
    else:  # one attempt of 30 s; Ray's default is 20 attempts
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")
    from manyview.scale.ray_runtime import extract_cause, ray

    # Ray puts the working directory on the `sys.path` of workers except for client jobs, so that modules there would
    # be executed. The user's own task is still imported from there (utils/user_modules).
    job = {"job_config": ray.job_config.JobConfig(_client_job=True), **QUIET_OPTIONS}
    with ExitStack() as stack:
        if address is None:
            _configure_ray_internals()
            # Ray's directories are writable for every user of the machine, so they are placed in a private one.
            parent = os.environ.get("RAY_TMPDIR") or gettempdir()  # Ray's own choice
            directory = stack.enter_context(make_private_directory(parent, "manyview-", max_chars=MAX_DIRECTORY_CHARS))
            ray.init(
                address="local",
                num_cpus=max(cpus, count_usable_cores()),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                _temp_dir=str(directory / "r"),
                **job,
            )
        else:
            try:
                ray.init(address=address, **job)
            except (ray.exceptions.RayError, RuntimeError) as error:  # for example a wrong token or version
                raise ConnectionError(f"cannot connect to Ray at {address}: {extract_cause(error)}") from error
        stack.callback(_shutdown_ray, is_local=address is None)
        yield


def count_learner_cpus(config: RunConfig) -> int:
    """Return the CPUs of one of several learners; a single learner is this process and takes none of the cluster."""
    return config.compute.threads or 1


def count_cpus(config: RunConfig, *, spares: int = 0) -> int:
    """Return the CPUs of the cluster that a run takes: 1 per actor, `spares` standby actors included, and per shard."""
    scale = config.scale
    learner_cpus = scale.learners * count_learner_cpus(config) if scale.learners > 1 else 0
    return scale.actors + spares + scale.replay_shards + learner_cpus


def count_gpus(config: RunConfig) -> int:
    """Return the GPUs of the cluster that a run takes: 1 per learner of several, unless they train on the CPU."""
    return config.scale.learners if config.scale.learners > 1 and resolve_compute(config.compute).device != "cpu" else 0


def check_resources(requester: str, *, cpus: float, gpus: float = 0, memory_gb: float = 0) -> None:
    """Raise a `ValueError` if the cluster lacks these resources, for which Ray would wait forever."""
    from manyview.scale.ray_runtime import ray

    available = ray.cluster_resources()
    for name, required in (("CPU", cpus), ("GPU", gpus)):
        if required > available.get(name, 0):
            raise ValueError(
                f"too few {name}s in the cluster: {requester} needs {required:g}, got {available.get(name, 0):g}"
            )
    max_gb = max(node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]) / 1e9
    if memory_gb > max_gb:
        raise ValueError(
            f"too little memory in the cluster: {requester} needs {memory_gb:g} GB on one machine, got {max_gb:.1f} GB"
        )


def _shutdown_ray(*, is_local: bool) -> None:
    """Disconnect from Ray within `SHUTDOWN_S`; `ray.shutdown` alone waits forever for processes that hang."""
    from manyview.scale.ray_runtime import import_ray_module, ray

    node = import_ray_module("_private.worker")._global_node if is_local else None
    processes = [part.process for parts in node.all_processes.values() for part in parts] if node is not None else []
    workers = [worker for process in processes for worker in _open_children(process.pid)]
    killer = Timer(SHUTDOWN_S, lambda: [process.kill() for process in processes])
    killer.start()
    try:
        ray.shutdown()
    finally:
        killer.cancel()
        for worker in workers:  # a suspended worker does not notice that its raylet is gone
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            os.close(worker)


def _open_children(pid: int) -> list[int]:
    """Return pidfds of the child processes of `pid`, so that signals cannot reach a process with a reused id."""
    descriptors: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # ended in the meantime
            descriptors += [os.pidfd_open(int(child)) for child in file.read_text().split()]
    return descriptors


def _configure_ray_internals() -> None:
    """Set options that Ray has no argument for or reads at import, which may have happened earlier.

    This relies on private names of Ray, whose minor version is pinned.
    """
    from manyview.scale.ray_runtime import import_ray_module

    raylet = import_ray_module("_raylet")
    # Ray would print a paragraph for every replaced actor, for which manyview prints a line.
    import_ray_module("_private.worker")._worker_logs_enabled = False
    import_ray_module("_private.ray_constants").ENABLE_RAY_CLUSTER = False
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def _configure_local_ray() -> None:
    """Set the environment variables of a local Ray, before the import of Ray if possible, which reads them."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # listen on the loopback interface only
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"  # keeps out other users of this machine
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Ray would keep records of every call and every dead actor for a dashboard that is disabled.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    os.environ.setdefault("RAY_maximum_gcs_destroyed_actor_cached_count", "10")
