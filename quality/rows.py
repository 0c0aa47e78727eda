"""The rows that are built, with their bars. A test names the row, measures, and is held to the bar written here."""

from dataclasses import dataclass, field
from typing import Literal

Tier = Literal["P", "N"]  # P: in every run of the gate. N: a longer run with a command of its own.


@dataclass(frozen=True)
class Bar:
    """The worst value of a figure that still passes."""

    kind: Literal["at most", "at least"]
    value: float
    relaxes: bool = True
    """Whether a busy machine may make the figure worse by much."""

    def met_by(self, figure: float) -> bool:
        return figure <= self.value if self.kind == "at most" else figure >= self.value

    def relaxed(self, share: float) -> "Bar":
        """The bar of a guard: missed by more than this share of it, something broke, whatever else the machine did."""
        if not self.relaxes:
            return self
        return Bar(self.kind, self.value * (1 + share) if self.kind == "at most" else self.value / (1 + share))

    def worse(self, one: float, other: float) -> float:
        """The one of two figures that is farther from passing; not-a-number is worst of all."""
        if one != one or other != other:
            return float("nan")
        return max(one, other) if self.kind == "at most" else min(one, other)


def at_most(value: float) -> Bar:
    return Bar("at most", value)


def at_least(value: float, *, relaxes: bool = True) -> Bar:
    return Bar("at least", value, relaxes)


@dataclass(frozen=True)
class Row:
    id: str
    tier: Tier
    claim: str
    bars: dict[str, Bar] = field(default_factory=dict)
    """By the figure's name; empty when the claim is exact and its tests just pass or fail."""


