"""What agents learn from: the replay of single frames, and augmentation on tensors."""

from manyview.data.batch import Batch
from manyview.data.derived import Derived
from manyview.data.layout import batch_bytes, bytes_needed, bytes_per_step
from manyview.data.log import Log, NoLog, SegmentLog
from manyview.data.replay import Replay
from manyview.data.rollout import Minibatch, Rollout
from manyview.data.room import NoRoomError, check_memory, check_room, free_disk_bytes, free_memory_bytes
from manyview.data.sampler import Sampler
from manyview.data.scribe import Scribe
from manyview.data.segments import SegmentError

__all__ = [
    "Batch",
    "Derived",
    "Log",
    "Minibatch",
    "NoLog",
    "NoRoomError",
    "Replay",
    "Rollout",
    "Sampler",
    "Scribe",
    "SegmentError",
    "SegmentLog",
    "batch_bytes",
    "bytes_needed",
    "bytes_per_step",
    "check_memory",
    "check_room",
    "free_disk_bytes",
    "free_memory_bytes",
]
