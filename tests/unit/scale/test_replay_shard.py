"""Replay shards: insertion and validation of chunks, quotas, and restoring."""

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

CHUNK_STEPS = 10
KEY = b"the key of a run"
NUMBERS_ERROR = "invalid incarnation or sequence number: expected integers >= 0"
FRAMES_ERROR = "invalid number of frames: expected 1 to 100 per transition"
MALICIOUS_ACTOR = "an actor that sends absurd values or floods gets nothing absurd in, and at most twice its share"


def make_config_and_shapes(**scale: Any) -> tuple[RunConfig, factory.Shapes]:
    """Return a run config with changed scale settings, and its shapes."""
    config = make_short_config(scale={"actors": 4, "chunk_steps": CHUNK_STEPS, **scale}, replay={"capacity": 2000})
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    return config, shapes


def collect_chunks(
    config: RunConfig, shapes: factory.Shapes, *, actor: int, count: int, incarnation: int = 0
) -> list[Chunk]:
    """Return the first chunks of an incarnation of an actor, with their secret."""
    collector, weights = (
        ChunkCollector(config, shapes, actor=actor, incarnation=incarnation),
        get_policy_weights(factory.build_agent(config, shapes)),
    )
    chunks = [collector.collect(weights, step=CHUNK_STEPS * number, steps=CHUNK_STEPS)[0] for number in range(count)]
    collector.close()
    return [sign_chunk(chunk) for chunk in chunks]


def sign_chunk(chunk: Chunk) -> Chunk:
    """Return the chunk with the secret of its actor and incarnation."""
    return chunk._replace(secret=sign_incarnation(KEY, chunk.actor, chunk.incarnation))


def test_a_repeated_chunk_is_inserted_once() -> None:
    config, shapes = make_config_and_shapes(actors=1)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    first, second = collect_chunks(config, shapes, actor=0, count=2)
    result = shard.insert(first)
    assert (result.transitions, result.frames, result.rejection) == (CHUNK_STEPS, CHUNK_STEPS, "")
    assert shard.insert(first) == result
    assert shard.insert(second).transitions == 2 * CHUNK_STEPS
    assert shard.insert(first).transitions == 2 * CHUNK_STEPS  # an old duplicate
    (restarted,) = collect_chunks(config, shapes, actor=0, count=1, incarnation=1)
    assert shard.insert(restarted).transitions == 3 * CHUNK_STEPS  # sequence numbers restart with the incarnation
    stale = collect_chunks(config, shapes, actor=0, count=3)[2]
    assert shard.insert(stale).transitions == 3 * CHUNK_STEPS  # of a past incarnation
    shard.close()


def test_actors_and_incarnations_collect_different_chunks() -> None:
    config, shapes = make_config_and_shapes()
    chunks = [
        collect_chunks(config, shapes, actor=actor, count=1, incarnation=incarnation)[0]
        for actor, incarnation in ((0, 0), (0, 1), (1, 0))
    ]
    assert len({chunk.payload for chunk in chunks}) == 3
    assert collect_chunks(config, shapes, actor=1, count=1)[0].payload == chunks[2].payload


@pytest.mark.parametrize(("shards", "learners"), [(1, 1), (2, 1), (4, 2)])
def test_parts_of_a_run_can_be_built_with_the_settings_of_the_run(shards: int, learners: int) -> None:
    """Checks of the whole run, as of its batch size, must not fail for its parts."""
    config = load_preset("minute", task="toy/identity_continuous", method="drqv2+mem", seed=1)
    config = apply_overrides(config, {"scale": {"actors": 8, "replay_shards": shards, "learners": learners}})
    env = factory.make_env(config)
    shapes = factory.infer_shapes(config, env)
    env.close()
    collector = ChunkCollector(config, shapes, actor=0, incarnation=0)
    shard = ReplayShard(config, shapes, index=0, count=shards, key=KEY)
    weights = get_policy_weights(factory.build_agent(config, shapes))
    chunk, _ = collector.collect(weights, step=0, steps=config.scale.chunk_steps)
    assert not shard.insert(sign_chunk(chunk)).rejection
    assert len(shard.sample()["indices"]) * shards * learners == config.replay.batch_size
    assert estimate_run(config).config.scale == config.scale
    collector.close()
    shard.close()


