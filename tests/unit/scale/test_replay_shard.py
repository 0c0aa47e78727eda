"""A shard takes each parcel once, refuses nonsense and floods, and comes back from its log."""

from dataclasses import replace
from pathlib import Path
from threading import Event
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.run_comparison import compare_trees
from manyview.config.overrides import apply_overrides
from manyview.data import segment_log
from manyview.data.chunks import pack_chunk
from manyview.scale import ray_runtime
from manyview.scale.batch_loader import BatchLoader
from manyview.scale.chunk_collector import ChunkCollector, get_policy_weights
from manyview.scale.replay_shard import MAX_FAIR_SHARES, Chunk, ReplayShard, sign_incarnation
from manyview.training import RunConfig, factory, load_preset
from manyview.training.dry_run import estimate_run
from manyview.utils.atomic_io import write_atomic
from tests.support.file_corruption import flip_bit
from tests.support.runs import make_short_config

CHUNK = 10
KEY = b"the key of a run"
BAD_NUMBERS = "invalid incarnation or sequence number: expected integers >= 0"
BAD_FRAMES = "invalid number of frames: expected 1 to 100 per transition"
MALICIOUS = "an actor that sends absurd values or floods gets nothing absurd in, and at most twice its share"


def setting(**scale: Any) -> tuple[RunConfig, factory.Shapes]:
    config = make_short_config(scale={"actors": 4, "chunk_steps": CHUNK, **scale}, replay={"capacity": 2000})
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    return config, shapes


def parcels(config: RunConfig, shapes: factory.Shapes, *, actor: int, count: int, life: int = 0) -> list[Chunk]:
    collector, weights = (
        ChunkCollector(config, shapes, actor=actor, incarnation=life),
        get_policy_weights(factory.build_agent(config, shapes)),
    )
    made = [collector.collect(weights, step=CHUNK * turn, steps=CHUNK)[0] for turn in range(count)]
    collector.close()
    return [signed(parcel) for parcel in made]


def signed(parcel: Chunk) -> Chunk:
    """As the actor that it names would send it."""
    return parcel._replace(secret=sign_incarnation(KEY, parcel.actor, parcel.incarnation))


def test_a_parcel_that_comes_twice_is_taken_once() -> None:
    config, shapes = setting(actors=1)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    first, second = parcels(config, shapes, actor=0, count=2)
    receipt = shard.insert(first)
    assert (receipt.transitions, receipt.frames, receipt.rejection) == (CHUNK, CHUNK, "")
    assert shard.insert(first) == receipt
    assert shard.insert(second).transitions == 2 * CHUNK
    assert shard.insert(first).transitions == 2 * CHUNK  # long taken
    (again,) = parcels(config, shapes, actor=0, count=1, life=1)
    assert shard.insert(again).transitions == 3 * CHUNK  # its numbers begin again with its life
    late = parcels(config, shapes, actor=0, count=3)[2]
    assert shard.insert(late).transitions == 3 * CHUNK  # of a life that is over
    shard.close()


def test_lives_of_an_actor_and_actors_differ_in_what_they_do() -> None:
    config, shapes = setting()
    made = [parcels(config, shapes, actor=actor, count=1, life=life)[0] for actor, life in ((0, 0), (0, 1), (1, 0))]
    assert len({parcel.payload for parcel in made}) == 3
    assert parcels(config, shapes, actor=1, count=1)[0].payload == made[2].payload


@pytest.mark.parametrize(("shards", "learners"), [(1, 1), (2, 1), (4, 2)])
def test_parts_of_a_run_can_be_built_with_the_settings_of_the_run(shards: int, learners: int) -> None:
    """What is true of the whole (chunks fit into a shard, batches can be divided) must not be asked of each part."""
    config = load_preset("minute", task="toy/identity_continuous", method="drqv2+mem", seed=1)
    config = apply_overrides(config, {"scale": {"actors": 8, "replay_shards": shards, "learners": learners}})
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    collector = ChunkCollector(config, shapes, actor=0, incarnation=0)
    shard = ReplayShard(config, shapes, index=0, count=shards, key=KEY)
    weights = get_policy_weights(factory.build_agent(config, shapes))
    parcel, _ = collector.collect(weights, step=0, steps=config.scale.chunk_steps)
    assert not shard.insert(signed(parcel)).rejection
    assert len(shard.sample()["indices"]) * shards * learners == config.replay.batch_size
    assert estimate_run(config).config.scale == config.scale
    collector.close()
    shard.close()


