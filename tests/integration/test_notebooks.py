"""The notebooks run from top to bottom, and hold no outputs."""

import json
from pathlib import Path

import pytest

from tools.run_notebook import main, read_code, run_notebook

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs_and_plain_python_cells(notebook: Path) -> None:
    content = json.loads(notebook.read_text())
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    cells = content["cells"]
    assert cells[0]["cell_type"] == "markdown"
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in (cell for cell in cells if cell["cell_type"] == "code"):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)
    compile(read_code(notebook), notebook.name, "exec")  # fails for magic commands of Jupyter


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path) -> None:
    result = run_notebook(notebook)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "warning" not in result.stderr.lower()


def test_the_three_notebooks_exist() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own_cameras", "quickstart", "reading_a_run"]


def test_a_failing_cell_fails_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [{"cell_type": "code", "source": [line]} for line in ("value = 1\n", "assert value == 2\n")]
    notebook = tmp_path / "broken.ipynb"
    notebook.write_text(json.dumps({"cells": cells}))
    monkeypatch.setattr("sys.argv", ["run_notebook", str(notebook)])
    assert main() == 1
    output = capsys.readouterr().out
    assert "broken.ipynb: FAILED" in output
    assert "AssertionError" in output
