"""Time an action of a loaded and of an exported policy against the bare forward pass (P15).

    python -m benchmarks.policy                # 3 views of 84 pixels, DrQ-v2 with MEM at paper size
    python -m benchmarks.policy --pixels 24 --trunk area

One thread; medians of alternating sides. `act` checks, stacks and scales; the bare side gets stacked tensors.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.small_update import make_config, make_shapes
from manyview.deploy import export
from manyview.deploy.network import PolicyNetwork
from manyview.deploy.policy import SavedPolicy, TorchPolicy
from manyview.runtime import ActionBounds, PolicySpec, ViewSpec, onnx_policy
from manyview.training.counters import Counters
from manyview.training.factory import build_agent
from manyview.training.update_benchmark import time_alternating

NUM_OBSERVATIONS = 8
ACTIONS_PER_ROUND = 5


class PolicyTimes:
    """Three ways to an action of the same agent: loaded, exported, and its bare forward pass."""

    def __init__(self, *, pixels: int, trunk: str, views: int = 3, method: str = "drqv2+mem") -> None:
        config = make_config(method, pixels=pixels, batch_size=256, trunk=trunk)
        shapes = make_shapes(config, views=views, actions=6)
        self.agent = build_agent(config, shapes).eval()
        spec = PolicySpec(
            views=tuple(ViewSpec(view.name, *view.shape) for view in shapes.cameras),
            frame_stack=shapes.frame_stack,
            actions=ActionBounds((-2.0,) * 6, (3.0,) * 6),
        )
        network = PolicyNetwork(self.agent, shapes, spec)
        self.torch_policy = TorchPolicy(network)
        with TemporaryDirectory() as folder:
            export._write_onnx(SavedPolicy(network, config, Path("000000000"), Counters(), {}), Path(folder))
            self.onnx_policy = onnx_policy.load(folder)
        rng = np.random.default_rng(0)
        self.observations = [
            {view.name: rng.integers(0, 256, view.shape, np.uint8) for view in spec.views}
            for _ in range(NUM_OBSERVATIONS)
        ]
        self.views = torch.randint(0, 256, (1, views, *shapes.image_shape), dtype=torch.uint8)
        self.mask = torch.ones(1, views, dtype=torch.bool)

    def act(self, policy: Any) -> None:
        for observation in self.observations[:ACTIONS_PER_ROUND]:
            policy.act(observation)

    @torch.inference_mode()
    def run_bare(self) -> None:
        for _ in range(ACTIONS_PER_ROUND):
            self.agent.compute_greedy_action(self.agent.encode_step({}, self.views, self.mask)[0]).numpy()

    def measure(self, *, rounds: int) -> dict[str, float]:
        """Return milliseconds per action of each way."""
        ways = {
            "bare": self.run_bare,
            "torch": lambda: self.act(self.torch_policy),
            "onnx": lambda: self.act(self.onnx_policy),
        }
        seconds = time_alternating(*ways.values(), rounds=rounds, clock=time.process_time)
        return {name: 1e3 * taken / ACTIONS_PER_ROUND for name, taken in zip(ways, seconds, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pixels", type=int, default=84)
    parser.add_argument("--trunk", default="paper")
    parser.add_argument("--views", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(1)
    times = PolicyTimes(pixels=args.pixels, trunk=args.trunk, views=args.views).measure(rounds=args.rounds)
    for name, taken in times.items():
        print(f"{name:6} {taken:7.2f} ms  {taken / times['bare']:.2f}")


if __name__ == "__main__":
    main()