@pytest.mark.attack(MALICIOUS_ACTOR)
@pytest.mark.quality("X4")
def test_rewards_outside_the_declared_range_are_rejected() -> None:
    config, shapes = make_config_and_shapes(actors=1, reward_low=-0.5, reward_high=0.5)
    unlimited_config = replace(config, scale=replace(config.scale, reward_low=None, reward_high=None))
    (chunk,) = collect_chunks(config, shapes, actor=0, count=1)
    unlimited_shard = ReplayShard(unlimited_config, shapes, index=0, count=1, key=KEY)
    assert unlimited_shard.insert(chunk).transitions == CHUNK_STEPS
    acted = unlimited_shard.replay.steps["acted"][: unlimited_shard.replay.inserted]
    unlimited_shard.replay.steps["reward"][:CHUNK_STEPS][acted[:CHUNK_STEPS]] = 1e30
    invalid_chunk = chunk._replace(payload=pack_chunk(unlimited_shard.replay, 0))
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    result = shard.insert(invalid_chunk)
    assert result.transitions == shard.replay.inserted == 0
    assert "expected -0.5 to 0.5" in result.rejection
    unlimited_shard.close()
    shard.close()


@pytest.mark.quality("X4")
def test_a_flooding_actor_gets_at_most_twice_its_share() -> None:
    config, shapes = make_config_and_shapes(actors=16)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    shard.set_senders(16)
    chunks_by_actor = {actor: iter(collect_chunks(config, shapes, actor=actor, count=4)) for actor in range(1, 16)}
    flood_chunks = iter(collect_chunks(config, shapes, actor=0, count=60))
    senders, num_steps = [], []
    for _ in range(4):
        for actor in range(1, 16):
            for sender, chunk in ((actor, next(chunks_by_actor[actor])), (0, next(flood_chunks))):
                before = shard.replay.inserted
                rejection = shard.insert(chunk).rejection
                assert not (rejection and sender)
                senders.append(sender)
                num_steps.append(shard.replay.inserted - before)
    sender_of_step = np.repeat(senders, num_steps)  # actor of each step in the ring
    sampled = np.concatenate([shard.sample()["indices"] for _ in range(40)])
    assert (sender_of_step[sampled] == 0).mean() <= MAX_FAIR_SHARES / 16 + 0.02
    shard.close()


@pytest.mark.attack(MALICIOUS_ACTOR)
@pytest.mark.quality("X4")
def test_the_quota_counts_only_steps_that_are_still_in_the_ring() -> None:
    """Sixteen actors take turns; then one of them sends 20 chunks per turn."""
    config, shapes = make_config_and_shapes(actors=16)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    shard.set_senders(16)
    (chunk,) = collect_chunks(config, shapes, actor=0, count=1)
    num_steps, sender_of_step = 0, list[int]()

    def send(actor: int, number: int) -> None:
        nonlocal num_steps
        rejection = shard.insert(sign_chunk(chunk._replace(actor=actor, sequence_number=number))).rejection
        assert not (rejection and actor)
        sender_of_step.extend([actor] * (shard.replay.inserted - num_steps))
        num_steps = shard.replay.inserted

    for number in range(60):
        for actor in range(16):
            for repeat in range(20 if number > 20 and actor == 0 else 1):
                send(actor, 100 * number + repeat)
            assert (
                sender_of_step[-shard.replay.capacity :].count(0)
                <= MAX_FAIR_SHARES / 16 * shard.replay.capacity + 2 * CHUNK_STEPS
            )
    assert num_steps > 4 * shard.replay.capacity
    assert shard.senders.steps_by_actor[0] == sender_of_step[-shard.replay.capacity :].count(0)
    shard.close()


@pytest.mark.attack(MALICIOUS_ACTOR)
@pytest.mark.quality("X4")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"actor": 4}, "unknown sender: actor 4 does not send to shard 0"),
        ({"actor": 1}, "unknown sender: actor 1 does not send to shard 0"),  # its shard is the other one
        ({"actor": -1}, "unknown sender: actor -1 does not send to shard 0"),
        ({"actor": "0"}, "unknown sender: actor '0' does not send to shard 0"),
        ({"incarnation": -1}, f"{NUMBERS_ERROR}, got -1 and 0"),
        ({"sequence_number": 0.5}, f"{NUMBERS_ERROR}, got 0 and 0.5"),
        ({"frames": 10**12}, f"{FRAMES_ERROR}, got 1000000000000 for 10 transitions"),
        ({"frames": 9}, f"{FRAMES_ERROR}, got 9 for 10 transitions"),
    ],
)
def test_chunks_with_invalid_headers_are_rejected(changes: dict[str, Any], reason: str) -> None:
    config, shapes = make_config_and_shapes(actors=4)
    shard = ReplayShard(config, shapes, index=0, count=2, key=KEY)
    (chunk,) = collect_chunks(config, shapes, actor=0, count=1)
    assert shard.insert(chunk._replace(**changes)) == (0, 0, 0, reason)
    assert shard.insert(chunk) == (CHUNK_STEPS, CHUNK_STEPS, len(shard.replay), "")
    shard.close()


