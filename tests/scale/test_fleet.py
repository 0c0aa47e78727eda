"""Whom a fleet asks, and how long it waits for an answer."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from manyview.scale import fleet as module
from manyview.scale.collector import Collected
from manyview.scale.fleet import Delivered, Fleet, Lost
from manyview.scale.shard import Receipt, sign_incarnation
from manyview.train import build
from tests.train.runs import short_run

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
        monkeypatch.setattr(module, "answers_of", lambda answers, **_: answers)
        monkeypatch.setattr(module, "monotonic", lambda: self.now_s)
        self.begun = 0

    def begin(self) -> int:
        """The number of one more process."""
        self.begun += 1
        return -self.begun

    def handle(self, actor: int) -> Any:
        def remote(*_: Any, **given: Any) -> int:
            self._number += 1
            self.seats[self._number] = given["seat"]
            self.answers[self._number] = (actor, None)
            return self._number

        return SimpleNamespace(collect=SimpleNamespace(remote=remote))

    def answer(self, call: int, *, held: int = 0, seconds: float = 1.0, waited_s: float = 0.0) -> None:
        actor, _ = self.answers[call]
        self.answers[call] = actor, (Collected([], seconds, waited_s), Receipt(CHUNK, CHUNK, held))

    def wait(self, calls: list[int], **_: Any) -> tuple[list[int], list[int]]:
        return [call for call in calls if self.answers[call][1] is not None], []


def fleet_of(world: World, *, actors: int, shards: int = 1, **scale: Any) -> tuple[Fleet, list[tuple[int, int]]]:
    told: list[tuple[int, int]] = []

    def expect(senders: int, *, elsewhere: int) -> None:
        told.append((senders, elsewhere))

    shard = SimpleNamespace(expect=SimpleNamespace(remote=expect))
    config = short_run(scale={"actors": actors, "replay_shards": shards, "chunk_steps": CHUNK, **scale})
    env = build.environment(config)
    shapes = build.shapes_of(config, env)
    env.close()
    fleet = Fleet(config, shapes, [shard] * shards, key=KEY)
    for member in fleet.members:
        member.handle = world.handle(member.actor)
    return fleet, told


def test_with_room_for_a_chunk_at_a_time_actors_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the first ones would make all the steps of a run whose learner is slow, and be refused as floods."""
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=4)
    for _ in range(40):
        fleet.ask(None, step=0, most_steps=CHUNK, chunk_steps=CHUNK)
        (call,) = [call.answer for member in fleet.members for call in member.calls]
        world.answer(call)
        (one,) = fleet.tend()
        assert isinstance(one, Delivered)
    assert Counter(actor for actor, _ in world.answers.values()) == dict.fromkeys(range(4), 10)


def test_a_slow_actor_is_waited_for_and_one_that_hangs_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=1, deadline_s=60.0, start_deadline_s=300.0)
    (member,) = fleet.members
    for _ in range(3):  # each needs longer than the deadline, with what its shard needs
        fleet.ask(None, step=0, most_steps=CHUNK, chunk_steps=CHUNK)
        world.now_s += 70
        assert fleet.tend() == []
        world.answer(member.calls[0].answer, seconds=50, waited_s=20)
        assert len(fleet.tend()) == 1
    fleet.ask(None, step=0, most_steps=CHUNK, chunk_steps=CHUNK)
    world.now_s += 4 * 70
    assert fleet.tend() == []
    world.now_s += 1
    assert fleet.tend() == [Lost(0, "nothing came for 280 s")]
    assert len(world.ended) == 1


@pytest.mark.quality("L2")
def test_one_that_hangs_at_its_start_is_replaced_while_the_other_is_asked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=2, deadline_s=60.0, start_deadline_s=120.0)
    lost: list[Lost] = []
    while not lost:
        fleet.ask(None, step=0, most_steps=4 * CHUNK, chunk_steps=CHUNK)
        world.now_s += 10
        world.answer(fleet.members[1].calls[0].answer)
        lost = [one for one in fleet.tend() if isinstance(one, Lost)]
    assert lost == [Lost(0, "nothing came for 120 s")]
    assert (world.now_s, fleet.members[1].delivered) == (130, 13)
    world.now_s += 1
    fleet.ask(None, step=0, most_steps=4 * CHUNK, chunk_steps=CHUNK)
    assert fleet.members[0].handle is not None
    assert fleet.members[0].life == 1


def test_a_slow_start_is_forgotten_after_the_second_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=1, deadline_s=60.0)
    (member,) = fleet.members
    for seconds in (200.0, 1.0):
        fleet.ask(None, step=0, most_steps=CHUNK, chunk_steps=CHUNK)
        world.answer(member.calls[0].answer, seconds=seconds)
        fleet.tend()
    fleet.ask(None, step=0, most_steps=CHUNK, chunk_steps=CHUNK)
    world.now_s += 61
    assert fleet.tend() == [Lost(0, "nothing came for 60 s")]


def test_shards_are_told_of_each_other_as_they_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, told = fleet_of(world, actors=2, shards=2)
    for held in (100, 105, 200):
        fleet.ask(None, step=0, most_steps=2 * CHUNK, chunk_steps=CHUNK)
        for member in fleet.members:
            world.answer(member.calls[0].answer, held=held + member.actor)
        fleet.tend()
    assert told == [(2, 101), (2, 100), (2, 201), (2, 200)]  # not of a twentieth more


def test_one_stands_by_and_takes_the_place_of_whoever_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=2, deadline_s=60.0)
    fleet.ask(None, step=0, most_steps=2 * CHUNK, chunk_steps=CHUNK)
    for member in fleet.members:
        assert world.begun == 0  # nobody else, while some have not come yet
        world.answer(member.calls[0].answer)
        fleet.tend()
    assert world.begun == 1
    fleet.ask(None, step=0, most_steps=CHUNK, chunk_steps=CHUNK)
    world.now_s += 61
    assert fleet.tend() == [Lost(0, "nothing came for 60 s")]
    for _ in range(2):  # the other one first, which is there
        fleet.ask(None, step=0, most_steps=CHUNK, chunk_steps=CHUNK)
    assert [actor for actor, _ in world.answers.values()][-1] == -1  # who stood by
    assert world.begun == 1
    fleet.tend()
    assert world.begun == 2  # and the next one stands by
    fleet.close()
    assert len(world.ended) == 4


@pytest.mark.attack("a sender that claims the names of other actors, in any life, gets nothing in and keeps nobody out")
@pytest.mark.quality("X4")
def test_every_life_of_every_actor_has_a_secret_that_its_shard_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    fleet, _ = fleet_of(world, actors=3, shards=2, deadline_s=60.0, start_deadline_s=60.0)
    resumed, _ = fleet_of(world, actors=3, shards=2)
    for member in (*fleet.members, *resumed.members):
        member.handle = None
    for _ in range(3):
        fleet.ask(None, step=0, most_steps=3 * CHUNK, chunk_steps=CHUNK)
        world.now_s += 61
        assert len(fleet.tend()) == 3
        world.now_s += 61
    resumed.load_state(fleet.state())
    resumed.ask(None, step=0, most_steps=3 * CHUNK, chunk_steps=CHUNK)
    seats = list(world.seats.values())
    assert all(seat.secret == sign_incarnation(KEY, seat.actor, seat.life) for seat in seats)
    assert len({(seat.actor, seat.life) for seat in seats}) == len({seat.secret for seat in seats}) == 12
    assert "secret" not in str(fleet.state())
