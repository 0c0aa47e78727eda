"""The actor pool: request order, deadlines, and replacement of lost actors."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from manyview.scale import actor_pool as module
from manyview.scale.actor_pool import ActorLost, ActorPool, Delivery
from manyview.scale.chunk_collector import CollectStats
from manyview.scale.replay_shard import InsertResult, sign_incarnation
from manyview.training import factory
from tests.support.runs import make_short_config

CHUNK_STEPS = 10
KEY = b"the key of a run"


class FakeRay:
    """Fake of Ray and of its clock, whose actors answer when a test calls `answer`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.answers: dict[int, tuple[int, Any]] = {}
        """Actor and answer of each call; the answer is None while it is pending."""
        self.assignments: dict[int, Any] = {}
        self.killed_handles: list[int] = []
        self._num_calls = 0
        api = SimpleNamespace(wait=self.wait, get=lambda call: self.answers[call][1], kill=self.killed_handles.append)
        api.exceptions = SimpleNamespace(RayError=ChildProcessError)
        actors = SimpleNamespace(remote=lambda *_, **__: self.make_handle(self.start_process()))
        api.remote = lambda _: SimpleNamespace(options=lambda **_: actors)
        monkeypatch.setattr(module, "ray", api)
        monkeypatch.setattr(module, "get_results", lambda answers, **_: answers)
        monkeypatch.setattr(module, "monotonic", lambda: self.now_s)
        self.num_started = 0

    def start_process(self) -> int:
        """Start a process and return its number."""
        self.num_started += 1
        return -self.num_started

    def make_handle(self, actor: int) -> Any:
        """Return the handle of an actor process."""

        def remote(*_: Any, **kwargs: Any) -> int:
            self._num_calls += 1
            self.assignments[self._num_calls] = kwargs["assignment"]
            self.answers[self._num_calls] = (actor, None)
            return self._num_calls

        return SimpleNamespace(collect=SimpleNamespace(remote=remote))

    def answer(self, call: int, *, size: int = 0, seconds: float = 1.0, waited_s: float = 0.0) -> None:
        """Answer a call with a chunk, after which its shard has `size` steps."""
        actor, _ = self.answers[call]
        self.answers[call] = actor, (CollectStats([], seconds, waited_s), InsertResult(CHUNK_STEPS, CHUNK_STEPS, size))

    def wait(self, calls: list[int], **_: Any) -> tuple[list[int], list[int]]:
        return [call for call in calls if self.answers[call][1] is not None], []


def make_pool(
    fake_ray: FakeRay, *, actors: int, shards: int = 1, **scale: Any
) -> tuple[ActorPool, list[tuple[int, int]]]:
    """Return a pool of running actors, and the list of its quota updates."""
    quota_updates: list[tuple[int, int]] = []

    def set_senders(senders: int, *, steps_elsewhere: int) -> None:
        quota_updates.append((senders, steps_elsewhere))

    shard = SimpleNamespace(set_senders=SimpleNamespace(remote=set_senders))
    config = make_short_config(scale={"actors": actors, "replay_shards": shards, "chunk_steps": CHUNK_STEPS, **scale})
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    pool = ActorPool(config, shapes, [shard] * shards, key=KEY)
    for slot in pool.slots:
        slot.handle = fake_ray.make_handle(slot.actor)
    return pool, quota_updates


