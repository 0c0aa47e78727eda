"""Replay buffer, rollout buffer, n-step sampling, augmentation, segment log."""

from manyview.data.batch import Batch, Minibatch
from manyview.data.derived_views import DerivedViews
from manyview.data.layout import check_replay_fits, compute_batch_bytes, compute_buffer_bytes, compute_step_bytes
from manyview.data.neighbors import NeighborSearch
from manyview.data.replay_buffer import ReplayBuffer
from manyview.data.rollout_buffer import RolloutBuffer
from manyview.data.sampler import Sampler
from manyview.data.segment_format import SegmentError
from manyview.data.segment_log import NullLog, ReplayLog, SegmentLog
from manyview.utils.async_writer import AsyncWriter
from manyview.utils.resources import InsufficientSpaceError, check_memory, get_free_disk_bytes, get_free_memory_bytes

__all__ = [
    "AsyncWriter",
    "Batch",
    "DerivedViews",
    "InsufficientSpaceError",
    "Minibatch",
    "NeighborSearch",
    "NullLog",
    "ReplayBuffer",
    "ReplayLog",
    "RolloutBuffer",
    "Sampler",
    "SegmentError",
    "SegmentLog",
    "check_memory",
    "check_replay_fits",
    "compute_batch_bytes",
    "compute_buffer_bytes",
    "compute_step_bytes",
    "get_free_disk_bytes",
    "get_free_memory_bytes",
]
