from pathlib import Path

import pytest

from manyview.scale.shared_fs import check_marker, create_marker


def test_who_has_another_disk_under_the_same_name_is_told_so(tmp_path: Path) -> None:
    with create_marker(tmp_path / "run") as sign:
        check_marker(sign)
        with pytest.raises(
            OSError, match=r"is not shared with this machine: .* Move it to a file system that all machines share"
        ):
            check_marker(tmp_path / "elsewhere" / sign.name)
    assert list((tmp_path / "run").iterdir()) == []