ROWS = {
    row.id: row
    for row in (
        Row(
            "D3",
            "P",
            "flipped bits, truncations, missing and swapped files of a checkpoint and its segments: all are found, the "
            "checkpoint before is used, and the reason told",
            {"of 1,000 flipped bits missed": at_most(0), "of 200 truncations missed": at_most(0)},
        ),
        Row(
            "X1",
            "P",
            "hostile checkpoints whose checksums are right: refused, nothing executed, the checkpoint before is used",
            {"seconds": at_most(1), "MB above the file": at_most(100)},
        ),
        Row("X2", "P", "nothing in shipped code that makes objects or code of bytes"),
        Row(
            "X3",
            "P",  # a million by `python -m benchmarks.fuzz`
            "fuzzed segments, manifests, states, checksums and tensors: no crash, no hang, memory flat",
            {"inputs": at_least(100_000), "seconds": at_most(1), "MB grown": at_most(20)},
        ),
        Row("D9", "P", "a checkpoint kept from every release loads and trains"),
        Row(
            "D1",
            "P",  # 200 kills by `python -m benchmarks.kills`; the gate makes 20
            "SIGKILL at random moments, a third of them inside a save, and the same command again: all of it "
            "bit-identical with a run that nobody disturbed",
        ),
        Row(
            "D2",
            "P",
            "a crash at every file operation of a resume and a save: a valid checkpoint is there and found",
        ),
        Row(
            "D4",
            "P",
            "killed after a checkpoint: the replay holds what it had then, once, in order; no burst of updates",
        ),
        Row("D5", "P", "disk full at every write: training goes on, last checkpoint intact, told, and saved later"),
        Row("D6", "P", "SIGTERM in training, in an evaluation, while it begins: saved, and exit 0", {"s": at_most(10)}),
        Row("D7", "P", "an environment restored in mid-episode goes on exactly, also in a new process"),
        Row("D8", "P", "other versions, threads or number type than before: said and refused; accepted only aloud"),
        Row(
            "L1",
            "P",  # a kill every 5 s for a minute by `python -m quality L1`; the gate makes one
            "actors of a run are killed: replaced, the run ends right, and nothing half-written is sampled",
            {"share of the survivors'": at_least(0.9), "seconds until back": at_most(5)},
        ),
        Row(
            "L2",
            "P",
            "actors that hang in a step or at their start: the learner goes on, and they are replaced after the "
            "deadline",
        ),
        Row(
            "L3", "P", "no actor delivers: the learner uses its steps up, then waits and says so, and goes on with them"
        ),
        Row("L6", "N", "one learner of two is killed: the group goes on from its checkpoint"),
        Row(
            "L7", "N", "a sweep whose runs crash and whose driver is killed: nothing is begun again, one line a failure"
        ),
        Row("L4", "P", "trainer killed, also while a video is written: no process, shared memory or file left behind"),
        Row(
            "X4",
            "P",
            "an actor of a run that sends absurd rewards or floods: nothing outside the declared range, and at most "
            "twice its share",
        ),
        Row(
            "X5",
            "P",
            "a foreign folder evaluated, resumed, plotted, listed or swept: nothing executed, nothing written outside, "
            "bounded time and memory, one readable line",
        ),
        Row("X6", "P", "text of foreign origin in terminal and plot: no escape sequence, no forged row"),
        Row(
            "L8",
            "P",  # longer ones by `python -m benchmarks.attacks --all`
            "a hung environment step, shard, follower or tracker: named within its deadline; SIGTERM saves and leaves",
            {"s from SIGTERM": at_most(10)},
        ),
        Row(
            "S11",
            "P",
            "environments that never end, raise, exit or put nonsense into `info`: refused or truncated with field and "
            "value named, counted, no traceback on the terminal",
        ),
        Row("L5", "P", "physics errors truncate and are counted; a failing camera is masked, counted and tried again"),
        Row(
            "S1",
            "P",
            "NaN and infinities in reward, observation, action: refused in the same step, with field and env",
        ),
        Row(
            "S2",
            "P",
            "wrong shape, type, range, channel order, missing or unknown views: refused with expected and got",
            {"cases": at_least(1000)},
        ),
        Row("S3", "P", "a loss or gradient that is not finite: skipped and counted, then back; parameters never NaN"),
        Row(
            "S4",
            "P",
            "a camera black, frozen, noisy, late or gone, for a frame, an episode, for ever: r̂ finite, mask right, "
            "and a frozen view pays exactly 0",
        ),
        Row("S5", "P", "zero variance, duplicates, k >= B, B = 1, zero vectors: defined values, finite gradients"),
        Row(
            "S6", "P", "k-NN distances against float64 brute force, near-duplicates from 1e-6 to 1", {"": at_most(1e-4)}
        ),
        Row(
            "S7",
            "P",
            "mean error of the entropy estimator (Eq. 1) against closed forms, n = 4096, k = 3, in nats",
            {"1-d and 2-d": at_most(0.03), "3-d": at_most(0.1)},
        ),
        Row("S8", "P", "symmetries of estimator and reward at p = 64", {"": at_most(1e-6)}),
        Row("S9", "P", "no gradient through the reward; losses and discriminator train only what is theirs"),
        Row(
            "S10",
            "P",
            "sampled windows, none of which crosses an episode end, truncation, gap or the ring's head",
            {"windows": at_least(1_000_000)},
        ),
        Row("E2", "P", "400 repeats of adding and sampling under tracemalloc: no growth"),
        Row("E3", "P", "100 environments made, drawn and closed", {"MB each": at_most(0.2)}),
        Row(
            "E4",
            "P",
            "the predicted bytes of replay and networks against what they take and what is free before a run",
            # 5 % is asked of both. An update's share, rehearsed, depends on how the heap falls to pieces: up to 12 %.
            {"prediction off by": at_most(0.05), "with the networks": at_most(0.15)},
        ),
        Row(
            "C1",
            "N",
            "the treasure of a Deep Sea of 10 x 10 in two views, seeds of 10 that learn the way to it",
            {"with MEM's bonus": at_least(5), "without": at_most(1)},
        ),
        Row("C2", "P", "each agent on the identity task, share of the maximum", {"": at_least(0.9)}),
        Row(
            "C3",
            "P",
            "two cameras that each hide a coordinate of the goal: success, and that of one camera against its bound",
            {
                "both views": at_least(0.9),
                "most of one view's bound": at_most(1.15),
                "least of one view's bound": at_least(0.85),
            },
        ),
        Row("C4", "P", "return on a dense task with the bonus, against without", {"": at_least(0.95)}),
        Row(
            "C5",
            "P",
            "synthetic views with known shared and specific factors",
            {
                "accuracy from chance": at_most(0.05),
                "view read from specific": at_least(0.95),
                "cosine": at_most(0.05),
                "std": at_least(0.3),
            },
        ),
        Row(
            "C7",
            "P",
            "5,000 updates on real multi-view frames without reward keep features and bonus alive",
            {
                "std": at_least(0.3),
                "rank": at_least(8),
                "reward against start": at_least(0.5),
                "accuracy from chance": at_most(0.10),
            },
        ),
        Row(
            "C8",
            "P",
            "fidelity of the bonus to the true physics state, against the random encoder's",
            {"gain": at_least(-0.02)},
        ),
        Row(
            "P1",
            "P",
            "GFLOPs of an update of drqv2+mem, 3 views, batch 256, 84x84",
            {"": at_most(300)},
        ),
        Row(
            "P2",
            "P",
            "update time of drqv2+mem against its convolutions and heads run bare",
            {"": at_most(1.10)},
        ),
        Row(
            "P3",
            "P",
            "update time, 3 views against 1; linear over 1..8",
            {"": at_most(2.95), "R2": at_least(0.99, relaxes=False)},
        ),
        Row(
            "P4",
            "P",
            "update time with one view, drqv2+mem against drqv2+none, batch 256",
            {"": at_most(1.05)},
        ),
        Row("P5", "P", "reward and k-NN, share of an update at batch 256", {"": at_most(0.01)}),
        Row(
            "P6",
            "P",
            "sampling batch 256 x 3 views against a bare numpy take of the same bytes; at 5M steps against 50k",
            {"against a take": at_most(1.15), "5M against 50k steps": at_most(1.1)},
        ),
        Row("P7", "P", "bytes per step, 3 views", {"kB in memory": at_most(43.5), "kB in the log": at_most(8)}),
        Row(
            "P11",
            "P",  # with 500,000 steps by `python -m benchmarks.saving wait`
            "how long the learner waits for a checkpoint, with 10,000 steps in its replay and the paper's networks",
            {"s": at_most(0.2)},
        ),
        Row(
            "P8",
            "P",
            "random shift against grid_sample",
            {"difference in 255ths": at_most(0.01), "times faster": at_least(4)},
        ),
        Row(
            "P9",
            "P",
            "environment steps against the bare simulator drawing the same pixels",
            {"dmc": at_least(0.95), "procgen": at_least(0.95)},
        ),
        Row("P10", "P", "CPU time of the training loop against env, act, sample and update alone", {"": at_most(1.10)}),
        Row("P12", "P", "import manyview against import torch", {"": at_most(1.2)}),
    )
}
