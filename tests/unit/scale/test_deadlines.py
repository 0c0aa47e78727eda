"""Calls to shards end by a deadline that names the shard, and soon after a request to stop."""

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
from tests.unit.scale.test_actor_pool import CHUNK, World, fleet_of

HUNG = "a shard that hangs is named within a deadline, and a stop that is requested meanwhile leaves within seconds"
pytestmark = [pytest.mark.attack(HUNG), pytest.mark.quality("L8")]


class Shards:
    """Shards in the place of Ray's, of which some never answer."""

    class GetTimeoutError(Exception):
        pass

    def __init__(self, count: int, *hung: int) -> None:
        self.hung, self.asked = set(hung), list[str]()
        self.handles = [_Handle(self, number) for number in range(count)]
        self.exceptions = SimpleNamespace(
            GetTimeoutError=self.GetTimeoutError, RayError=ChildProcessError, RayTaskError=TypeError
        )

    def get(self, references: list[tuple[int, Any]], *, timeout: float) -> list[Any]:
        if any(number in self.hung for number, _ in references):
            sleep(timeout)
            raise self.GetTimeoutError
        return [answer for _, answer in references]

    def wait(self, references: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert (num_returns, timeout) == (len(references), 0)
        return [one for one in references if one[0] not in self.hung], [
            one for one in references if one[0] in self.hung
        ]


class _Handle:
    def __init__(self, shards: Shards, number: int) -> None:
        self._shards, self._number = shards, number

    def __getattr__(self, method: str) -> Any:
        def remote(*_: Any, **__: Any) -> tuple[int, Any]:
            self._shards.asked.append(method)
            state = {"replay": {"inserted": 5}}
            return self._number, {"mark": state, "read": "", "marked": None}.get(method)

        return SimpleNamespace(remote=remote)


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Shards:
    made = Shards(3, 1)
    monkeypatch.setattr(ray_runtime, "ray", made)
    monkeypatch.setattr(ray_runtime, "POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(ray_runtime, "RESULT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(shard_log, "WRITE_TIMEOUT_S", 0.05)
    return made


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    request = StopRequest()
    set_current_request(request)
    yield request
    set_current_request(None)


def entries() -> list[SegmentRef]:
    return [SegmentRef(0, 5, "", shard=number) for number in range(3)]


CALLS: list[Callable[[ShardedLog], object]] = [
    lambda log: log.mark(),
    lambda log: log.prune(entries()),
    lambda log: log.load(entries()),
    lambda log: log.truncate(keep=entries()),
]


@pytest.mark.parametrize("call", CALLS)
def test_every_call_of_the_log_names_the_shard_that_does_not_answer(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, call: Callable[[ShardedLog], object]
) -> None:
    monkeypatch.setattr(shard_log, "READ_SEGMENT_S", 0.01)
    with pytest.raises(EngineError, match=r"^replay shard 1 does not answer: expected a reply within 0.0\d s"):
        call(ShardedLog(shards.handles))


def test_a_shard_that_answers_but_never_writes_costs_one_checkpoint(shards: Shards) -> None:
    shards.hung.clear()
    log = ShardedLog(shards.handles)
    log.mark()
    with pytest.raises(OSError, match=r"shard 0 is too slow: expected its segments on disk within 0\.05 s"):
        log.list_segments(inserted=15)


def test_a_batch_names_the_shard_of_the_part_that_does_not_come(shards: Shards) -> None:
    shards.hung = {2}
    source = BatchLoader(shards.handles, None, shard_sizes=[0, 0, 1])  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="replay shard 2 does not answer"):
        source.sample()


def test_reading_a_large_replay_back_has_time_for_every_segment(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[float]()

    def answer(asked: list[Any], *, deadline_s: float) -> list[str]:
        given.append(deadline_s)
        return [""] * len(asked)

    monkeypatch.setattr(shard_log, "get_results", answer)
    ShardedLog(shards.handles).load([SegmentRef(5 * n, 5 * n + 5, "", shard=0) for n in range(100)])
    assert given == [ray_runtime.RESULT_TIMEOUT_S + 100 * shard_log.READ_SEGMENT_S]


def test_after_a_request_to_stop_nobody_waits_for_the_whole_deadline(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, stop: StopRequest
) -> None:
    monkeypatch.setattr(ray_runtime, "RESULT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(ray_runtime, "STOPPING_TIMEOUT_S", 0.05)
    stop.request(signal.SIGTERM)
    began_s = monotonic()
    with pytest.raises(EngineError, match=r"shard 1 .* no checkpoint of this moment is written.* to resume"):
        get_results([handle.sample.remote() for handle in shards.handles])
    assert monotonic() - began_s < 2


def test_a_shard_that_answers_late_is_waited_for(
    shards: Shards, stop: StopRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert get_current_request() is stop
    references = [handle.mark.remote() for handle in shards.handles]
    answered = list[int]()

    def get(asked: list[tuple[int, Any]], *, timeout: float) -> list[Any]:
        answered.append(len(asked))
        if len(answered) == 3:
            shards.hung.clear()
        return Shards.get(shards, asked, timeout=timeout)

    monkeypatch.setattr(shards, "get", get)
    assert len(get_results(references)) == 3


def test_shards_are_asked_whenever_an_actor_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that hangs before the first update shows by its actors alone."""
    world = World(monkeypatch)
    actors, told = fleet_of(world, actors=2, deadline_s=60.0, start_deadline_s=60.0)
    for _ in range(2):
        actors.request_chunks(None, step=0, max_steps=4 * CHUNK, chunk_steps=CHUNK)
        assert actors.poll() == []
        before = len(told)
        world.now_s += 61
        assert all(isinstance(one, actor_pool.ActorLost) for one in actors.poll())
        assert len(told) == before + 1
        world.now_s += 61