FORGED_SENDER = "a sender that claims the names of other actors, in any life, gets nothing in and keeps nobody out"


@pytest.mark.attack(FORGED_SENDER)
@pytest.mark.quality("X4")
@pytest.mark.parametrize("incarnation", [0, 1, 10**9])
@pytest.mark.parametrize("has_secret", [True, False])
def test_a_forged_sender_inserts_nothing_and_blocks_no_other_actor(incarnation: int, *, has_secret: bool) -> None:
    config, shapes = make_config_and_shapes(actors=16)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    (valid_chunk,) = collect_chunks(config, shapes, actor=0, count=1)
    for actor in range(1, 16):
        forged_chunk = valid_chunk._replace(
            actor=actor,
            incarnation=incarnation,
            sequence_number=10**9,
            secret=valid_chunk.secret if has_secret else b"",
        )
        assert shard.insert(forged_chunk) == (
            0,
            0,
            0,
            f"{SIGNATURE_ERROR}: the sender is not actor {actor} in incarnation {incarnation}",
        )
    valid_chunks = [
        sign_chunk(valid_chunk._replace(actor=actor, sequence_number=number))
        for number in range(3)
        for actor in range(1, 16)
    ]
    assert not any(shard.insert(chunk).rejection for chunk in valid_chunks)
    assert shard.senders.transitions == len(valid_chunks) * CHUNK_STEPS
    shard.close()


SIGNATURE_ERROR = "wrong secret"


@pytest.mark.attack(FORGED_SENDER)
@pytest.mark.quality("X4")
@pytest.mark.parametrize("secret", [None, "text", b"", b"x" * 32, 7])
def test_a_wrong_secret_is_rejected(secret: Any) -> None:
    config, shapes = make_config_and_shapes(actors=1)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    (chunk,) = collect_chunks(config, shapes, actor=0, count=1)
    assert SIGNATURE_ERROR in shard.insert(chunk._replace(secret=secret)).rejection
    assert not shard.insert(chunk).rejection
    shard.close()


@pytest.mark.attack(FORGED_SENDER)
@pytest.mark.quality("X4")
def test_a_replaced_actor_cannot_forge_the_next_incarnation_and_its_late_chunks_are_ignored() -> None:
    config, shapes = make_config_and_shapes(actors=4, replay_shards=2)
    shards = [ReplayShard(config, shapes, index=index, count=2, key=KEY) for index in range(2)]
    first_chunk, late_chunk = collect_chunks(config, shapes, actor=1, count=2)
    (next_chunk,) = collect_chunks(config, shapes, actor=1, count=1, incarnation=1)
    assert not shards[1].insert(first_chunk).rejection
    assert SIGNATURE_ERROR in shards[1].insert(late_chunk._replace(incarnation=1)).rejection
    assert not shards[1].insert(next_chunk).rejection
    # Ignored: a chunk of a past incarnation.
    assert shards[1].insert(late_chunk) == (2 * CHUNK_STEPS, 2 * CHUNK_STEPS, len(shards[1].replay), "")
    assert shards[0].insert(next_chunk).rejection == "unknown sender: actor 1 does not send to shard 0"
    for shard in shards:
        shard.close()


@pytest.mark.attack(FORGED_SENDER)
@pytest.mark.quality("X4")
def test_secrets_are_valid_in_one_process_and_in_no_checkpoint(tmp_path: Path) -> None:
    config, shapes = make_config_and_shapes(actors=1)
    (chunk,) = collect_chunks(config, shapes, actor=0, count=1)
    old_shard, new_shard = (
        ReplayShard(config, shapes, index=0, count=1, key=key) for key in (KEY, b"of the next process")
    )
    old_shard.open_log(tmp_path, marker=tmp_path)
    old_shard.insert(chunk)
    state = old_shard.mark()
    files = b"".join(file.read_bytes() for file in tmp_path.rglob("*.segment")) + repr(state).encode()
    assert not any(secret in files for secret in (KEY, chunk.secret))
    assert wait_for_segments(old_shard, state)
    new_shard.load_state(state)
    assert SIGNATURE_ERROR in new_shard.insert(chunk._replace(sequence_number=1)).rejection
    for shard in (old_shard, new_shard):
        shard.close()


