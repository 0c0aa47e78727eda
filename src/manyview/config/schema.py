"""Run config: one frozen dataclass with a group of settings per part. `presets.py` holds named overrides of it."""

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
"""Limit of an observation, all views and stacked frames: for example 4 views of 1,024 pixels a side, 5 frames each."""
MAX_VIEWS, MAX_IMAGE_SIZE, MAX_FRAME_STACK, MAX_ACTION_REPEAT, MAX_THREADS, MAX_ENVS = 64, 1024, 64, 1000, 1024, 2**20
"""Limits far above practical values. They bound what `manyview evaluate` builds for an untrusted config."""


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Environment settings. None selects the task's default, which `manyview tasks` shows."""

    views: tuple[str, ...] | None = None
    """Views by camera name or number, or <camera>_foreground for the camera without its background."""
    image_size: int | None = None
    """Side of each view, in pixels."""
    frame_stack: int | None = None
    """Consecutive frames of each view, stacked along the channels."""
    action_repeat: int | None = None
    """Simulator frames per agent step."""
    render_quality: RenderQuality | None = None
    """`standard`, `fast` (no shadows, reflections, multisampling) or `smooth` (`fast` at twice the size, averaged)."""
    step_deadline_s: float | None = None
    """Seconds after which an unfinished environment step ends the run; None sets no limit.
    The run can resume from its newest checkpoint. Actors use `scale.deadline_s`."""
    further_view: AugmentedViewChoice = "paper"
    """Augmentation of the first camera that PPO sees as an additional view, or `none`.
    `paper` selects the paper's augmentation for the game with MEM, and none otherwise."""

    def __post_init__(self) -> None:
        for name, maximum in (
            ("image_size", MAX_IMAGE_SIZE),
            ("frame_stack", MAX_FRAME_STACK),
            ("action_repeat", MAX_ACTION_REPEAT),
        ):
            if getattr(self, name) is not None:
                check_at_least(self, 1, name)
                check_at_most(self, maximum, name)
        views = 1 if self.views is None else len(self.views)
        if views > MAX_VIEWS:
            raise ValueError(f"too many env.views: expected at most {MAX_VIEWS}, got {views}")
        observation_bytes = views * 3 * (self.image_size or 1) ** 2 * (self.frame_stack or 1)
        if observation_bytes > MAX_OBSERVATION_BYTES:
            raise ValueError(
                f"observations are too large: expected at most {MAX_OBSERVATION_BYTES:,} bytes, got "
                f"{observation_bytes:,}. Lower env.image_size, env.frame_stack or the number of env.views"
            )


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Rollout settings of on-policy agents."""

    envs: int = 64
    """Environments stepped in parallel."""
    steps: int = 256
    """Agent steps per environment and rollout."""


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Replay buffer settings of off-policy agents."""

    capacity: int = 500_000
    """Capacity of the replay buffer, in agent steps."""
    batch_size: int = 256
    """Transitions per update."""
    n_step: int = 3
    """Agent steps of reward in a return before bootstrapping from the critic."""
    discount: float = 0.99
    """Discount factor γ per agent step."""
    folder: str | None = None
    """Directory for memory-mapped replay files; None keeps the buffer in memory."""
    prefetch: bool = False
    """Sample the next batch in a thread during the update, with identical results."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Length of a run and times of its updates."""

    frames: int = 500_000
    """Length of the run in simulator frames, action repeat included."""
    random_steps: int = 2_000
    """Initial agent steps with uniform random actions."""
    seed_frames: int = 4_000
    """Simulator frames before the first update."""
    update_every_steps: int = 1
    """Agent steps between updates."""

    def __post_init__(self) -> None:
        check_at_least(self, 0, "random_steps", "seed_frames")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Evaluations during training."""

    every_frames: int = 10_000
    """Simulator frames between evaluations."""
    episodes: int = 10
    """Episodes per evaluation; 0 disables evaluation and its environment, for example with a single robot."""
    video: bool = True
    """Record the first episode of evaluations, at most about 100 videos per run (extra `video`)."""
    max_steps: int = 27_000
    """Agent steps after which an evaluation episode is cut (the usual limit for Atari)."""
    video_steps: int = 1_000
    """Agent steps recorded per video, which stay in memory until the video is written."""


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """Records, checkpoints and trackers."""

    every_steps: int = 500
    """Agent steps between records of losses and diagnostics."""
    checkpoint_every_frames: int = 10_000
    """Simulator frames between checkpoints."""
    keep_replay: bool = False
    """Keep the segment log of the replay buffer after the run has finished."""
    tensorboard: bool = True
    """Also write TensorBoard files if TensorBoard is installed (extra `track`)."""
    wandb: bool = False
    """Also send records to Weights & Biases (extra `track`)."""


@dataclass(frozen=True, kw_only=True)
class MachineConfig:
    """Device, precision and threads of torch."""

    device: str = "auto"
    """Torch device; `auto` selects the accelerator if there is one, otherwise the CPU."""
    precision: Precision = "float32"
    """Precision of the encoder; parameters, heads, losses and bonus stay float32."""
    channels_last: bool = False
    """Use the channels-last memory format in convolutions; compare the update time of `--dry-run` with and without."""
    threads: int | None = None
    """Torch threads on the CPU; None keeps torch's default. Results are reproducible only with an equal number."""

    def __post_init__(self) -> None:
        if self.threads is not None:
            check_at_least(self, 1, "threads")
            check_at_most(self, MAX_THREADS, "threads")


