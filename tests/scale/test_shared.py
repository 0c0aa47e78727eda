from pathlib import Path

import pytest

from manyview.scale.shared import look_for, seen_by_all


def test_who_has_another_disk_under_the_same_name_is_told_so(tmp_path: Path) -> None:
    with seen_by_all(tmp_path / "run") as sign:
        look_for(sign)
        with pytest.raises(OSError, match="is another folder on this machine: put it on a disk that all machines see"):
            look_for(tmp_path / "elsewhere" / sign.name)
    assert list((tmp_path / "run").iterdir()) == []