def test_actors_take_turns_when_chunks_are_requested_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the first actors would collect everything and exceed their quota."""
    fake_ray = FakeRay(monkeypatch)
    pool, _ = make_pool(fake_ray, actors=4)
    for _ in range(40):
        pool.request_chunks(None, step=0, max_steps=CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
        (call,) = [call.result for slot in pool.slots for call in slot.calls]
        fake_ray.answer(call)
        (event,) = pool.poll()
        assert isinstance(event, Delivery)
    assert Counter(actor for actor, _ in fake_ray.answers.values()) == dict.fromkeys(range(4), 10)


def test_a_slow_actor_is_kept_and_a_hanging_one_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ray = FakeRay(monkeypatch)
    pool, _ = make_pool(fake_ray, actors=1, deadline_s=60.0, start_deadline_s=300.0)
    (slot,) = pool.slots
    for _ in range(3):  # each exceeds the deadline, with the wait for its shard
        pool.request_chunks(None, step=0, max_steps=CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
        fake_ray.now_s += 70
        assert pool.poll() == []
        fake_ray.answer(slot.calls[0].result, seconds=50, waited_s=20)
        assert len(pool.poll()) == 1
    pool.request_chunks(None, step=0, max_steps=CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
    fake_ray.now_s += 4 * 70
    assert pool.poll() == []
    fake_ray.now_s += 1
    assert pool.poll() == [ActorLost(0, "no chunk within 280 s")]
    assert len(fake_ray.killed_handles) == 1


@pytest.mark.quality("L2")
def test_an_actor_that_hangs_at_its_start_is_replaced_while_the_others_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ray = FakeRay(monkeypatch)
    pool, _ = make_pool(fake_ray, actors=2, deadline_s=60.0, start_deadline_s=120.0)
    lost_actors: list[ActorLost] = []
    while not lost_actors:
        pool.request_chunks(None, step=0, max_steps=4 * CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
        fake_ray.now_s += 10
        fake_ray.answer(pool.slots[1].calls[0].result)
        lost_actors = [event for event in pool.poll() if isinstance(event, ActorLost)]
    assert lost_actors == [ActorLost(0, "no chunk within 120 s")]
    assert (fake_ray.now_s, pool.slots[1].num_delivered) == (130, 13)
    fake_ray.now_s += 1
    pool.request_chunks(None, step=0, max_steps=4 * CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
    assert pool.slots[0].handle is not None
    assert pool.slots[0].next_incarnation == 1


def test_a_slow_start_extends_no_deadline_after_the_second_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ray = FakeRay(monkeypatch)
    pool, _ = make_pool(fake_ray, actors=1, deadline_s=60.0)
    (slot,) = pool.slots
    for seconds in (200.0, 1.0):
        pool.request_chunks(None, step=0, max_steps=CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
        fake_ray.answer(slot.calls[0].result, seconds=seconds)
        pool.poll()
    pool.request_chunks(None, step=0, max_steps=CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
    fake_ray.now_s += 61
    assert pool.poll() == [ActorLost(0, "no chunk within 60 s")]


def test_shards_get_the_steps_of_the_other_shards_as_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ray = FakeRay(monkeypatch)
    pool, quota_updates = make_pool(fake_ray, actors=2, shards=2)
    for size in (100, 105, 200):
        pool.request_chunks(None, step=0, max_steps=2 * CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
        for slot in pool.slots:
            fake_ray.answer(slot.calls[0].result, size=size + slot.actor)
        pool.poll()
    assert quota_updates == [(2, 101), (2, 100), (2, 201), (2, 200)]  # no update for 5 % more


def test_a_standby_process_replaces_a_lost_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ray = FakeRay(monkeypatch)
    pool, _ = make_pool(fake_ray, actors=2, deadline_s=60.0)
    pool.request_chunks(None, step=0, max_steps=2 * CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
    for slot in pool.slots:
        assert fake_ray.num_started == 0  # no standby before all actors have delivered
        fake_ray.answer(slot.calls[0].result)
        pool.poll()
    assert fake_ray.num_started == 1
    pool.request_chunks(None, step=0, max_steps=CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
    fake_ray.now_s += 61
    assert pool.poll() == [ActorLost(0, "no chunk within 60 s")]
    for _ in range(2):  # the first call goes to the other actor, which is running
        pool.request_chunks(None, step=0, max_steps=CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
    assert [actor for actor, _ in fake_ray.answers.values()][-1] == -1  # the standby
    assert fake_ray.num_started == 1
    pool.poll()
    assert fake_ray.num_started == 2  # the next standby
    pool.close()
    assert len(fake_ray.killed_handles) == 4


@pytest.mark.attack("a sender that claims the names of other actors, in any life, gets nothing in and keeps nobody out")
@pytest.mark.quality("X4")
def test_every_incarnation_of_every_actor_has_a_secret_that_its_shard_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ray = FakeRay(monkeypatch)
    pool, _ = make_pool(fake_ray, actors=3, shards=2, deadline_s=60.0, start_deadline_s=60.0)
    resumed, _ = make_pool(fake_ray, actors=3, shards=2)
    for slot in (*pool.slots, *resumed.slots):
        slot.handle = None
    for _ in range(3):
        pool.request_chunks(None, step=0, max_steps=3 * CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
        fake_ray.now_s += 61
        assert len(pool.poll()) == 3
        fake_ray.now_s += 61
    resumed.load_state(pool.get_state())
    resumed.request_chunks(None, step=0, max_steps=3 * CHUNK_STEPS, chunk_steps=CHUNK_STEPS)
    assignments = list(fake_ray.assignments.values())
    assert all(
        assignment.secret == sign_incarnation(KEY, assignment.actor, assignment.incarnation)
        for assignment in assignments
    )
    assert (
        len({(assignment.actor, assignment.incarnation) for assignment in assignments})
        == len({assignment.secret for assignment in assignments})
        == 12
    )
    assert "secret" not in str(pool.get_state())