@dataclass(frozen=True, kw_only=True)
class ScaleConfig:
    """Distribution of one run over processes, on Ray (extra `scale`)."""

    actors: int = 0
    """Actor processes, each with an environment and a copy of the policy; 0 runs everything in one process."""
    replay_shards: int = 1
    """Processes that hold equal shards of the replay buffer."""
    learners: int = 1
    """Learner processes, each training on an equal part of every batch. Neighbors are searched within a part."""
    chunk_steps: int = 200
    """Agent steps per chunk that an actor sends."""
    publish_every_updates: int = 50
    """Updates between two versions of the policy weights sent to actors."""
    deadline_s: float = 60.0
    """Seconds after which an actor without a finished chunk is replaced."""
    start_deadline_s: float = 120.0
    """Seconds after which an actor without its first chunk is replaced, startup included."""
    reward_low: float | None = None
    """Smallest accepted reward; chunks below it are rejected. None accepts every finite reward."""
    reward_high: float | None = None
    """Largest accepted reward; chunks above it are rejected. None accepts every finite reward."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run.

    Raises:
        ValueError: Settings are out of range or do not fit together.

    """

    task: str
    """Task as <suite>/<name>, or <module>:<function> for your own environment."""
    method: str = "drqv2+mem"
    """<agent>+<method>: drqv2, sac or ppo with mem, re3, curl or none; ppo also with ride.
    A representation and a bonus combine as drqv2+curl+re3."""
    seed: int = 1
    """Seed of all random numbers."""
    preset: str = ""
    """Presets that the settings were loaded from, for the record."""
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
            raise ValueError(
                f"ride needs the complete episodes of on-policy rollouts: expected agent ppo, got {self.agent}. Use "
                "ppo+ride"
            )
        for name in ("mem", "re3"):
            if self.is_on_policy and name in self.methods:
                self._check_neighbor_count(name)
        if self.env.further_view not in ("paper", "none") and not self.is_on_policy:
            raise ValueError(
                f"env.further_view needs agent ppo, got {self.agent}, which augments sampled batches. Set it to none"
            )
        if self.mem.bank and self.is_on_policy and "mem" in parts:
            raise ValueError(
                f"mem.bank needs an off-policy agent, got ppo with mem.bank={self.mem.bank}. Set mem.bank=0; "
                "ppo.neighbours=pooled searches the whole rollout"
            )
        has_auxiliary_loss = {"mem", "curl"} & set(parts)
        if not (self.is_on_policy or has_auxiliary_loss or getattr(self, self.agent).critic_trains_encoder):
            raise ValueError(
                f"nothing would train the encoder: {self.method} has no auxiliary loss, expected "
                f"{self.agent}.critic_trains_encoder=true, got false"
            )
        if self.bonus.unit != "agent_steps" and not self.is_on_policy:
            raise ValueError(f"bonus.unit must be agent_steps for {self.agent}, got {self.bonus.unit!r}")
        if self.scale.actors:
            self._check_scale()
        for name, count in (("learners", self.scale.learners), ("replay_shards", self.scale.replay_shards)):
            if count > 1 and not self.scale.actors:
                raise ValueError(f"scale.{name}={count} needs actors: expected scale.actors of at least 1, got 0")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be at least 0 and less than 2**64, got {self.seed}")
        check_at_most(self.rollout, MAX_ENVS, "envs")
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

    def _check_neighbor_count(self, method: str) -> None:
        """Require more than k candidates: with fewer, the bonus uses the farthest row or is 0."""
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
                f"rollout.steps must be more than {method}.k, got {rollout.steps} and {k}: neighbors are searched in "
                "the rollout of one environment. ppo.neighbours=pooled searches all environments"
            )

    def _check_scale(self) -> None:
        scale, shard_capacity = self.scale, self.replay.capacity // max(1, self.scale.replay_shards)
        if self.is_on_policy:
            raise ValueError(f"scale.actors needs an off-policy agent, got {self.agent}. Increase rollout.envs instead")
        if scale.actors < 0 or scale.replay_shards > scale.actors:
            raise ValueError(
                f"every replay shard needs at least one actor: expected scale.actors of at least "
                f"{scale.replay_shards} (scale.replay_shards), got {scale.actors}"
            )
        max_chunk_steps = min(400, shard_capacity // 4)  # a shard must hold several chunks with their stacks
        if not self.replay.n_step <= scale.chunk_steps <= max_chunk_steps:
            raise ValueError(
                f"scale.chunk_steps must be from replay.n_step, {self.replay.n_step}, to {max_chunk_steps} here, got "
                f"{scale.chunk_steps}"
            )
        if not (0 < scale.deadline_s < inf and 0 < scale.start_deadline_s < inf):
            raise ValueError(
                "scale.deadline_s and scale.start_deadline_s must be finite and more than 0, got "
                f"{scale.deadline_s} and {scale.start_deadline_s}"
            )
        low, high = (-inf if scale.reward_low is None else scale.reward_low), scale.reward_high
        if not low <= (inf if high is None else high):  # rejects NaN too
            raise ValueError(
                f"scale.reward_low must be at most scale.reward_high, got {scale.reward_low} and {scale.reward_high}"
            )

    @property
    def single_process(self) -> "RunConfig":
        """The config without distribution, by which actors, shards and learners build their parts."""
        return replace(self, scale=replace(self.scale, actors=0, replay_shards=1, learners=1))

    @property
    def agent(self) -> str:
        return self.method.split("+")[0]

    @property
    def is_on_policy(self) -> bool:
        return self.agent in ON_POLICY

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the representation and the bonus, without the agent."""
        return tuple(self.method.split("+")[1:])