@pytest.mark.attack(MALICIOUS)
@pytest.mark.quality("X4")
def test_rewards_outside_the_declared_range_do_not_get_in() -> None:
    config, shapes = setting(actors=1, reward_low=-0.5, reward_high=0.5)
    open_config = replace(config, scale=replace(config.scale, reward_low=None, reward_high=None))
    (parcel,) = parcels(config, shapes, actor=0, count=1)
    taken = ReplayShard(open_config, shapes, index=0, count=1, key=KEY)
    assert taken.insert(parcel).transitions == CHUNK
    acted = taken.replay.steps["acted"][: taken.replay.inserted]
    taken.replay.steps["reward"][:CHUNK][acted[:CHUNK]] = 1e30
    absurd = parcel._replace(payload=pack_chunk(taken.replay, 0))
    refusing = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    receipt = refusing.insert(absurd)
    assert receipt.transitions == refusing.replay.inserted == 0
    assert "expected -0.5 to 0.5" in receipt.rejection
    taken.close()
    refusing.close()


@pytest.mark.quality("X4")
def test_an_actor_that_floods_gets_twice_its_share_and_no_more() -> None:
    config, shapes = setting(actors=16)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    shard.set_senders(16)
    sent = {actor: iter(parcels(config, shapes, actor=actor, count=4)) for actor in range(1, 16)}
    flood = iter(parcels(config, shapes, actor=0, count=60))
    taken_from, lengths = [], []
    for _ in range(4):
        for actor in range(1, 16):
            for sender, parcel in ((actor, next(sent[actor])), (0, next(flood))):
                before = shard.replay.inserted
                refused = shard.insert(parcel).rejection
                assert not (refused and sender)
                taken_from.append(sender)
                lengths.append(shard.replay.inserted - before)
    whose = np.repeat(taken_from, lengths)  # of each step in the ring
    sampled = np.concatenate([shard.sample()["indices"] for _ in range(40)])
    assert (whose[sampled] == 0).mean() <= MAX_FAIR_SHARES / 16 + 0.02
    shard.close()


@pytest.mark.attack(MALICIOUS)
@pytest.mark.quality("X4")
def test_the_share_is_of_what_the_ring_holds_when_it_has_long_wrapped() -> None:
    """Sixteen take turns; then one sends as much as it can, for two more times round the ring."""
    config, shapes = setting(actors=16)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    shard.set_senders(16)
    (piece,) = parcels(config, shapes, actor=0, count=1)
    steps, whose = 0, list[int]()

    def send(actor: int, number: int) -> None:
        nonlocal steps
        refused = shard.insert(signed(piece._replace(actor=actor, sequence_number=number))).rejection
        assert not (refused and actor)
        whose.extend([actor] * (shard.replay.inserted - steps))
        steps = shard.replay.inserted

    for number in range(60):
        for actor in range(16):
            for repeat in range(20 if number > 20 and actor == 0 else 1):
                send(actor, 100 * number + repeat)
            assert whose[-shard.replay.capacity :].count(0) <= MAX_FAIR_SHARES / 16 * shard.replay.capacity + 2 * CHUNK
    assert steps > 4 * shard.replay.capacity
    assert shard.senders.steps_by_actor[0] == whose[-shard.replay.capacity :].count(0)
    shard.close()


