"""Representations, bonuses and the registries of all parts; the modules of MEM itself are the package `mem`."""

from manyview.data.batch import get_rewarded_views
from manyview.methods.bonuses.apt import APT, APTConfig
from manyview.methods.bonuses.icm import ICM, ICMConfig
from manyview.methods.bonuses.mem import MEMBonus, MEMBonusConfig, OwnEncoderConfig
from manyview.methods.bonuses.none import NoBonusConfig
from manyview.methods.bonuses.re3 import RE3, RE3Config
from manyview.methods.bonuses.ride import RIDE, RIDEConfig
from manyview.methods.bonuses.rnd import RND, RNDConfig
from manyview.methods.bonuses.vcse import VCSE, VCSEConfig
from manyview.methods.interfaces import (
    Bonus,
    BonusConfig,
    BuildContext,
    EncoderOutput,
    HasCritic,
    HasDiagnostics,
    HasFeatureBank,
    HasSingleViews,
    HasUpdate,
    RegularizesPolicy,
    Representation,
    RewardsStates,
    RunSettings,
    StoresFeatures,
    find_stored_features,
)
from manyview.methods.recurrent import Memory, Recurrent
from manyview.methods.registry import (
    AGENTS,
    BONUSES,
    REPRESENTATIONS,
    register_agent,
    register_bonus,
    register_representation,
)
from manyview.methods.representations.curl import CURL, CURLConfig
from manyview.methods.representations.drac import DrAC, DrACConfig, UCBDrAC, UCBDrACConfig
from manyview.methods.representations.dribo import DRIBO, DRIBOConfig
from manyview.methods.representations.mad import MAD, MADConfig
from manyview.methods.representations.mem import build_mem
from manyview.methods.representations.pixel import PixelEncoder, PixelEncoderConfig

__all__ = [
    "AGENTS",
    "APT",
    "BONUSES",
    "CURL",
    "DRIBO",
    "ICM",
    "MAD",
    "RE3",
    "REPRESENTATIONS",
    "RIDE",
    "RND",
    "VCSE",
    "APTConfig",
    "Bonus",
    "BonusConfig",
    "BuildContext",
    "CURLConfig",
    "DRIBOConfig",
    "DrAC",
    "DrACConfig",
    "EncoderOutput",
    "HasCritic",
    "HasDiagnostics",
    "HasFeatureBank",
    "HasSingleViews",
    "HasUpdate",
    "ICMConfig",
    "MADConfig",
    "MEMBonus",
    "MEMBonusConfig",
    "Memory",
    "NoBonusConfig",
    "OwnEncoderConfig",
    "PixelEncoder",
    "PixelEncoderConfig",
    "RE3Config",
    "RIDEConfig",
    "RNDConfig",
    "Recurrent",
    "RegularizesPolicy",
    "Representation",
    "RewardsStates",
    "RunSettings",
    "StoresFeatures",
    "UCBDrAC",
    "UCBDrACConfig",
    "VCSEConfig",
    "build_mem",
    "find_stored_features",
    "get_rewarded_views",
    "register_agent",
    "register_bonus",
    "register_representation",
]
