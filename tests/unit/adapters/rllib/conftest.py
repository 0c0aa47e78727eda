"""RLlib asks for one version of gymnasium, in an environment of its own: `bash .ci/rllib` runs these tests.

Elsewhere they are not collected at all, so that the gate counts no skips that can never become passes.
"""

from importlib.metadata import version
from importlib.util import find_spec

if find_spec("ray") is None or version("gymnasium") != "1.2.2":
    collect_ignore_glob = ["test_*.py"]