@pytest.mark.attack(MALICIOUS)
@pytest.mark.quality("X4")
@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({"actor": 4}, "unknown sender: actor 4 does not send to shard 0"),
        ({"actor": 1}, "unknown sender: actor 1 does not send to shard 0"),  # it sends to the other shard
        ({"actor": -1}, "unknown sender: actor -1 does not send to shard 0"),
        ({"actor": "0"}, "unknown sender: actor '0' does not send to shard 0"),
        ({"incarnation": -1}, f"{BAD_NUMBERS}, got -1 and 0"),
        ({"sequence_number": 0.5}, f"{BAD_NUMBERS}, got 0 and 0.5"),
        ({"frames": 10**12}, f"{BAD_FRAMES}, got 1000000000000 for 10 transitions"),
        ({"frames": 9}, f"{BAD_FRAMES}, got 9 for 10 transitions"),
    ],
)
def test_what_a_parcel_says_of_itself_is_not_believed(lie: dict[str, Any], reason: str) -> None:
    config, shapes = setting(actors=4)
    shard = ReplayShard(config, shapes, index=0, count=2, key=KEY)
    (parcel,) = parcels(config, shapes, actor=0, count=1)
    assert shard.insert(parcel._replace(**lie)) == (0, 0, 0, reason)
    assert shard.insert(parcel) == (CHUNK, CHUNK, len(shard.replay), "")
    shard.close()


FORGED = "a sender that claims the names of other actors, in any life, gets nothing in and keeps nobody out"


@pytest.mark.attack(FORGED)
@pytest.mark.quality("X4")
@pytest.mark.parametrize("life", [0, 1, 10**9])
@pytest.mark.parametrize("has_secret", [True, False])
def test_one_sender_under_all_names_gets_nothing_in_and_keeps_nobody_out(life: int, *, has_secret: bool) -> None:
    config, shapes = setting(actors=16)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    (own,) = parcels(config, shapes, actor=0, count=1)
    for actor in range(1, 16):
        forged = own._replace(
            actor=actor, incarnation=life, sequence_number=10**9, secret=own.secret if has_secret else b""
        )
        assert shard.insert(forged) == (0, 0, 0, f"{STRANGER}: the sender is not actor {actor} in incarnation {life}")
    honest = [
        signed(own._replace(actor=actor, sequence_number=number)) for number in range(3) for actor in range(1, 16)
    ]
    assert not any(shard.insert(parcel).rejection for parcel in honest)
    assert shard.senders.transitions == len(honest) * CHUNK
    shard.close()


STRANGER = "wrong secret"


@pytest.mark.attack(FORGED)
@pytest.mark.quality("X4")
@pytest.mark.parametrize("secret", [None, "text", b"", b"x" * 32, 7])
def test_a_secret_of_any_kind_but_the_right_one_is_refused(secret: Any) -> None:
    config, shapes = setting(actors=1)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    (parcel,) = parcels(config, shapes, actor=0, count=1)
    assert STRANGER in shard.insert(parcel._replace(secret=secret)).rejection
    assert not shard.insert(parcel).rejection
    shard.close()


@pytest.mark.attack(FORGED)
@pytest.mark.quality("X4")
def test_a_replaced_actor_cannot_take_the_next_life_and_its_late_parcels_do_no_harm() -> None:
    config, shapes = setting(actors=4, replay_shards=2)
    shards = [ReplayShard(config, shapes, index=index, count=2, key=KEY) for index in range(2)]
    before, late = parcels(config, shapes, actor=1, count=2)
    (after,) = parcels(config, shapes, actor=1, count=1, life=1)
    assert not shards[1].insert(before).rejection
    assert STRANGER in shards[1].insert(late._replace(incarnation=1)).rejection
    assert not shards[1].insert(after).rejection
    assert shards[1].insert(late) == (2 * CHUNK, 2 * CHUNK, len(shards[1].replay), "")  # ignored: its life is over
    assert shards[0].insert(after).rejection == "unknown sender: actor 1 does not send to shard 0"
    for shard in shards:
        shard.close()


