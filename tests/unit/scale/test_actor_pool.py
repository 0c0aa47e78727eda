"""Whom a fleet asks, and how long it waits for an answer."""

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

CHUNK = 10
KEY = b"the key of a run"


class World:
    """Actors and shards that answer when they are told to, in the place of Ray's processes, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.answers: dict[int, tuple[int, Any]] = {}
        """Of each call: the actor, and what it answers."""
        self.seats: dict[int, Any] = {}
        self.ended: list[int] = []
        self._number = 0
        engine = SimpleNamespace(wait=self.wait, get=lambda call: self.answers[call][1], kill=self.ended.append)
        engine.exceptions = SimpleNamespace(RayError=ChildProcessError)
        actors = SimpleNamespace(remote=lambda *_, **__: self.handle(self.begin()))
        engine.remote = lambda _: SimpleNamespace(options=lambda **_: actors)
        monkeypatch.setattr(module, "ray", engine)
        monkeypatch.setattr(module, "get_results", lambda answers, **_: answers)
        monkeypatch.setattr(module, "monotonic", lambda: self.now_s)
        self.begun = 0

    def begin(self) -> int:
        """The number of one more process."""
        self.begun += 1
        return -self.begun

    def handle(self, actor: int) -> Any:
        def remote(*_: Any, **given: Any) -> int:
            self._number += 1
            self.seats[self._number] = given["assignment"]
            self.answers[self._number] = (actor, None)
            return self._number

        return SimpleNamespace(collect=SimpleNamespace(remote=remote))

    def answer(self, call: int, *, held: int = 0, seconds: float = 1.0, waited_s: float = 0.0) -> None:
        actor, _ = self.answers[call]
        self.answers[call] = actor, (CollectStats([], seconds, waited_s), InsertResult(CHUNK, CHUNK, held))

    def wait(self, calls: list[int], **_: Any) -> tuple[list[int], list[int]]:
        return [call for call in calls if self.answers[call][1] is not None], []


def fleet_of(world: World, *, actors: int, shards: int = 1, **scale: Any) -> tuple[ActorPool, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []

    def expect(senders: int, *, steps_elsewhere: int) -> None:
        told.append((senders, steps_elsewhere))

    shard = SimpleNamespace(set_senders=SimpleNamespace(remote=expect))
    config = make_short_config(scale={"actors": actors, "replay_shards": shards, "chunk_steps": CHUNK, **scale})
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    fleet = ActorPool(config, shapes, [shard] * shards, key=KEY)
    for member in fleet.slots:
        member.handle = world.handle(member.actor)
    return fleet, told


def test_with_room_for_a_chunk_at_a_time_actors_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first ones would make all the steps of a run whose learner is slow, and be refused as floods."""
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=4)
    for _ in range(40):
        fleet.request_chunks(None, step=0, max_steps=CHUNK, chunk_steps=CHUNK)
        (call,) = [call.result for member in fleet.slots for call in member.calls]
        world.answer(call)
        (one,) = fleet.poll()
        assert isinstance(one, Delivery)
    assert Counter(actor for actor, _ in world.answers.values()) == dict.fromkeys(range(4), 10)


def test_a_slow_actor_is_waited_for_and_one_that_hangs_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=1, deadline_s=60.0, start_deadline_s=300.0)
    (member,) = fleet.slots
    for _ in range(3):  # each needs longer than the deadline, with what its shard needs
        fleet.request_chunks(None, step=0, max_steps=CHUNK, chunk_steps=CHUNK)
        world.now_s += 70
        assert fleet.poll() == []
        world.answer(member.calls[0].result, seconds=50, waited_s=20)
        assert len(fleet.poll()) == 1
    fleet.request_chunks(None, step=0, max_steps=CHUNK, chunk_steps=CHUNK)
    world.now_s += 4 * 70
    assert fleet.poll() == []
    world.now_s += 1
    assert fleet.poll() == [ActorLost(0, "no chunk within 280 s")]
    assert len(world.ended) == 1


