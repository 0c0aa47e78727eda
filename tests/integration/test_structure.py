"""Rules about the repository itself."""

import ast
import re
import sys
from dataclasses import fields
from pathlib import Path
from traceback import extract_stack
from typing import Any

import pytest

from manyview.agents import DrQv2
from manyview.cli.main import main
from manyview.mem import MEMConfig

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "manyview"
DECISIONS = ROOT / "docs" / "explanation" / "decisions.md"

# Top to bottom: a package imports those below it, never one above.
LAYERS = [
    "cli",
    "deploy",
    "scale",
    "report",
    "training",
    "config",
    "agents",
    "adapters",
    "methods",
    "mem",
    "nn",
    "data",
    "envs",
    "utils",
    "runtime",
]
# The framework user installs `mem` for itself: torch, and nothing of ours that needs more.
ISOLATED: dict[str, set[str]] = {"mem": {"nn", "utils"}, "nn": {"utils"}, "runtime": set()}
RELATIVE = PACKAGE / "runtime"
"""Shipped under a second name too, so its imports of itself are relative."""
RUNTIME_MODULES = {file.stem for file in RELATIVE.glob("*.py")}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == (path.parent == RELATIVE and node.module in RUNTIME_MODULES), f"{path}: {node.module}"
            prefix = "manyview.runtime." if node.level else ""
            found |= {f"{prefix}{node.module}"} | {f"{prefix}{node.module}.{alias.name}" for alias in node.names}
    return found


def layers_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("manyview.")} & set(LAYERS)


def layer_files(layer: str) -> list[Path]:
    return sorted((PACKAGE / layer).rglob("*.py"))


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_between_layers_run_downwards(layer: str) -> None:
    allowed = ISOLATED.get(layer, set(LAYERS[LAYERS.index(layer) :])) | {layer}
    wrong = {str(f.relative_to(ROOT)): layers_imported(f) - allowed for f in layer_files(layer)}
    assert not {file: layers for file, layers in wrong.items() if layers}


def test_every_layer_is_a_declared_one() -> None:
    there = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert there <= set(LAYERS)


def test_mem_imports_torch_and_nothing_else_that_has_to_be_installed() -> None:
    outside = {name.split(".")[0] for file in layer_files("mem") for name in imports(file)}
    assert outside <= sys.stdlib_module_names | {"torch", "manyview"}


def test_the_runtime_needs_numpy_and_in_one_module_onnxruntime() -> None:
    outside = {file.name: {name.split(".")[0] for name in imports(file)} for file in layer_files("runtime")}
    assert set.union(*outside.values()) <= sys.stdlib_module_names | {"numpy", "onnxruntime", "manyview"}
    assert [name for name, packages in outside.items() if "onnxruntime" in packages] == ["onnx_policy.py"]


def test_envs_never_import_torch() -> None:
    assert not [file for file in layer_files("envs") if any(name.split(".")[0] == "torch" for name in imports(file))]


def paper_marks() -> dict[str, list[str]]:
    """Every `PAPER:` mark in the package, by the decision it names; a mark that names none is under ''."""
    marks: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if "PAPER:" in line:
                named = re.search(r"PAPER: (D\d+)\.", line)
                marks.setdefault(named[1] if named else "", []).append(f"{file.relative_to(ROOT)}:{number}")
    return marks


def test_every_paper_mark_names_a_decision_that_exists() -> None:
    entries = re.findall(r"^## (D\d+)\.", DECISIONS.read_text(), flags=re.M)
    assert len(entries) == len(set(entries))
    marks = paper_marks()
    assert marks, "the package has no mark at all"
    assert "" not in marks, f"marks without a decision: {marks.get('')}"
    assert set(marks) <= set(entries), f"no entry for {set(marks) - set(entries)}"


@pytest.mark.parametrize("field", [field.name for field in fields(MEMConfig)])
def test_every_option_is_named_in_the_decisions(field: str) -> None:
    assert f"`{field}" in DECISIONS.read_text()


FORBIDDEN = re.compile(
    r"pickle|\btorch\.load\b|\byaml\b|\b(dill|joblib|marshal|shelve|jsonpickle)\b"
    r"|(?<![\w.])(eval|exec|compile)\(|\b__import__\b|\bweights_only\b|_object_list\b|\b(all_)?gather_object\b"
)
"""Whatever makes objects or code of bytes."""


@pytest.mark.quality("X2")
def test_shipped_code_never_unpickles() -> None:
    found = [str(f.relative_to(ROOT)) for f in PACKAGE.rglob("*.py") if FORBIDDEN.search(f.read_text())]
    assert not found


@pytest.mark.quality("X2")
@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "import cloudpickle as cp",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "yaml.load(text)",
        "import marshal, shelve",
        "eval(text)",
        "x = exec(text)",
        "distributed.broadcast_object_list(said)",
        "distributed.all_gather_object(found, said)",
    ],
)
def test_what_would_unpickle_is_seen(line: str) -> None:
    assert FORBIDDEN.search(line)


def module_imports() -> dict[str, set[str]]:
    """Imports between modules of the package, also those inside functions."""
    modules = {
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
        for file in PACKAGE.rglob("*.py")
    }
    return {name: (imports(file) & modules.keys()) - {name} for name, file in modules.items()}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: targets for name, targets in module_imports().items() if not is_package(name)}
    while ends := {name for name, targets in graph.items() if not targets & graph.keys()}:
        graph = {name: targets for name, targets in graph.items() if name not in ends}
    assert not graph, f"in or above a circle: {sorted(graph)}"


def is_package(name: str) -> bool:
    return (PACKAGE.parent / Path(*name.split(".")) / "__init__.py").is_file()


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_module_is_over_350_lines(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 350


def test_the_way_from_the_command_to_the_update_is_the_one_in_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths: list[list[str]] = []
    update = DrQv2.update

    def record_path(self: DrQv2, *args: Any) -> Any:
        files = [Path(frame.filename) for frame in extract_stack()]
        modules = [file.relative_to(PACKAGE).as_posix() for file in files if PACKAGE in file.parents]
        paths.append([*dict.fromkeys(modules), "agents/drqv2.py"])
        return update(self, *args)

    monkeypatch.setattr(DrQv2, "update", record_path)
    changes = ["schedule.frames=40", "schedule.seed_frames=30", "evaluation.episodes=0"]
    assert main(["train", "toy/hidden_goal_continuous", "--preset", "minute", "--set", *changes]) == 0
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    (listed,) = re.findall(r"```text\n(cli/main\.py.*?)```", page, flags=re.S)
    assert paths[-1] == [line.split()[0] for line in listed.splitlines()]
    assert len(paths[-1]) <= 12
