"""A connection to Ray: a cluster by its address, or one of our own that only this machine and this user reach."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OBJECT_STORE_BYTES = 2**30
"""Batches and weights pass through it; the replay lies in the shards."""
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


@contextmanager
def connected(address: str | None, *, cpus: int = 1) -> Iterator[None]:
    """While it lasts. A cluster of our own ends with this process, however that ends.

    Of a cluster with an address Ray's own settings count, such as RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH.
    """
    if address is None:
        _prepare_our_own()
    from manyview.scale.engine import ray

    if address is None:
        many = max(cpus, os.cpu_count() or 1)
        ray.init(
            address="local", num_cpus=many, object_store_memory=OBJECT_STORE_BYTES, include_dashboard=False, **QUIET
        )
    else:
        ray.init(address=address, **QUIET)
    try:
        yield
    finally:
        ray.shutdown()


def _prepare_our_own() -> None:
    """Before Ray is imported: it reads these then."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # by which it listens on the loopback alone
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"  # other users of this machine do not have it
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
