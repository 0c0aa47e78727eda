"""`manyview acceptance`: its two report files, progress lines and exit status."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from manyview.cli.main import main
from manyview.training import acceptance as kit


def succeed(_: kit.Acceptance, figures: dict[str, Any]) -> None:
    """Give some figures."""
    figures |= {"speed": 12.3456, "versions": {"torch": "2", "numpy": "1"}, "broken": math.nan}


def crash(acceptance: kit.Acceptance, _: dict[str, Any]) -> None:
    """Crash."""
    acceptance.log("half of it is done")
    raise RuntimeError("driver lost")


@pytest.mark.parametrize(("sections", "status"), [((succeed,), 0), ((crash, succeed), 1)])
def test_a_failed_section_gives_exit_status_1_and_the_others_are_in_both_files(
    sections: tuple[kit.Section, ...],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(kit, "SECTIONS", {section.__name__: section for section in sections})
    out = tmp_path / "report.json"
    assert main(["acceptance", "--device", "cpu", "--quick", "--out", str(out)]) == status
    captured = capfd.readouterr()
    assert "Traceback" not in captured.out + captured.err
    assert "succeed: ok" in captured.out
    report = json.loads(out.read_text())
    assert (report["device"], report["quick"]) == ("cpu", True)
    assert [section["status"] for section in report["sections"]] == ["failed", "ok"][-len(sections) :]
    assert report["sections"][-1]["figures"] == {
        "speed": 12.3456,
        "versions": {"torch": "2", "numpy": "1"},
        "broken": None,
    }
    text = out.with_suffix(".md").read_text()
    assert "| speed | 12.35 |" in text
    assert "| versions | torch 2, numpy 1 |" in text
    if status:
        assert "half of it is done" in captured.out
        assert "crash: failed, RuntimeError: driver lost" in captured.out
        assert "Traceback" in report["sections"][0]["traceback"]
        assert "| crash | failed |" in text
        assert "Traceback" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used here"),
        (["--device", "cpu", "--out", "no/such/directory/report.json"], "no/such/directory"),
        (["--device", "cpu", "--out", "report.md"], "expected a .json file"),
    ],
)
def test_an_unusable_device_or_file_is_refused_in_one_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kit, "SECTIONS", {"succeed": succeed})
    assert main(["acceptance", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_ctrl_c_leaves_the_report_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: kit.Acceptance, __: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(kit, "SECTIONS", {"succeed": succeed, "interrupt": interrupt})
    out = tmp_path / "report.json"
    assert main(["acceptance", "--device", "cpu", "--out", str(out)]) == 130
    assert [section["status"] for section in json.loads(out.read_text())["sections"]] == ["ok", "skipped"]