@pytest.mark.quality("L2")
def test_one_that_hangs_at_its_start_is_replaced_while_the_other_is_asked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=2, deadline_s=60.0, start_deadline_s=120.0)
    lost: list[ActorLost] = []
    while not lost:
        fleet.request_chunks(None, step=0, max_steps=4 * CHUNK, chunk_steps=CHUNK)
        world.now_s += 10
        world.answer(fleet.slots[1].calls[0].result)
        lost = [one for one in fleet.poll() if isinstance(one, ActorLost)]
    assert lost == [ActorLost(0, "no chunk within 120 s")]
    assert (world.now_s, fleet.slots[1].num_delivered) == (130, 13)
    world.now_s += 1
    fleet.request_chunks(None, step=0, max_steps=4 * CHUNK, chunk_steps=CHUNK)
    assert fleet.slots[0].handle is not None
    assert fleet.slots[0].next_incarnation == 1


def test_a_slow_start_is_forgotten_after_the_second_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=1, deadline_s=60.0)
    (member,) = fleet.slots
    for seconds in (200.0, 1.0):
        fleet.request_chunks(None, step=0, max_steps=CHUNK, chunk_steps=CHUNK)
        world.answer(member.calls[0].result, seconds=seconds)
        fleet.poll()
    fleet.request_chunks(None, step=0, max_steps=CHUNK, chunk_steps=CHUNK)
    world.now_s += 61
    assert fleet.poll() == [ActorLost(0, "no chunk within 60 s")]


def test_shards_are_told_of_each_other_as_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, told = fleet_of(world, actors=2, shards=2)
    for held in (100, 105, 200):
        fleet.request_chunks(None, step=0, max_steps=2 * CHUNK, chunk_steps=CHUNK)
        for member in fleet.slots:
            world.answer(member.calls[0].result, held=held + member.actor)
        fleet.poll()
    assert told == [(2, 101), (2, 100), (2, 201), (2, 200)]  # not of a twentieth more


def test_one_stands_by_and_takes_the_place_of_whoever_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=2, deadline_s=60.0)
    fleet.request_chunks(None, step=0, max_steps=2 * CHUNK, chunk_steps=CHUNK)
    for member in fleet.slots:
        assert world.begun == 0  # nobody else, while some have not come yet
        world.answer(member.calls[0].result)
        fleet.poll()
    assert world.begun == 1
    fleet.request_chunks(None, step=0, max_steps=CHUNK, chunk_steps=CHUNK)
    world.now_s += 61
    assert fleet.poll() == [ActorLost(0, "no chunk within 60 s")]
    for _ in range(2):  # the other one first, which is there
        fleet.request_chunks(None, step=0, max_steps=CHUNK, chunk_steps=CHUNK)
    assert [actor for actor, _ in world.answers.values()][-1] == -1  # who stood by
    assert world.begun == 1
    fleet.poll()
    assert world.begun == 2  # and the next one stands by
    fleet.close()
    assert len(world.ended) == 4


@pytest.mark.attack("a sender that claims the names of other actors, in any life, gets nothing in and keeps nobody out")
@pytest.mark.quality("X4")
def test_every_life_of_every_actor_has_a_secret_that_its_shard_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=3, shards=2, deadline_s=60.0, start_deadline_s=60.0)
    resumed, _ = fleet_of(world, actors=3, shards=2)
    for member in (*fleet.slots, *resumed.slots):
        member.handle = None
    for _ in range(3):
        fleet.request_chunks(None, step=0, max_steps=3 * CHUNK, chunk_steps=CHUNK)
        world.now_s += 61
        assert len(fleet.poll()) == 3
        world.now_s += 61
    resumed.load_state(fleet.get_state())
    resumed.request_chunks(None, step=0, max_steps=3 * CHUNK, chunk_steps=CHUNK)
    seats = list(world.seats.values())
    assert all(seat.secret == sign_incarnation(KEY, seat.actor, seat.incarnation) for seat in seats)
    assert len({(seat.actor, seat.incarnation) for seat in seats}) == len({seat.secret for seat in seats}) == 12
    assert "secret" not in str(fleet.get_state())