@pytest.mark.attack(FORGED)
@pytest.mark.quality("X4")
def test_secrets_are_of_one_process_and_in_no_checkpoint(tmp_path: Path) -> None:
    config, shapes = setting(actors=1)
    (parcel,) = parcels(config, shapes, actor=0, count=1)
    before, after = (ReplayShard(config, shapes, index=0, count=1, key=key) for key in (KEY, b"of the next process"))
    before.open_log(tmp_path, marker=tmp_path)
    before.insert(parcel)
    state = before.mark()
    files = b"".join(file.read_bytes() for file in tmp_path.rglob("*.segment")) + repr(state).encode()
    assert not any(secret in files for secret in (KEY, parcel.secret))
    assert written(before, state)
    after.load_state(state)
    assert STRANGER in after.insert(parcel._replace(sequence_number=1)).rejection
    for shard in (before, after):
        shard.close()


@pytest.mark.attack(MALICIOUS)
@pytest.mark.quality("X4")
def test_actions_that_no_agent_can_take_do_not_get_in() -> None:
    config, shapes = setting(actors=1)
    shard, taken = (ReplayShard(config, shapes, index=0, count=1, key=KEY) for _ in range(2))
    (parcel,) = parcels(config, shapes, actor=0, count=1)
    taken.insert(parcel)
    taken.replay.steps["action"][:CHUNK] = 1e30
    refused = shard.insert(parcel._replace(payload=pack_chunk(taken.replay, 0))).rejection
    assert refused == "invalid actions: expected values from -1 to 1, got 1e+30 to 1e+30"
    for one in (shard, taken):
        one.close()


@pytest.mark.quality("X4")
def test_whoever_floods_one_shard_of_several_gets_no_more_of_the_whole() -> None:
    """Eight actors and four shards: half of a shard is a quarter of nothing."""
    config, shapes = setting(actors=8, replay_shards=4)
    shard = ReplayShard(config, shapes, index=0, count=4, key=KEY)
    honest, flood = parcels(config, shapes, actor=4, count=6), iter(parcels(config, shapes, actor=0, count=60))
    for turn, parcel in enumerate(honest):
        shard.set_senders(8, steps_elsewhere=6 * (turn + 1) * CHUNK)  # what the other six have sent to the other three
        assert not shard.insert(parcel).rejection
        for _ in range(10):
            shard.insert(next(flood))
    total = sum(shard.senders.steps_by_actor.values()) + 6 * len(honest) * CHUNK
    assert shard.senders.steps_by_actor[4] == pytest.approx(len(honest) * CHUNK, rel=0.3)
    assert shard.senders.steps_by_actor[0] / total <= MAX_FAIR_SHARES / 8 + 0.02
    shard.close()


def test_a_few_survivors_may_have_all_of_it() -> None:
    config, shapes = setting(actors=16)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    shard.set_senders(1)
    for parcel in parcels(config, shapes, actor=3, count=5):
        assert not shard.insert(parcel).rejection
    shard.close()


@pytest.mark.attack(MALICIOUS)
@pytest.mark.parametrize("damage", [b"", b"nonsense"])
def test_bytes_that_are_no_piece_are_refused_with_a_reason(damage: bytes) -> None:
    config, shapes = setting()
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    receipt = shard.insert(signed(Chunk(0, 0, 0, CHUNK, damage)))
    assert (receipt.transitions, receipt.size) == (0, 0)
    assert receipt.rejection.startswith("not a segment")
    shard.close()


def written(shard: ReplayShard, state: dict[str, Any]) -> list[Any]:
    """The segments of a mark, when they are on the disk."""
    while (found := shard.poll_mark(state["replay"]["inserted"])) is None:
        sleep(0.01)
    return found


def test_a_slow_disk_keeps_nobody_waiting_at_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, shapes = setting(actors=1)
    shard, disk = ReplayShard(config, shapes, index=0, count=1, key=KEY), Event()
    shard.open_log(tmp_path, marker=tmp_path)
    first, second = parcels(config, shapes, actor=0, count=2)
    shard.insert(first)

    def stalled(*given: Any) -> None:
        assert disk.wait(30)
        write_atomic(*given)

    monkeypatch.setattr(segment_log, "write_atomic", stalled)
    state = shard.mark()
    assert shard.poll_mark(state["replay"]["inserted"]) is None
    assert shard.insert(second).transitions == 2 * CHUNK
    assert len(shard.sample()["indices"]) == config.replay.batch_size
    disk.set()
    assert written(shard, state)
    shard.close()


