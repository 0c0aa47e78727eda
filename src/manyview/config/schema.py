"""A run, described by one frozen tree of values. Presets are named values of it: `presets.py`."""

from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from manyview.agents import DrQv2Config, PPOConfig, SACConfig
from manyview.data.augmentation import Augmentation
from manyview.envs.suite import RenderQuality
from manyview.mem import BetaSchedule, MEMConfig
from manyview.methods import CURLConfig, PixelEncoderConfig, RE3Config, RIDEConfig
from manyview.utils.validation import check_at_least, check_at_most

Precision = Literal["float32", "bfloat16"]
OFF_POLICY, ON_POLICY = ("drqv2", "sac"), ("ppo",)
AGENTS = (*OFF_POLICY, *ON_POLICY)
METHODS = ("mem", "re3", "ride", "curl", "none")
AugmentedViewChoice = Literal["paper", "none"] | Augmentation
MAX_OBSERVATION_BYTES = 2**26
"""All views with their stacks: four of 1,024 pixels a side with five frames each, or fewer."""
MOST_VIEWS, MOST_PIXELS, MOST_STACKED, MOST_REPEATED, MOST_THREADS, MOST_ENVS = 64, 1024, 64, 1000, 1024, 2**20
"""Far above what anybody trains with. They bound what `manyview evaluate` builds for a config of foreign origin."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """None: the task's own value, which `manyview tasks` shows."""

    views: tuple[str, ...] | None = None
    """Cameras by name or number, and <camera>_foreground."""
    image_size: int | None = None
    """Pixels a side."""
    frame_stack: int | None = None
    """Frames of each view that lie along the channels."""
    action_repeat: int | None = None
    """Simulator frames per agent step."""
    render_quality: RenderQuality | None = None
    step_deadline_s: float | None = None
    """A step that takes longer ends the run, which can go on from its newest checkpoint. None: it may take for ever.
    Actors have `scale.deadline_s`."""
    further_view: AugmentedViewChoice = "paper"
    """Of PPO: an augmentation of the first camera as one more view. `paper`: with MEM the one its table has for this
    game, otherwise none."""

    def __post_init__(self) -> None:
        for name, most in (
            ("image_size", MOST_PIXELS),
            ("frame_stack", MOST_STACKED),
            ("action_repeat", MOST_REPEATED),
        ):
            if getattr(self, name) is not None:
                check_at_most(self, most, name)
        views = 1 if self.views is None else len(self.views)
        if views > MOST_VIEWS:
            raise ValueError(f"expected at most {MOST_VIEWS} views, got {views}")
        observation_bytes = views * 3 * (self.image_size or 1) ** 2 * (self.frame_stack or 1)
        if observation_bytes > MAX_OBSERVATION_BYTES:
            raise ValueError(
                f"observations are too large: expected at most {MAX_OBSERVATION_BYTES:,} bytes, got "
                f"{observation_bytes:,}. Lower env.image_size, env.frame_stack or the number of env.views"
            )


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    envs: int = 64
    """Environments that are stepped together."""
    steps: int = 256
    """Of each of them in a rollout."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    capacity: int = 500_000
    """Agent steps that are kept."""
    batch_size: int = 256
    n_step: int = 3
    """Steps of a return before the critic takes over."""
    discount: float = 0.99
    """γ."""
    folder: str | None = None
    """Keep it in files in this folder instead of memory."""
    prefetch: bool = False
    """Make the next batch in a thread while an update runs. Changes no result."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    frames: int = 500_000
    """Simulator frames of the run, action repeat counted."""
    random_steps: int = 2_000
    """Agent steps with random actions at the begin."""
    seed_frames: int = 4_000
    """Frames before the first update."""
    update_every_steps: int = 1
    """Agent steps from one update to the next."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    every_frames: int = 10_000
    episodes: int = 10
    """0 for no evaluations and no environment for them: there may be one robot only."""
    video: bool = True
    """Film the first episode of evaluations, about a hundred of them in a run at most (extra `video`)."""
    max_steps: int = 27_000
    """Agent steps after which an episode of an evaluation is cut; the field's limit for Atari, the longest of games."""
    video_steps: int = 1_000
    """Agent steps of an episode that are filmed: they are in memory until the video is written."""


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    every_steps: int = 500
    """Agent steps between two records of losses and health."""
    checkpoint_every_frames: int = 10_000
    keep_replay: bool = False
    """Keep the replay's files when the run has finished."""
    tensorboard: bool = True
    """Write TensorBoard files too, if it is installed (extra `track`)."""
    wandb: bool = False
    """Send records to Weights & Biases too (extra `track`)."""


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    device: str = "auto"
    """`auto`: the accelerator if there is one, else the CPU."""
    precision: Precision = "float32"
    """What the encoder computes in; parameters, heads, losses and reward stay float32."""
    channels_last: bool = False
    """Memory format of the convolutions. Whether it pays depends on the machine: `--dry-run` tells."""
    threads: int | None = None
    """Of torch on the CPU; None leaves it to torch. Results are the same only for the same number."""

    def __post_init__(self) -> None:
        if self.threads is not None:
            check_at_least(self, 1, "threads")
            check_at_most(self, MOST_THREADS, "threads")


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """A run of many actors, on Ray (extra `scale`)."""

    actors: int = 0
    """Processes that act, each with an environment and a copy of the policy. 0: everything in one process."""
    replay_shards: int = 1
    """Processes that hold the replay, an equal part each."""
    learners: int = 1
    """Processes that learn, each from its part of every batch. Neighbours are searched within a part."""
    chunk_steps: int = 200
    """Agent steps that an actor sends at once."""
    publish_every_updates: int = 50
    """Updates from one version of the weights to the next that actors get."""
    deadline_s: float = 60.0
    """An actor that needs longer for a chunk is replaced."""
    start_deadline_s: float = 120.0
    """The same for the first, with its start."""
    reward_low: float | None = None
    """Chunks with a smaller reward are refused; None: any that is finite is taken."""
    reward_high: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    task: str
    method: str = "drqv2+mem"
    """<agent>+<method>: drqv2, sac or ppo, with mem, re3, curl or none, and ppo with ride. A representation and a bonus
    go together: drqv2+curl+re3."""
    seed: int = 1
    preset: str = ""
    """Where the values came from."""
    env: EnvConfig = field(default_factory=EnvConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    bonus: BetaSchedule = field(default_factory=BetaSchedule)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    log: LogConfig = field(default_factory=LogConfig)
    machine: MachineConfig = field(default_factory=MachineConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)
    drqv2: DrQv2Config = field(default_factory=DrQv2Config)
    sac: SACConfig = field(default_factory=SACConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    mem: MEMConfig = field(default_factory=MEMConfig)
    re3: RE3Config = field(default_factory=RE3Config)
    ride: RIDEConfig = field(default_factory=RIDEConfig)
    curl: CURLConfig = field(default_factory=CURLConfig)
    none: PixelEncoderConfig = field(default_factory=PixelEncoderConfig)

    def __post_init__(self) -> None:
        parts = self.method.split("+")
        if parts[0] not in AGENTS or len(parts) < 2 or not set(parts[1:]) <= set(METHODS):
            raise ValueError(
                f"method must be <agent>+<method> with an agent of {', '.join(AGENTS)} and a method of "
                f"{', '.join(METHODS)}, such as drqv2+mem; got {self.method!r}"
            )
        if "ride" in parts and not self.is_on_policy:
            raise ValueError("ride pays along episodes, which a replay does not keep together: use it with ppo")
        for name in ("mem", "re3"):
            if self.is_on_policy and name in self.methods:
                self._check_neighbour_count(name)
        if self.env.further_view not in ("paper", "none") and not self.is_on_policy:
            raise ValueError(f"env.further_view is made for ppo; {self.agent} augments what it samples")
        if self.mem.bank and self.is_on_policy and "mem" in parts:
            raise ValueError(
                "mem.bank keeps rows of a replay; ppo searches its rollout, all of it with ppo.neighbours=pooled"
            )
        has_auxiliary_loss = {"mem", "curl"} & set(parts)
        if not (self.is_on_policy or has_auxiliary_loss or getattr(self, self.agent).critic_trains_encoder):
            raise ValueError(
                f"nothing would train the encoder: {self.method} has no loss of its own for it, so "
                f"{self.agent}.critic_trains_encoder must be true"
            )
        if self.bonus.unit != "agent_steps" and not self.is_on_policy:
            raise ValueError(f"bonus.unit must be agent_steps for {self.agent}, got {self.bonus.unit!r}")
        if self.scale.actors:
            self._check_scale()
        for name, count in (("learners", self.scale.learners), ("shards of the replay", self.scale.replay_shards)):
            if count > 1 and not self.scale.actors:
                raise ValueError(f"several {name} are fed by actors: say how many with scale.actors")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be at least 0 and less than 2**64, got {self.seed}")
        check_at_most(self.rollout, MOST_ENVS, "envs")
        for name, value in (
            ("replay.batch_size", self.replay.batch_size),
            ("replay.n_step", self.replay.n_step),
            ("rollout.envs", self.rollout.envs),
            ("rollout.steps", self.rollout.steps),
            ("schedule.frames", self.schedule.frames),
            ("schedule.update_every_steps", self.schedule.update_every_steps),
            ("evaluation.every_frames", self.evaluation.every_frames),
            ("evaluation.max_steps", self.evaluation.max_steps),
            ("evaluation.video_steps", self.evaluation.video_steps),
            ("log.every_steps", self.log.every_steps),
            ("log.checkpoint_every_frames", self.log.checkpoint_every_frames),
            ("scale.replay_shards", self.scale.replay_shards),
            ("scale.chunk_steps", self.scale.chunk_steps),
            ("scale.learners", self.scale.learners),
            ("scale.publish_every_updates", self.scale.publish_every_updates),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not (self.env.step_deadline_s is None or 0 < self.env.step_deadline_s < inf):
            raise ValueError(f"env.step_deadline_s must be more than 0, got {self.env.step_deadline_s}")
        if self.evaluation.episodes < 0:
            raise ValueError(f"evaluation.episodes must be at least 0, got {self.evaluation.episodes}")
        if self.replay.batch_size % (self.scale.learners * self.scale.replay_shards):
            raise ValueError(
                f"replay.batch_size must be a multiple of scale.learners times scale.replay_shards, got "
                f"{self.replay.batch_size}, {self.scale.learners} and {self.scale.replay_shards}"
            )

    def _check_neighbour_count(self, method: str) -> None:
        """Who has no k others is paid for the farthest there is, and for nothing if there is none."""
        k, rollout, window = getattr(self, method).k, self.rollout, self.ppo.window
        if self.ppo.neighbours == "pooled":
            if k >= window:
                raise ValueError(f"ppo.window must be more than {method}.k, got {window} and {k}")
            if k >= rollout.envs * rollout.steps:
                raise ValueError(
                    f"rollout.envs times rollout.steps must be more than {method}.k, got {rollout.envs}, "
                    f"{rollout.steps} and {k}"
                )
        elif k >= rollout.steps:
            raise ValueError(
                f"rollout.steps must be more than {method}.k, got {rollout.steps} and {k}: neighbours are of one "
                "environment's rollout (ppo.neighbours=pooled searches all of them)"
            )

    def _check_scale(self) -> None:
        scale, shard_capacity = self.scale, self.replay.capacity // max(1, self.scale.replay_shards)
        if self.is_on_policy:
            raise ValueError("scale.actors feed a replay, which ppo has not: use more of rollout.envs")
        if scale.actors < 0 or scale.replay_shards > scale.actors:
            raise ValueError(
                f"each of scale.replay_shards is fed by one of scale.actors at least, got {scale.replay_shards} and "
                f"{scale.actors}"
            )
        max_chunk_steps = min(
            400, shard_capacity // 4
        )  # pieces have frames of stacks and last observations beside their steps
        if not self.replay.n_step <= scale.chunk_steps <= max_chunk_steps:
            raise ValueError(
                f"scale.chunk_steps must be from replay.n_step, {self.replay.n_step}, to {max_chunk_steps} here, got "
                f"{scale.chunk_steps}"
            )
        if min(scale.deadline_s, scale.start_deadline_s) <= 0:
            raise ValueError("scale.deadline_s and scale.start_deadline_s must be more than 0")
        if None not in (scale.reward_low, scale.reward_high) and scale.reward_low > scale.reward_high:  # type: ignore[operator]
            raise ValueError(f"no reward is from {scale.reward_low} to {scale.reward_high}: scale.reward_low and _high")

    @property
    def single_process(self) -> "RunConfig":
        """The same in one process: what actors, shards and learners build their parts by, and are not told twice."""
        return replace(self, scale=replace(self.scale, actors=0, replay_shards=1, learners=1))

    @property
    def agent(self) -> str:
        return self.method.split("+")[0]

    @property
    def is_on_policy(self) -> bool:
        return self.agent in ON_POLICY

    @property
    def methods(self) -> tuple[str, ...]:
        """What is put behind the seam."""
        return tuple(self.method.split("+")[1:])
