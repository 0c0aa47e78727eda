"""The number of CPUs that a run is checked for is what its processes reserve in Ray."""

from time import monotonic, sleep

import pytest

from tests.support.runs import make_short_config

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.long]


def test_actors_standby_and_shards_reserve_what_is_counted() -> None:
    from manyview.scale.cluster import connect, count_cpus
    from manyview.scale.ray_runtime import ray
    from manyview.scale.trainer import ActorLearnerTrainer

    config = make_short_config(
        "sac+pixel+re3", scale={"actors": 2, "replay_shards": 2, "chunk_steps": 20}, schedule={"frames": 10_000}
    )
    assert count_cpus(config, spares=1) == 2 + 1 + 2
    with connect(None, cpus=count_cpus(config, spares=1) + 1):
        trainer, deadline_s, reserved_cpus = ActorLearnerTrainer(config), monotonic() + 120, 0.0
        total_cpus = ray.cluster_resources()["CPU"]
        while reserved_cpus < 5 and monotonic() < deadline_s:
            trainer.advance()
            reserved_cpus = total_cpus - ray.available_resources().get("CPU", 0.0)
        sleep(1.0)
        assert total_cpus - ray.available_resources().get("CPU", 0.0) == reserved_cpus == 5
        assert trainer.counters.steps
        trainer.close()
