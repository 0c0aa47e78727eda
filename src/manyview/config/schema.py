"""Run config: all settings of a run.

`agent`, `representation` and `bonus` hold the settings of the chosen parts alone; `methods.registry` knows their names.
Each group of settings may have a method `check(run)`, which refuses a run that it does not fit.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

from manyview.agents import DrQv2Config
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
from manyview.config.method import format_method
from manyview.mem import MEMRepresentationConfig
from manyview.mem.reward import BetaUnit
from manyview.methods import AGENTS, BONUSES, REPRESENTATIONS, BonusConfig, MEMBonusConfig
from manyview.utils.validation import add_prefix


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
        check_seed(self)
        check_data_source(self)
        for group in fields(self):
            check = getattr(getattr(self, group.name), "check", None)
            if check is not None:
                with add_prefix(f"{group.name}."):
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
    def sequence_length(self) -> int | None:
        """Observations of a sequence that the sampler gives a recurrent representation; None for transitions."""
        length: int | None = getattr(self.representation, "sequence_length", None)
        return length

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
    agent = AGENTS[config.agent_name]
    for registry, name in ((REPRESENTATIONS, config.representation_name), (BONUSES, config.bonus_name)):
        part = registry[name]
        if not part.shares_data(agent):
            agents = ", ".join(other for other in AGENTS.list_names() if AGENTS[other].shares_data(part))
            raise ValueError(
                f"{registry.kind}={name} learns from {part.data[0]} data, {agent.name} from {agent.data[0]} data: "
                f"expected agent {agents}, got {agent.name}"
            )
