"""MEM, Multi-view Exploration Maximization, as plain torch modules.

| paper                                     | code                                               |
|-------------------------------------------|----------------------------------------------------|
| Eq. 1, 8: k-NN entropy                    | `knn.knn_entropy`                                  |
| Eq. 2: shared and specific features       | `encoder.Encoder.encode_images`                    |
| Eq. 3: L_diff                             | `losses.diff_loss`                                 |
| Eq. 4: L_con                              | `losses.con_loss`                                  |
| Eq. 5: L_adv                              | `losses.adv_loss`, `losses.discriminator_loss`     |
| Eq. 6: L_total                            | `losses.total_loss`                                |
| Eq. 7: state                              | `encoder.Encoder.forward`                          |
| Eq. 9: intrinsic reward r̂                 | `reward.compute_distances`, `reward.intrinsic_reward` |
| Eq. 10: total reward and β                | `reward.total_reward`, `reward.BetaSchedule`       |
| encoder with losses                       | `representation.MEMRepresentation`                 |
| r̂ with feature bank and scales            | `bonus.EntropyBonus`                               |
| all together                              | `model.MEM`                                        |

The mark PAPER in the code refers to a decision in `docs/explanation/decisions.md`, where the paper leaves a question
open or this implementation differs from it.
"""

from manyview.mem.bonus import EntropyBonus
from manyview.mem.config import EntropyBonusConfig, MEMConfig, MEMRepresentationConfig
from manyview.mem.diagnostics import Diagnostics
from manyview.mem.encoder import Encoder, Features, stack_views
from manyview.mem.knn import knn_distance, knn_entropy
from manyview.mem.model import MEM
from manyview.mem.representation import MEMRepresentation
from manyview.mem.reward import BetaSchedule, total_reward

__all__ = [
    "MEM",
    "BetaSchedule",
    "Diagnostics",
    "Encoder",
    "EntropyBonus",
    "EntropyBonusConfig",
    "Features",
    "MEMConfig",
    "MEMRepresentation",
    "MEMRepresentationConfig",
    "knn_distance",
    "knn_entropy",
    "stack_views",
    "total_reward",
]
