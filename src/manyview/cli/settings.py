"""Options of the subcommands that resolve a run config or train: `train`, `resume`, `extend` and `config`."""

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, UseAppendAction, arg

from manyview.config.method import DEFAULT_METHOD
from manyview.config.presets import BUILT_IN_PRESETS, read_preset
from manyview.config.resolve import resolve_config
from manyview.config.schema import RunConfig

MethodOption = Annotated[
    str | None,
    arg(
        metavar="AGENT+PART",
        help="Agent, representation and bonus in short, such as drqv2+mem, sac+re3 or sac+pixel+mem, which names both "
        "parts; `manyview config list` explains all.",
        help_behavior_hint=f"(default: {DEFAULT_METHOD})",
    ),
]
AgentOption = Annotated[str | None, arg(metavar="NAME", help="Agent.", help_behavior_hint="(default: of --method)")]
RepresentationOption = Annotated[
    str | None,
    arg(
        metavar="NAME",
        help="Representation: what the policy sees, and its auxiliary loss.",
        help_behavior_hint="(default: of --method)",
    ),
]
BonusOption = Annotated[
    str | None,
    arg(metavar="NAME", help="Bonus: what exploration pays.", help_behavior_hint="(default: of --method)"),
]
PresetOption = Annotated[
    str | None,
    arg(
        metavar="NAME[,NAME]",
        help="Settings to start from. "
        + "; ".join(f"{name}: {read_preset(name).summary}" for name in BUILT_IN_PRESETS)
        + ". Also a TOML file, or its name in ~/.config/manyview/presets.",
        help_behavior_hint="(default: the paper's with an accelerator, otherwise minute for toys, else cpu)",
    ),
]
SeedOption = Annotated[
    int | None,
    arg(metavar="N", help="Seed of all random numbers.", help_behavior_hint=f"(default: {RunConfig.seed})"),
]
FramesOption = Annotated[
    int | None,
    arg(metavar="N", help="Length of the run in simulator frames.", help_behavior_hint="(default: schedule.frames)"),
]
ViewsOption = Annotated[
    tuple[str, ...] | None,
    arg(metavar="NAME ...", help="Views of the agent.", help_behavior_hint="(default: env.views)"),
]
DeviceOption = Annotated[
    str | None,
    arg(metavar="auto|cpu|cuda", help="Device of the networks.", help_behavior_hint="(default: compute.device)"),
]
SetOption = Annotated[
    UseAppendAction[tuple[tuple[str, ...], ...]],
    arg(
        metavar="NAME=VALUE ...",
        help="Override settings, such as replay.batch_size=128; also as `--replay.batch-size 128`. "
        "`manyview config show` lists them.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    arg(
        metavar="FILE",
        help="Use a JSON or TOML file, such as config.json of a run, instead of a preset.",
        help_behavior_hint="",
    ),
]
AddressOption = Annotated[
    str | None,
    arg(
        metavar="HOST:PORT",
        help="With actors: address of a Ray cluster.",
        help_behavior_hint="(default: a private cluster on this machine)",
    ),
]
AcceptChangesFlag = Annotated[
    bool,
    FlagCreatePairsOff,
    arg(help="Resume even if versions or threads have changed; results are then not bit-identical."),
]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options that choose the settings of a run."""

    method: MethodOption = None
    agent: AgentOption = None
    representation: RepresentationOption = None
    bonus: BonusOption = None
    preset: PresetOption = None
    seed: SeedOption = None
    frames: FramesOption = None
    views: ViewsOption = None
    device: DeviceOption = None
    set: SetOption = ()
    config: ConfigOption = None

    def resolve(self, task: str | None, overrides: dict[str, Any] | None = None) -> RunConfig:
        """Return the run config of these options; see `resolve_config`."""
        return resolve_config(
            task,
            method=self.method,
            agent=self.agent,
            representation=self.representation,
            bonus=self.bonus,
            preset=self.preset,
            seed=self.seed,
            file=self.config,
            frames=self.frames,
            views=self.views,
            device=self.device,
            assignments=list(chain(*self.set)),
            overrides=overrides,
        )
