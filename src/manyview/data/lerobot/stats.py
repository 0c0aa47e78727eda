"""Statistics of the features of a dataset: minimum, maximum, mean, standard deviation and count."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyview.envs.views import Image

STATS = ("min", "max", "mean", "std", "count")


@dataclass
class FeatureStats:
    """Running statistics of the numbers of a feature, or of the channels of a camera in [0, 1]."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    total: NDArray[np.float64]
    squares: NDArray[np.float64]
    values: int = 0
    """Numbers behind each mean: pixels of all frames, or frames."""
    frames: int = 0

    @classmethod
    def make_empty(cls, size: int) -> "FeatureStats":
        """Return the statistics of no frames."""
        return cls(np.full(size, np.inf), np.full(size, -np.inf), np.zeros(size), np.zeros(size))

    def add_rows(self, rows: NDArray[Any], *, frames: int | None = None) -> None:
        """Add values [N, size] of `frames` frames, by default N."""
        values = rows.astype(np.float64)
        self.low, self.high = np.minimum(self.low, values.min(0)), np.maximum(self.high, values.max(0))
        self.total, self.squares = self.total + values.sum(0), self.squares + (values**2).sum(0)
        self.values, self.frames = self.values + len(rows), self.frames + (len(rows) if frames is None else frames)

    def add_image(self, image: Image) -> None:
        """Add one frame [H, W, C]."""
        self.add_rows(image.reshape(-1, image.shape[2]) / 255, frames=1)

    def merge(self, others: Iterable["FeatureStats"]) -> "FeatureStats":
        """Return the statistics of these frames and those of `others`."""
        parts = [self, *others]
        return FeatureStats(
            np.min([part.low for part in parts], axis=0),
            np.max([part.high for part in parts], axis=0),
            np.sum([part.total for part in parts], axis=0),
            np.sum([part.squares for part in parts], axis=0),
            sum(part.values for part in parts),
            sum(part.frames for part in parts),
        )

    def to_plain(self, *, is_camera: bool) -> dict[str, Any]:
        """Return lists by `STATS`; those of a camera have the shape [C, 1, 1]."""
        mean = self.total / self.values
        std = np.sqrt(np.maximum(self.squares / self.values - mean**2, 0))
        columns = (self.low, self.high, mean, std)
        lists = [[[[x]] for x in column.tolist()] if is_camera else column.tolist() for column in columns]
        return dict(zip(STATS, [*lists, [self.frames]], strict=True))
