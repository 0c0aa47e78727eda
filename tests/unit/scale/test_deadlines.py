"""Deadlines of calls to shards, which are short after a stop request."""

import signal
from collections.abc import Callable, Iterator
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import pytest

from manyview.data.segment_log import SegmentRef
from manyview.scale import actor_pool, ray_runtime, shard_log
from manyview.scale.batch_loader import BatchLoader
from manyview.scale.ray_runtime import get_results
from manyview.scale.shard_log import ShardedLog
from manyview.training.signals import StopRequest, get_current_request, set_current_request
from manyview.training.trainer import EngineError
from tests.unit.scale.test_actor_pool import CHUNK_STEPS, FakeRay, make_pool

HANGING_SHARD = (
    "a shard that hangs is named within a deadline, and a stop that is requested meanwhile leaves within seconds"
)
pytestmark = [pytest.mark.attack(HANGING_SHARD), pytest.mark.quality("L8")]


class FakeShards:
    """Fake of Ray with shards of which some never answer."""

    class GetTimeoutError(Exception):
        pass

    def __init__(self, count: int, *hanging: int) -> None:
        self.hanging, self.called_methods = set(hanging), list[str]()
        self.handles = [_FakeHandle(self, number) for number in range(count)]
        self.exceptions = SimpleNamespace(
            GetTimeoutError=self.GetTimeoutError, RayError=ChildProcessError, RayTaskError=TypeError
        )

    def get(self, references: list[tuple[int, Any]], *, timeout: float) -> list[Any]:
        if any(number in self.hanging for number, _ in references):
            sleep(timeout)
            raise self.GetTimeoutError
        return [answer for _, answer in references]

    def wait(self, references: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert (num_returns, timeout) == (len(references), 0)
        return [reference for reference in references if reference[0] not in self.hanging], [
            reference for reference in references if reference[0] in self.hanging
        ]


class _FakeHandle:
    def __init__(self, shards: FakeShards, number: int) -> None:
        self._shards, self._number = shards, number

    def __getattr__(self, method: str) -> Any:
        def remote(*_: Any, **__: Any) -> tuple[int, Any]:
            self._shards.called_methods.append(method)
            state = {"replay": {"inserted": 5}}
            return self._number, {"mark": state, "read": "", "marked": None}.get(method)

        return SimpleNamespace(remote=remote)


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> FakeShards:
    fake_shards = FakeShards(3, 1)
    monkeypatch.setattr(ray_runtime, "ray", fake_shards)
    monkeypatch.setattr(ray_runtime, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(ray_runtime, "RESULT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(shard_log, "WRITE_TIMEOUT_S", 0.05)
    return fake_shards


@pytest.fixture
def stop_request() -> Iterator[StopRequest]:
    request = StopRequest()
    set_current_request(request)
    yield request
    set_current_request(None)


def make_segment_refs() -> list[SegmentRef]:
    """Return a reference to one segment of each shard."""
    return [SegmentRef(0, 5, "", shard=number) for number in range(3)]


CALLS: list[Callable[[ShardedLog], object]] = [
    lambda log: log.mark(),
    lambda log: log.prune(make_segment_refs()),
    lambda log: log.load(make_segment_refs()),
    lambda log: log.truncate(keep=make_segment_refs()),
]


@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_the_log_names_the_shard_that_does_not_answer(
    shards: FakeShards, monkeypatch: pytest.MonkeyPatch, call: Callable[[ShardedLog], object]
) -> None:
    monkeypatch.setattr(shard_log, "READ_SEGMENT_S", 0.01)
    with pytest.raises(EngineError, match=r"^replay shard 1 does not answer: expected a reply within 0.0\d s"):
        call(ShardedLog(shards.handles))


def test_a_shard_that_answers_but_never_writes_fails_one_checkpoint(shards: FakeShards) -> None:
    shards.hanging.clear()
    log = ShardedLog(shards.handles)
    log.mark()
    with pytest.raises(OSError, match=r"shard 0 is too slow: expected its segments on disk within 0\.05 s"):
        log.list_segments(inserted=15)


def test_a_missing_part_of_a_batch_names_its_shard(shards: FakeShards) -> None:
    shards.hanging = {2}
    loader = BatchLoader(shards.handles, None, shard_sizes=[0, 0, 1])  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="replay shard 2 does not answer"):
        loader.sample()


def test_loading_a_large_replay_has_time_for_every_segment(shards: FakeShards, monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines_s = list[float]()

    def get_results_at_once(references: list[Any], *, deadline_s: float) -> list[str]:
        deadlines_s.append(deadline_s)
        return [""] * len(references)

    monkeypatch.setattr(shard_log, "get_results", get_results_at_once)
    ShardedLog(shards.handles).load([SegmentRef(5 * n, 5 * n + 5, "", shard=0) for n in range(100)])
    assert deadlines_s == [ray_runtime.RESULT_TIMEOUT_S + 100 * shard_log.READ_SEGMENT_S]


def test_a_stop_request_shortens_the_deadline(
    shards: FakeShards, monkeypatch: pytest.MonkeyPatch, stop_request: StopRequest
) -> None:
    monkeypatch.setattr(ray_runtime, "RESULT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(ray_runtime, "STOPPING_TIMEOUT_S", 0.05)
    stop_request.request(signal.SIGTERM)
    start_s = monotonic()
    with pytest.raises(EngineError, match=r"shard 1 .* no checkpoint of this moment is written.* to resume"):
        get_results([handle.sample.remote() for handle in shards.handles])
    assert monotonic() - start_s < 2


def test_a_shard_that_answers_late_is_waited_for(
    shards: FakeShards, stop_request: StopRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get_current_request() is stop_request
    references = [handle.mark.remote() for handle in shards.handles]
    call_sizes = list[int]()

    def get_with_delay(pending: list[tuple[int, Any]], *, timeout: float) -> list[Any]:
        call_sizes.append(len(pending))
        if len(call_sizes) == 3:
            shards.hanging.clear()
        return FakeShards.get(shards, pending, timeout=timeout)

    monkeypatch.setattr(shards, "get", get_with_delay)
    assert len(get_results(references)) == 3


def test_shards_are_called_whenever_an_actor_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first update, only a lost actor reveals a hanging shard."""
    fake_ray = FakeRay(monkeypatch)
    pool, quota_updates = make_pool(fake_ray, actors=2, deadline_s=60.0, start_deadline_s=60.0)
    for _ in range(2):
        pool.request_chunks(None, step=0, max_steps=4 * CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
        assert pool.poll() == []
        before = len(quota_updates)
        fake_ray.now_s += 61
        assert all(isinstance(event, actor_pool.ActorLost) for event in pool.poll())
        assert len(quota_updates) == before + 1
        fake_ray.now_s += 61
