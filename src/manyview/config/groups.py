"""Groups of settings of a run, one frozen dataclass each; each checks its own values.

`check` is called with the whole run, as that of a part.
"""

from dataclasses import dataclass
from math import inf
from typing import Literal

from manyview.data.augmentation import Augmentation
from manyview.data.batch_augmentation import ImageAugmentation, ReplayAugmentation
from manyview.envs.suite import MAX_RENDER_SCALE, RenderQuality
from manyview.methods.interfaces import RunSettings
from manyview.utils.validation import SettingError, check_at_least, check_at_most, check_choices, check_unit_interval

Precision = Literal["float32", "bfloat16"]
AugmentedViewChoice = Literal["paper", "none"] | Augmentation
MAX_OBSERVATION_BYTES = 2**26
"""Limit of an observation, all views and stacked frames: for example 4 views of 1,024 pixels a side, 5 frames each."""
MAX_VIEWS, MAX_IMAGE_SIZE, MAX_FRAME_STACK, MAX_ACTION_REPEAT, MAX_THREADS, MAX_ENVS = 64, 1024, 64, 1000, 1024, 2**20
"""Limits far above practical values. They bound what `manyview evaluate` builds for an untrusted config."""
MAX_CHUNK_STEPS = 400


@dataclass(frozen=True, kw_only=True)
class EnvConfig:
    """Environment settings. None selects the task's default, which `manyview tasks` shows."""

    views: tuple[str, ...] | None = None
    """Views by camera name or number, or <camera>_foreground for the camera without its background."""
    state: tuple[str, ...] | None = None
    """State vectors beside the views, by name (`manyview tasks` lists them). None uses none of a task's, and all that
    your own environment declares."""
    image_size: int | None = None
    """Side of each view, in pixels."""
    frame_stack: int | None = None
    """Consecutive frames of each view, stacked along the channels."""
    state_stack: int = 1
    """Consecutive values of the state vectors, oldest first."""
    action_repeat: int | None = None
    """Simulator frames per agent step."""
    render_quality: RenderQuality | None = None
    """`standard`, `fast` (no shadows, reflections, multisampling) or `smooth` (`fast` at twice the size, averaged)."""
    render_scale: int | None = None
    """Rendered pixels per image pixel and side, which are averaged (None: 1, or 2 with `smooth`)."""
    step_deadline_s: float | None = None
    """Seconds after which an unfinished environment step ends the run; None sets no limit.
    The run can resume from its newest checkpoint. Actors use `scale.deadline_s`."""
    augmented_view: AugmentedViewChoice = "paper"
    """Augmentation of the first camera that PPO sees as an additional view, or `none`.
    `paper` selects the paper's augmentation for the game with `representation=mem`, and none otherwise."""

    def __post_init__(self) -> None:
        for name, maximum in (
            ("image_size", MAX_IMAGE_SIZE),
            ("frame_stack", MAX_FRAME_STACK),
            ("state_stack", MAX_FRAME_STACK),
            ("action_repeat", MAX_ACTION_REPEAT),
            ("render_scale", MAX_RENDER_SCALE),
        ):
            if getattr(self, name) is not None:
                check_at_least(self, 1, name)
                check_at_most(self, maximum, name)
        if not (self.step_deadline_s is None or 0 < self.step_deadline_s < inf):
            raise SettingError("step_deadline_s", f"expected more than 0, got {self.step_deadline_s}")
        views = 1 if self.views is None else len(self.views)
        if views > MAX_VIEWS:
            raise SettingError("views", f"expected at most {MAX_VIEWS}, got {views}")
        observation_bytes = views * 3 * (self.image_size or 1) ** 2 * (self.frame_stack or 1)
        if observation_bytes > MAX_OBSERVATION_BYTES:
            raise SettingError(
                "image_size",
                f"expected observations of at most {MAX_OBSERVATION_BYTES:,} bytes, got {observation_bytes:,}. Lower "
                "env.image_size, env.frame_stack or the number of env.views",
            )

    def check(self, run: RunSettings) -> None:
        """Check that only on-policy runs have an augmented view."""
        if self.augmented_view not in ("paper", "none") and not run.is_on_policy:
            raise ValueError(
                f"env.augmented_view needs an on-policy agent, got {run.agent_name}, which augments sampled batches. "
                "Set it to none"
            )


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """Rollout settings of on-policy agents."""

    envs: int = 64
    """Environments stepped in parallel."""
    steps: int = 256
    """Agent steps per environment and rollout."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "envs", "steps")
        check_at_most(self, MAX_ENVS, "envs")


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
    augmentation: ReplayAugmentation = "shift"
    """Augmentation of the images of a batch: DrQ's random `shift`, RAD's random `crop`, or `none`."""
    augmentation_pixels: int = 4
    """Largest shift in pixels. With `crop`, pixels by which the crop is smaller than the image; evaluation takes the
    center."""
    directory: str | None = None
    """Directory for memory-mapped replay files; None keeps the buffer in memory."""
    prefetch: bool = False
    """Sample the next batch in a thread during the update, with identical results."""
    demonstrations: str | None = None
    """Folder of `manyview import-dataset`, whose transitions fill a part of every batch; None uses none."""
    demonstration_fraction: float = 0.5
    """Fraction of a batch that are demonstrations; 0.5 is the symmetric sampling of RLPD."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least(self, 1, "batch_size", "n_step")
        check_at_least(self, 0, "augmentation_pixels")
        check_unit_interval(self, "discount", "demonstration_fraction")

    def check(self, run: RunSettings) -> None:
        """Check that one off-policy process trains with demonstrations, and that a batch has both kinds of rows."""
        if self.demonstrations is None:
            return
        if run.is_on_policy:
            raise SettingError(
                "demonstrations", f"expected an off-policy agent, got {run.agent_name}, which learns from rollouts only"
            )
        if run.scale.actors:
            raise SettingError("demonstrations", f"expected scale.actors=0, got {run.scale.actors}")
        if not 0 < self.num_demonstrated < self.batch_size:
            raise SettingError(
                "demonstration_fraction",
                f"expected at least one demonstrated and one own row in a batch of {self.batch_size}, got "
                f"{self.demonstration_fraction}",
            )

    @property
    def num_demonstrated(self) -> int:
        """Rows of a batch that are demonstrations."""
        return 0 if self.demonstrations is None else round(self.batch_size * self.demonstration_fraction)

    @property
    def image_augmentation(self) -> ImageAugmentation:
        return ImageAugmentation(self.augmentation, self.augmentation_pixels)


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
    initial_run: str | None = None
    """Run directory whose newest checkpoint the agent starts from: networks, optimizers and statistics, not its replay
    buffer and counters. None initializes the networks at random."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "frames", "update_every_steps")
        check_at_least(self, 0, "random_steps", "seed_frames")

    def check(self, run: RunSettings) -> None:
        """Check that one learner alone starts from the weights of another run."""
        if self.initial_run is not None and run.scale.learners > 1:
            raise SettingError("initial_run", f"expected scale.learners=1, got {run.scale.learners}")


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

    def __post_init__(self) -> None:
        check_at_least(self, 1, "every_frames", "max_steps", "video_steps")
        check_at_least(self, 0, "episodes")


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """Records, checkpoints and trackers."""

    every_steps: int = 500
    """Agent steps between records of losses and diagnostics."""
    checkpoint_every_frames: int = 10_000
    """Simulator frames between checkpoints."""
    keep_replay: bool = True
    """Keep the segment log of the replay buffer after the run has finished; `manyview extend` needs it."""
    tensorboard: bool = True
    """Also write TensorBoard files if TensorBoard is installed (extra `track`)."""
    wandb: bool = False
    """Also send records and videos to Weights & Biases (extra `track`)."""
    trackio: bool = False
    """Also write records and videos to Trackio's local database (extra `trackio`)."""
    project: str = "manyview"
    """Project of the run at Weights & Biases or Trackio."""
    entity: str | None = None
    """Team or user that owns the project at Weights & Biases; None is your default."""
    group: str | None = None
    """Group of runs at Weights & Biases or Trackio, such as the seeds of one comparison."""
    tags: tuple[str, ...] = ()
    """Tags of the run at Weights & Biases; Trackio keeps them among the settings."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "every_steps", "checkpoint_every_frames")
        if not self.project:
            raise SettingError("project", "expected a name, got an empty one")


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Device, precision and threads of torch."""

    device: str = "auto"
    """Torch device; `auto` selects the accelerator if there is one, otherwise the CPU."""
    precision: Precision = "float32"
    """Precision of the policy's encoder; parameters, heads, losses and the bonus with its networks stay float32."""
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

    def __post_init__(self) -> None:
        check_at_least(self, 1, "replay_shards", "chunk_steps", "learners", "publish_every_updates")
        check_at_least(self, 0, "actors")
        for name in ("deadline_s", "start_deadline_s"):
            if not 0 < getattr(self, name) < inf:
                raise SettingError(name, f"expected a finite number above 0, got {getattr(self, name)}")
        low, high = (-inf if self.reward_low is None else self.reward_low), self.reward_high
        if not low <= (inf if high is None else high):  # rejects NaN too
            raise SettingError("reward_low", f"expected at most scale.reward_high, {high}, got {self.reward_low}")

    def check(self, run: RunSettings) -> None:
        """Check that actors, shards and learners fit the agent and the replay buffer."""
        for name in ("learners", "replay_shards"):
            count = getattr(self, name)
            if count > 1 and not self.actors:
                raise ValueError(f"scale.{name}={count} needs actors: expected scale.actors of at least 1, got 0")
        replay = run.replay
        if replay.batch_size % (self.learners * self.replay_shards):
            raise ValueError(
                f"replay.batch_size must be a multiple of scale.learners times scale.replay_shards, got "
                f"{replay.batch_size}, {self.learners} and {self.replay_shards}"
            )
        if self.actors:
            self._check_actors(run)

    def _check_actors(self, run: RunSettings) -> None:
        if run.is_on_policy:
            raise ValueError(
                f"scale.actors needs an off-policy agent, got {run.agent_name}. Increase rollout.envs instead"
            )
        if self.replay_shards > self.actors:
            raise ValueError(
                f"every replay shard needs at least one actor: expected scale.actors of at least {self.replay_shards} "
                f"(scale.replay_shards), got {self.actors}"
            )
        # A shard must hold several chunks with their stacks.
        max_chunk_steps = min(MAX_CHUNK_STEPS, run.replay.capacity // self.replay_shards // 4)
        if not run.replay.n_step <= self.chunk_steps <= max_chunk_steps:
            raise ValueError(
                f"scale.chunk_steps must be from replay.n_step, {run.replay.n_step}, to {max_chunk_steps} here, got "
                f"{self.chunk_steps}"
            )
