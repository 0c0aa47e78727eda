"""A connection to Ray: a cluster by its address, or one of our own that only this machine and this user reach."""

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from threading import Timer
from typing import Any

from manyview.train import RunConfig
from manyview.utils.private_dir import make_private_directory
from manyview.utils.resources import count_usable_cores

OBJECT_STORE_BYTES = 2**31
"""Batches and weights pass through it; the replay lies in the shards. Four batches of the paper's are 0.4 GB."""
MAX_FOLDER_CHARS = 40
"""Below it Ray has sockets with up to 66 characters more."""
SHUTDOWN_S = 5.0
"""After it, processes of a Ray of our own that hang are killed; without a fault a second is enough."""
QUIET_OPTIONS: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


@contextmanager
def connect(address: str | None, *, cpus: int = 1) -> Iterator[None]:
    """While it lasts. A cluster of our own ends with this process, however that ends.

    Of a cluster with an address Ray's own settings count, such as RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH.
    """
    if address is None:
        _configure_local_ray()
    else:  # one attempt of half a minute; Ray's own default is twenty
        os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")
    from manyview.scale.ray_runtime import extract_cause, ray

    # Ray puts the working directory on the `sys.path` of workers, but for a job of its client: whatever lies there
    # would be executed. A user's own task is imported from there all the same (utils/user_modules).
    job = {"job_config": ray.job_config.JobConfig(_client_job=True), **QUIET_OPTIONS}
    with ExitStack() as stack:
        if address is None:
            _configure_ray_internals()
            # Ray lets every user of the machine write to its own folders, so they lie in a private one.
            parent = os.environ.get("RAY_TMPDIR") or gettempdir()  # as Ray itself chooses
            folder = stack.enter_context(make_private_directory(parent, "manyview-", max_chars=MAX_FOLDER_CHARS))
            ray.init(
                address="local",
                num_cpus=max(cpus, count_usable_cores()),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                _temp_dir=str(folder / "r"),
                **job,
            )
        else:
            try:
                ray.init(address=address, **job)
            except (ray.exceptions.RayError, RuntimeError) as error:  # another token, another version
                raise ConnectionError(f"no connection to {address}: {extract_cause(error)}") from error
        stack.callback(_shutdown_ray, is_local=address is None)
        yield


def _shutdown_ray(*, is_local: bool) -> None:
    """Leave Ray; `ray.shutdown` would wait for ever for a part of it that hangs."""
    from manyview.scale.ray_runtime import import_ray_module, ray

    node = import_ray_module("_private.worker")._global_node if is_local else None
    started = [part.process for parts in node.all_processes.values() for part in parts] if node is not None else []
    workers = [worker for process in started for worker in _children(process.pid)]
    killer = Timer(SHUTDOWN_S, lambda: [process.kill() for process in started])
    killer.start()
    try:
        ray.shutdown()
    finally:
        killer.cancel()
        for worker in workers:  # whoever is stopped does not see that its raylet is gone
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker, signal.SIGKILL)
            os.close(worker)


def _children(pid: int) -> list[int]:
    """Return descriptors of the processes that `pid` has started, for signals that reach no other process."""
    descriptors: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # gone in the meantime
            descriptors += [os.pidfd_open(int(child)) for child in file.read_text().split()]
    return descriptors


def _configure_ray_internals() -> None:
    """What Ray has no argument for, or reads when it is imported, which somebody may have done before us.

    Its minor version is fixed.
    """
    from manyview.scale.ray_runtime import import_ray_module

    raylet = import_ray_module("_raylet")
    import_ray_module(
        "_private.worker"
    )._worker_logs_enabled = False  # a paragraph for every actor that we replace in a line
    import_ray_module("_private.ray_constants").ENABLE_RAY_CLUSTER = False
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def count_learner_cpus(config: RunConfig) -> int:
    """One of several, which are Ray's processes; a learner alone is this one and counts none."""
    return config.machine.threads or 1


def count_cpus(config: RunConfig, *, spares: int = 0) -> int:
    """Of the cluster, that a run takes; with so many for actors that stand by."""
    scale = config.scale
    return scale.actors + spares + (scale.learners * count_learner_cpus(config) if scale.learners > 1 else 0)


def check_resources(requester: str, *, cpus: float, gpus: float = 0, memory_gb: float = 0) -> None:
    """Ray would wait for ever for what is not there."""
    from manyview.scale.ray_runtime import ray

    available = ray.cluster_resources()
    for name, required in (("CPU", cpus), ("GPU", gpus)):
        if required > available.get(name, 0):
            raise ValueError(f"{requester} wants {required:g} {name}s, and the cluster has {available.get(name, 0):g}")
    max_gb = max(node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]) / 1e9
    if memory_gb > max_gb:
        raise ValueError(
            f"{requester} wants {memory_gb:g} GB of memory, and Ray gives {max_gb:.1f} of a machine at most"
        )


def _configure_local_ray() -> None:
    """Best before Ray is imported, when it reads these."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # by which it listens on the loopback alone
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"  # other users of this machine do not have it
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Of every call and of every actor that died it would keep a record, for a dashboard that is not there.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    os.environ.setdefault("RAY_maximum_gcs_destroyed_actor_cached_count", "10")
