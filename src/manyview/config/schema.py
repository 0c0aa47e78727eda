"""Run config: all settings of a run, and the checks between its groups.

`agent`, `representation` and `bonus` hold the settings of the chosen parts alone; `methods.registry` knows their names.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from manyview.agents import DrQv2Config, PPOConfig
from manyview.agents.base import OffPolicyConfig
from manyview.config.groups import (
    ComputeConfig,
    EnvConfig,
    EvaluationConfig,
    LoggingConfig,
    ReplayConfig,
    RolloutConfig,
    ScaleConfig,
    ScheduleConfig,
)
from manyview.config.method import NO_REPRESENTATION, format_method
from manyview.mem import MEMRepresentationConfig
from manyview.mem.reward import BetaUnit
from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS, BonusConfig, MEMBonusConfig

MAX_CHUNK_STEPS = 400


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run.

    Raises:
        ValueError: Settings are out of range or do not fit together.

    """

    task: str
    """Task as <suite>/<name>, or <module>:<function> for your own environment."""
    seed: int = 1
    """Seed of all random numbers."""
    preset: str = ""
    """Presets that the settings were loaded from, for the record."""
    agent: Annotated[Any, AGENTS] = field(default_factory=DrQv2Config)
    representation: Annotated[Any, REPRESENTATIONS] = field(default_factory=MEMRepresentationConfig)
    bonus: Annotated[Any, BONUSES] = field(default_factory=MEMBonusConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    scale: ScaleConfig = field(default_factory=ScaleConfig)

    def __post_init__(self) -> None:
        if isinstance(self.bonus, BonusConfig):
            object.__setattr__(self, "bonus", self.bonus.fit_representation(self.representation))
        for check in CHECKS:
            check(self)

    @property
    def method(self) -> str:
        """Names of agent, representation and bonus in the short form of `--method`."""
        return format_method(self.agent_name, self.representation_name, self.bonus_name)

    @property
    def agent_name(self) -> str:
        return AGENTS.find_name(self.agent)

    @property
    def representation_name(self) -> str:
        return REPRESENTATIONS.find_name(self.representation)

    @property
    def bonus_name(self) -> str:
        return BONUSES.find_name(self.bonus)

    @property
    def is_on_policy(self) -> bool:
        return AGENTS[self.agent_name].data == ("rollout",)

    @property
    def beta_unit(self) -> BetaUnit:
        """Unit that the weight β of the bonus decays with."""
        return self.bonus.unit if isinstance(self.bonus, BonusConfig) else "agent_steps"

    @property
    def single_process(self) -> "RunConfig":
        """The config without distribution, by which actors, shards and learners build their parts."""
        return replace(self, scale=replace(self.scale, actors=0, replay_shards=1, learners=1))


def check_seed(config: RunConfig) -> None:
    """Check that the seed is a 64-bit count."""
    if not 0 <= config.seed < 2**64:
        raise ValueError(f"seed: expected at least 0 and less than 2**64, got {config.seed}")


def check_data_source(config: RunConfig) -> None:
    """Check that representation and bonus can learn from what the agent collects."""
    (source,) = AGENTS[config.agent_name].data
    for registry, name in ((REPRESENTATIONS, config.representation_name), (BONUSES, config.bonus_name)):
        part = registry[name]
        if source not in part.data:
            agents = ", ".join(agent for agent in AGENTS.list_names() if AGENTS[agent].data[0] in part.data)
            raise ValueError(
                f"{registry.kind}={name} learns from a {part.data[0]}, {config.agent_name} from a {source}: expected "
                f"agent {agents}, got {config.agent_name}"
            )


def check_bonus(config: RunConfig) -> None:
    """Check that the agent supports the settings of the bonus."""
    bonus, agent = config.bonus, config.agent_name
    if not isinstance(bonus, BonusConfig):
        return
    if config.is_on_policy:
        if getattr(bonus, "max_rows", None) is not None:
            raise ValueError(f"bonus.max_rows needs an agent with a replay buffer, got {agent}")
        if bonus.rewarded_state == "next":
            raise ValueError(f"bonus.rewarded_state=next needs an agent with a replay buffer, got {agent}")
        check_neighbor_count(config)
    elif bonus.unit != "agent_steps":
        raise ValueError(f"bonus.unit must be agent_steps for {agent}, got {bonus.unit!r}")
    if isinstance(bonus, MEMBonusConfig):
        check_mem_bonus(config, bonus)


def check_mem_bonus(config: RunConfig, bonus: MEMBonusConfig) -> None:
    """Check that encoder, bank and frames of MEM's bonus exist."""
    if config.is_on_policy and bonus.bank:
        raise ValueError(
            f"bonus.bank needs an off-policy agent, got ppo with bonus.bank={bonus.bank}. Set bonus.bank=0; "
            "agent.neighbors=pooled searches the whole rollout"
        )
    is_shared = isinstance(config.representation, MEMRepresentationConfig)
    if bonus.reward_frames == "clean" and (config.is_on_policy or bonus.target_encoder):
        raise ValueError(
            "bonus.reward_frames=clean needs a replay buffer and the encoder itself, got "
            f"{config.agent_name} and bonus.target_encoder={bonus.target_encoder}. Use augmented"
        )
    if is_shared and bonus.encoder is not None:
        raise ValueError("bonus.encoder has no effect: the bonus shares the encoder of representation=mem. Remove it")
    if bonus.target_encoder and not (is_shared and getattr(config.agent, "encoder_tau", 1.0) < 1):
        raise ValueError(
            "bonus.target_encoder needs representation=mem and an agent with agent.encoder_tau < 1, got "
            f"{config.representation_name} and {config.agent_name}"
        )
    if is_shared and bonus.reward_frames == "clean" and config.replay.augmentation == "crop":
        raise ValueError(
            "bonus.reward_frames=clean needs images of the encoder's size, got replay.augmentation=crop. Use augmented"
        )


def check_neighbor_count(config: RunConfig) -> None:
    """Check that there are more than k candidates; with fewer, the bonus uses the farthest row or is 0."""
    k, rollout, agent = getattr(config.bonus, "k", None), config.rollout, config.agent
    if k is None or not isinstance(agent, PPOConfig) or config.bonus_name == "ride":  # counts earlier states only
        return
    if agent.neighbors == "pooled":
        if k >= agent.window:
            raise ValueError(f"agent.window must be more than bonus.k, got {agent.window} and {k}")
        if k >= rollout.envs * rollout.steps:
            raise ValueError(
                f"rollout.envs times rollout.steps must be more than bonus.k, got {rollout.envs}, {rollout.steps} and "
                f"{k}"
            )
    elif k >= rollout.steps:
        raise ValueError(
            f"rollout.steps must be more than bonus.k, got {rollout.steps} and {k}: neighbors are searched in the "
            "rollout of one environment. agent.neighbors=pooled searches all environments"
        )


def check_augmented_view(config: RunConfig) -> None:
    """Check that only on-policy runs have an augmented view."""
    if config.env.augmented_view not in ("paper", "none") and not config.is_on_policy:
        raise ValueError(
            f"env.augmented_view needs agent ppo, got {config.agent_name}, which augments sampled batches. Set it to "
            "none"
        )


def check_encoder_is_trained(config: RunConfig) -> None:
    """Check that some loss reaches the encoder."""
    is_detached = isinstance(config.agent, OffPolicyConfig) and not config.agent.critic_trains_encoder
    if is_detached and config.representation_name == NO_REPRESENTATION:
        raise ValueError(
            "nothing would train the encoder: representation=pixel has no auxiliary loss, expected "
            "agent.critic_trains_encoder=true, got false"
        )


def check_structure(config: RunConfig) -> None:
    """Check that DrQ-v2's official structure gets the convolutions' output, and projects it once."""
    if not isinstance(config.agent, DrQv2Config) or config.agent.structure == "shared":
        return
    projection = getattr(config.representation, "projection", None)
    if projection is not False:
        got = f"representation={config.representation_name}" if projection is None else "representation.projection=true"
        raise ValueError(
            "agent.structure=official projects the convolutions' output itself: expected representation=pixel with "
            f"representation.projection=false, got {got}"
        )


def check_scale(config: RunConfig) -> None:
    """Check that actors, shards and learners fit the agent and the replay buffer."""
    scale, replay = config.scale, config.replay
    for name, count in (("learners", scale.learners), ("replay_shards", scale.replay_shards)):
        if count > 1 and not scale.actors:
            raise ValueError(f"scale.{name}={count} needs actors: expected scale.actors of at least 1, got 0")
    if replay.batch_size % (scale.learners * scale.replay_shards):
        raise ValueError(
            f"replay.batch_size must be a multiple of scale.learners times scale.replay_shards, got "
            f"{replay.batch_size}, {scale.learners} and {scale.replay_shards}"
        )
    if not scale.actors:
        return
    if config.is_on_policy:
        raise ValueError(
            f"scale.actors needs an off-policy agent, got {config.agent_name}. Increase rollout.envs instead"
        )
    if scale.replay_shards > scale.actors:
        raise ValueError(
            f"every replay shard needs at least one actor: expected scale.actors of at least {scale.replay_shards} "
            f"(scale.replay_shards), got {scale.actors}"
        )
    # A shard must hold several chunks with their stacks.
    max_chunk_steps = min(MAX_CHUNK_STEPS, replay.capacity // scale.replay_shards // 4)
    if not replay.n_step <= scale.chunk_steps <= max_chunk_steps:
        raise ValueError(
            f"scale.chunk_steps must be from replay.n_step, {replay.n_step}, to {max_chunk_steps} here, got "
            f"{scale.chunk_steps}"
        )


CHECKS: tuple[Callable[[RunConfig], None], ...] = (
    check_seed,
    check_data_source,
    check_bonus,
    check_augmented_view,
    check_encoder_is_trained,
    check_structure,
    check_scale,
)