@pytest.mark.quality("D3")
@pytest.mark.quality("D4")
def test_a_shard_goes_on_from_its_mark_and_its_log(tmp_path: Path) -> None:
    config, shapes = setting(actors=2)
    before, after = (ReplayShard(config, shapes, index=1, count=2, key=KEY) for _ in range(2))
    made = parcels(config, shapes, actor=1, count=6)
    before.open_log(tmp_path, marker=tmp_path)
    for parcel in made[:4]:
        before.insert(parcel)
    before.sample()
    state = before.mark()
    for parcel in made[4:]:
        before.insert(parcel)  # comes after the checkpoint, and is not in it
    segments = written(before, state)
    before.mark()
    after.open_log(tmp_path, marker=tmp_path)
    after.load_state(state)
    assert after.load(segments) == ""
    assert after.replay.inserted == state["replay"]["inserted"]
    twin = ReplayShard(config, shapes, index=1, count=2, key=KEY)
    for parcel in made[:4]:
        twin.insert(parcel)
    twin.sample()
    assert compare_trees(twin.sample(), after.sample()) == []
    flip_bit(next((tmp_path / "shard1").glob("*.segment")))
    assert "checksum" in after.load(segments)
    for shard in (before, after, twin):
        shard.close()


class Here:
    """A shard in this process, asked as Ray's are; `ray.get` finds the answer as it is."""

    def __init__(self, shard: ReplayShard) -> None:
        self.sample = SimpleNamespace(remote=shard.sample)


def test_batches_have_rows_of_every_shard_as_it_has_steps_and_none_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    config, shapes = setting(actors=2)
    shards = [ReplayShard(config, shapes, index=index, count=2, key=KEY) for index in range(2)]
    for index, count in enumerate((6, 2)):
        for parcel in parcels(config, shapes, actor=index, count=count):
            shards[index].insert(parcel)
    monkeypatch.setattr(ray_runtime.ray, "get", lambda answers, **_: answers)
    source = BatchLoader([Here(shard) for shard in shards], torch.device("cpu"), shard_sizes=[60, 20])
    drawn = [source.sample() for _ in range(20)]
    assert {len(tensor) for batch in drawn for tensor in batch if tensor is not None} == {config.replay.batch_size}
    of_shard = [int((batch.indices % 2 == 0).sum()) / config.replay.batch_size for batch in drawn]
    assert set(of_shard) == {0.5, 1.0}  # parts are halves, and every second batch has one of the smaller shard
    assert np.mean(of_shard) == pytest.approx(0.75)
    for shard in shards:
        shard.close()


def test_a_shard_that_has_nothing_yet_goes_on_from_its_mark_too(tmp_path: Path) -> None:
    config, shapes = setting(actors=2)
    before, after = (ReplayShard(config, shapes, index=0, count=2, key=KEY) for _ in range(2))
    for shard in (before, after):
        shard.open_log(tmp_path, marker=tmp_path)
    state = before.mark()
    after.load_state(state)
    assert after.load(written(before, state)) == ""
    (parcel,) = parcels(config, shapes, actor=0, count=1)
    assert after.insert(parcel).transitions == CHUNK
    for shard in (before, after):
        shard.close()


@pytest.mark.quality("D5")
def test_a_disk_that_was_full_for_a_moment_costs_no_later_mark(tmp_path: Path) -> None:
    config, shapes = setting(actors=1)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    shard.open_log(tmp_path / "not yet", marker=tmp_path)
    first, second = parcels(config, shapes, actor=0, count=2)
    (tmp_path / "not yet").write_text("in the way")
    shard.insert(first)
    state = shard.mark()
    with pytest.raises(OSError, match="not yet"):
        written(shard, state)
    (tmp_path / "not yet").unlink()
    shard.insert(second)
    state = shard.mark()
    segments = written(shard, state)
    again = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    again.open_log(tmp_path / "not yet", marker=tmp_path)
    again.load_state(state)
    assert again.load(segments) == ""
    for one in (shard, again):
        one.close()
