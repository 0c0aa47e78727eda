"""manyview: reinforcement learning from several cameras with sparse rewards.

`manyview.mem` holds the method as plain torch modules. This module imports nothing heavy: `manyview --help` and
workers that only need environments must not pay for torch.
"""

from importlib.metadata import version

__version__ = version("manyview")