@pytest.mark.attack(MALICIOUS_ACTOR)
@pytest.mark.quality("X4")
def test_actions_outside_their_range_are_rejected() -> None:
    config, shapes = make_config_and_shapes(actors=1)
    shard, source_shard = (ReplayShard(config, shapes, index=0, count=1, key=KEY) for _ in range(2))
    (chunk,) = collect_chunks(config, shapes, actor=0, count=1)
    source_shard.insert(chunk)
    source_shard.replay.steps["action"][:CHUNK_STEPS] = 1e30
    rejection = shard.insert(chunk._replace(payload=pack_chunk(source_shard.replay, 0))).rejection
    assert rejection == "invalid actions: expected values from -1 to 1, got 1e+30 to 1e+30"
    for each_shard in (shard, source_shard):
        each_shard.close()


@pytest.mark.quality("X4")
def test_flooding_one_of_several_shards_gives_no_larger_share_of_all() -> None:
    """The quota counts the steps of all shards, not only those of the flooded one."""
    config, shapes = make_config_and_shapes(actors=8, replay_shards=4)
    shard = ReplayShard(config, shapes, index=0, count=4, key=KEY)
    other_chunks, flood_chunks = (
        collect_chunks(config, shapes, actor=4, count=6),
        iter(collect_chunks(config, shapes, actor=0, count=60)),
    )
    for number, chunk in enumerate(other_chunks):
        shard.set_senders(8, steps_elsewhere=6 * (number + 1) * CHUNK_STEPS)  # sent by the other six actors
        assert not shard.insert(chunk).rejection
        for _ in range(10):
            shard.insert(next(flood_chunks))
    total = sum(shard.senders.steps_by_actor.values()) + 6 * len(other_chunks) * CHUNK_STEPS
    assert shard.senders.steps_by_actor[4] == pytest.approx(len(other_chunks) * CHUNK_STEPS, rel=0.3)
    assert shard.senders.steps_by_actor[0] / total <= MAX_FAIR_SHARES / 8 + 0.02
    shard.close()


def test_a_single_sender_may_fill_the_shard() -> None:
    config, shapes = make_config_and_shapes(actors=16)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    shard.set_senders(1)
    for chunk in collect_chunks(config, shapes, actor=3, count=5):
        assert not shard.insert(chunk).rejection
    shard.close()


@pytest.mark.attack(MALICIOUS_ACTOR)
@pytest.mark.parametrize("payload", [b"", b"nonsense"])
def test_an_invalid_payload_is_rejected_with_a_reason(payload: bytes) -> None:
    config, shapes = make_config_and_shapes()
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    result = shard.insert(sign_chunk(Chunk(0, 0, 0, CHUNK_STEPS, payload)))
    assert (result.transitions, result.size) == (0, 0)
    assert result.rejection.startswith("not a segment")
    shard.close()


def wait_for_segments(shard: ReplayShard, state: dict[str, Any]) -> list[Any]:
    """Wait until the segments of a mark are on disk, and return them."""
    while (segments := shard.poll_mark(state["replay"]["inserted"])) is None:
        sleep(0.01)
    return segments


def test_a_slow_disk_does_not_block_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, shapes = make_config_and_shapes(actors=1)
    shard, may_write = ReplayShard(config, shapes, index=0, count=1, key=KEY), Event()
    shard.open_log(tmp_path, marker=tmp_path)
    first, second = collect_chunks(config, shapes, actor=0, count=2)
    shard.insert(first)

    def wait_and_write(*args: Any) -> None:
        assert may_write.wait(30)
        write_atomic(*args)

    monkeypatch.setattr(segment_log, "write_atomic", wait_and_write)
    state = shard.mark()
    assert shard.poll_mark(state["replay"]["inserted"]) is None
    assert shard.insert(second).transitions == 2 * CHUNK_STEPS
    assert len(shard.sample()["indices"]) == config.replay.batch_size
    may_write.set()
    assert wait_for_segments(shard, state)
    shard.close()


