"""Checks of output paths before a command starts its work."""

from pathlib import Path

import pytest

from manyview.utils.output_paths import PLOT_SUFFIXES, VIDEO_SUFFIXES, check_output_directory, check_output_file


@pytest.mark.parametrize("name", ["a.mp4", "a.GIF", "new/deep/a.gif"])
def test_known_suffixes_pass_and_create_nothing(name: str, tmp_path: Path) -> None:
    check_output_file(tmp_path / name, VIDEO_SUFFIXES)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a.webm", "a", "mp4", ".mp4", "a.mp4.txt"])
def test_other_suffixes_are_refused_with_the_known_ones(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"expected a file that ends with \.mp4 or \.gif, got '{name}'"):
        check_output_file(tmp_path / name, VIDEO_SUFFIXES)


def test_all_suffixes_are_listed() -> None:
    with pytest.raises(ValueError, match=r"ends with \.png, \.svg or \.pdf"):
        check_output_file(Path("a.pgf"), PLOT_SUFFIXES)


def test_a_directory_as_output_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gif").mkdir()
    with pytest.raises(IsADirectoryError, match=r"a\.gif is a directory: expected a file"):
        check_output_file(tmp_path / "a.gif", VIDEO_SUFFIXES)


@pytest.mark.parametrize("name", ["file", "file/run", "file/a/b"])
def test_a_file_as_output_directory_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"file is a file: expected a directory"):
        check_output_directory(tmp_path / name)
    with pytest.raises(NotADirectoryError, match=r"file is a file: expected a directory"):
        check_output_file(tmp_path / "file" / "a.gif", VIDEO_SUFFIXES)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_may_exist_or_be_new(tmp_path: Path) -> None:
    check_output_directory(tmp_path)
    check_output_directory(tmp_path / "new" / "deep")
    check_output_directory(Path("new"))
