"""Marker files, which prove that machines share a file system."""

from pathlib import Path

import pytest

from manyview.scale.shared_fs import check_marker, create_marker


def test_a_missing_marker_raises_an_error_that_names_the_shared_file_system(tmp_path: Path) -> None:
    with create_marker(tmp_path / "run") as marker:
        check_marker(marker)
        with pytest.raises(
            OSError, match=r"is not shared with this machine: .* Move it to a file system that all machines share"
        ):
            check_marker(tmp_path / "elsewhere" / marker.name)
    assert list((tmp_path / "run").iterdir()) == []