@pytest.mark.quality("D3")
@pytest.mark.quality("D4")
def test_a_shard_is_restored_from_its_mark_and_its_log(tmp_path: Path) -> None:
    config, shapes = make_config_and_shapes(actors=2)
    shard, restored = (ReplayShard(config, shapes, index=1, count=2, key=KEY) for _ in range(2))
    chunks = collect_chunks(config, shapes, actor=1, count=6)
    shard.open_log(tmp_path, marker=tmp_path)
    for chunk in chunks[:4]:
        shard.insert(chunk)
    shard.sample()
    state = shard.mark()
    for chunk in chunks[4:]:
        shard.insert(chunk)  # after the mark, so not in it
    segments = wait_for_segments(shard, state)
    shard.mark()
    restored.open_log(tmp_path, marker=tmp_path)
    restored.load_state(state)
    assert restored.load(segments) == ""
    assert restored.replay.inserted == state["replay"]["inserted"]
    reference = ReplayShard(config, shapes, index=1, count=2, key=KEY)
    for chunk in chunks[:4]:
        reference.insert(chunk)
    reference.sample()
    assert compare_trees(reference.sample(), restored.sample()) == []
    flip_bit(next((tmp_path / "shard1").glob("*.segment")))
    assert "checksum" in restored.load(segments)
    for each_shard in (shard, restored, reference):
        each_shard.close()


class LocalShardHandle:
    """Handle of a shard in this process, for a `ray.get` that returns its argument."""

    def __init__(self, shard: ReplayShard) -> None:
        self.sample = SimpleNamespace(remote=shard.sample)


def test_batches_have_rows_of_each_shard_in_proportion_to_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    config, shapes = make_config_and_shapes(actors=2)
    shards = [ReplayShard(config, shapes, index=index, count=2, key=KEY) for index in range(2)]
    for index, count in enumerate((6, 2)):
        for chunk in collect_chunks(config, shapes, actor=index, count=count):
            shards[index].insert(chunk)
    monkeypatch.setattr(ray_runtime.ray, "get", lambda answers, **_: answers)
    loader = BatchLoader([LocalShardHandle(shard) for shard in shards], torch.device("cpu"), shard_sizes=[60, 20])
    batches = [loader.sample() for _ in range(20)]
    assert {len(tensor) for batch in batches for tensor in batch if tensor is not None} == {config.replay.batch_size}
    first_shard_fractions = [int((batch.indices % 2 == 0).sum()) / config.replay.batch_size for batch in batches]
    # A batch has two halves; in every second batch, one is of the smaller shard.
    assert set(first_shard_fractions) == {0.5, 1.0}
    assert np.mean(first_shard_fractions) == pytest.approx(0.75)
    for shard in shards:
        shard.close()


def test_an_empty_shard_is_restored_from_its_mark(tmp_path: Path) -> None:
    config, shapes = make_config_and_shapes(actors=2)
    shard, restored = (ReplayShard(config, shapes, index=0, count=2, key=KEY) for _ in range(2))
    for each_shard in (shard, restored):
        each_shard.open_log(tmp_path, marker=tmp_path)
    state = shard.mark()
    restored.load_state(state)
    assert restored.load(wait_for_segments(shard, state)) == ""
    (chunk,) = collect_chunks(config, shapes, actor=0, count=1)
    assert restored.insert(chunk).transitions == CHUNK_STEPS
    for each_shard in (shard, restored):
        each_shard.close()


@pytest.mark.quality("D5")
def test_a_failed_write_does_not_fail_the_next_mark(tmp_path: Path) -> None:
    config, shapes = make_config_and_shapes(actors=1)
    shard = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    shard.open_log(tmp_path / "not yet", marker=tmp_path)
    first, second = collect_chunks(config, shapes, actor=0, count=2)
    (tmp_path / "not yet").write_text("in the way")
    shard.insert(first)
    state = shard.mark()
    with pytest.raises(OSError, match="not yet"):
        wait_for_segments(shard, state)
    (tmp_path / "not yet").unlink()
    shard.insert(second)
    state = shard.mark()
    segments = wait_for_segments(shard, state)
    restored = ReplayShard(config, shapes, index=0, count=1, key=KEY)
    restored.open_log(tmp_path / "not yet", marker=tmp_path)
    restored.load_state(state)
    assert restored.load(segments) == ""
    for each_shard in (shard, restored):
        each_shard.close()
