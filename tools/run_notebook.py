"""Run the code cells of notebooks, without Jupyter: `python -m tools.run_notebook examples/notebooks/*.ipynb`.

The cells are plain Python, so a kernel would add ten packages and test nothing more. Each notebook runs in a new
process and a temporary working directory, its cells as the module `__main__`, and pictures are not shown.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter


def read_code(notebook: Path) -> str:
    """Return the code cells as one script; each starts with a comment that names the cell in tracebacks."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return "\n\n".join(f"# cell {number}\n{source}" for number, source in enumerate(sources, 1)) + "\n"


def run_notebook(notebook: Path) -> subprocess.CompletedProcess[str]:
    """Run a notebook in a new process; its output and exit status tell how it went."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / f"{notebook.stem}.py"
        script.write_text(read_code(notebook), encoding="utf-8")
        command, environment = [sys.executable, script.name], {**os.environ, "MPLBACKEND": "agg"}
        return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)


def main() -> int:
    failed = False
    for path in map(Path, sys.argv[1:]):
        start_s = perf_counter()
        done = run_notebook(path)
        print(f"{path}: {'ok' if done.returncode == 0 else 'FAILED'} in {perf_counter() - start_s:.0f} s", flush=True)
        if done.returncode:
            print(done.stdout + done.stderr)
            failed = True
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
