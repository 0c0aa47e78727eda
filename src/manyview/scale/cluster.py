"""A connection to Ray: a cluster by its address, or one of our own that only this machine and this user reach."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from manyview.envs.cores import usable_cores
from manyview.train import RunConfig

OBJECT_STORE_BYTES = 2**31
"""Batches and weights pass through it; the replay lies in the shards. Four batches of the paper's are 0.4 GB."""
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


@contextmanager
def connected(address: str | None, *, cpus: int = 1) -> Iterator[None]:
    """While it lasts. A cluster of our own ends with this process, however that ends.

    Of a cluster with an address Ray's own settings count, such as RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH.
    """
    if address is None:
        _prepare_our_own()
    from manyview.scale.engine import cause_of, ray

    # Ray puts the working directory on the `sys.path` of workers, but for a job of its client: whatever lies there
    # would be executed. A user's own task is imported from there all the same (utils/user_modules).
    job = {"job_config": ray.job_config.JobConfig(_client_job=True), **QUIET}
    if address is None:
        _adjust()
        many = max(cpus, usable_cores())
        ray.init(address="local", num_cpus=many, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False, **job)
    else:
        try:
            ray.init(address=address, **job)
        except (ray.exceptions.RayError, RuntimeError) as error:  # another token, another version
            raise ConnectionError(f"no connection to {address}: {cause_of(error)}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _adjust() -> None:
    """What Ray has no argument for, or reads when it is imported, which somebody may have done before us.

    Its minor version is fixed.
    """
    from manyview.scale.engine import engine_part

    inner = engine_part("_raylet")
    engine_part("_private.worker")._worker_logs_enabled = False  # a paragraph for every actor that we replace in a line
    engine_part("_private.ray_constants").ENABLE_RAY_CLUSTER = False
    inner.Config.initialize("")
    inner.AuthenticationTokenLoader.instance().reset_cache()


def cpus_of_learner(config: RunConfig) -> int:
    """One of several, which are Ray's processes; a learner alone is this one and counts none."""
    return config.machine.threads or 1


def cpus_of(config: RunConfig, *, spares: int = 0) -> int:
    """Of the cluster, that a run takes; with so many for actors that stand by."""
    scale = config.scale
    return scale.actors + spares + (scale.learners * cpus_of_learner(config) if scale.learners > 1 else 0)


def check_resources(who: str, *, cpus: float, gpus: float = 0, memory_gb: float = 0) -> None:
    """Ray would wait for ever for what is not there."""
    from manyview.scale.engine import ray

    there = ray.cluster_resources()
    for name, wanted in (("CPU", cpus), ("GPU", gpus)):
        if wanted > there.get(name, 0):
            raise ValueError(f"{who} wants {wanted:g} {name}s, and the cluster has {there.get(name, 0):g}")
    most_gb = max(node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"]) / 1e9
    if memory_gb > most_gb:
        raise ValueError(f"{who} wants {memory_gb:g} GB of memory, and Ray gives {most_gb:.1f} of a machine at most")


def _prepare_our_own() -> None:
    """Best before Ray is imported, when it reads these."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # by which it listens on the loopback alone
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"  # other users of this machine do not have it
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Of every call and of every actor that died it would keep a record, for a dashboard that is not there.
    os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
    os.environ.setdefault("RAY_maximum_gcs_destroyed_actor_cached_count", "10")
