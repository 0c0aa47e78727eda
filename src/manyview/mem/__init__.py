"""MEM, Multi-view Exploration Maximization, as plain torch modules.

| paper         | here                                                  |
|---------------|-------------------------------------------------------|
| Eq. 1, 8      | `entropy.knn_entropy`                                 |
| Eq. 2, 7      | `encoder.Encoder`                                     |
| Eq. 3 to 6    | `losses`                                              |
| Eq. 9, 10     | `reward`                                              |
| all together  | `MEM`                                                 |

What the paper leaves open is marked PAPER in the code and answered in `docs/explanation/decisions.md`.
"""

from manyview.mem.config import MEMConfig
from manyview.mem.diagnostics import Diagnostics
from manyview.mem.encoder import Encoder, Features, stack_views
from manyview.mem.knn import knn_distance, knn_entropy
from manyview.mem.model import MEM
from manyview.mem.reward import BetaSchedule, total_reward

__all__ = [
    "MEM",
    "BetaSchedule",
    "Diagnostics",
    "Encoder",
    "Features",
    "MEMConfig",
    "knn_distance",
    "knn_entropy",
    "stack_views",
    "total_reward",
]
