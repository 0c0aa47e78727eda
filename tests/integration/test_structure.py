"""Rules of the source tree: imports, paper marks, forbidden calls and file lengths."""

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
# Users of other frameworks import `mem` alone, so it needs torch and no package that needs more.
ISOLATED: dict[str, set[str]] = {"mem": {"nn", "utils"}, "nn": {"utils"}, "runtime": set()}
RUNTIME_PACKAGE = PACKAGE / "runtime"
"""Also shipped under a second name, so its internal imports are relative."""
RUNTIME_MODULES = {file.stem for file in RUNTIME_PACKAGE.glob("*.py")}


def list_imports(path: Path) -> set[str]:
    """Return the modules that a file imports, and the names that it imports from them."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == (path.parent == RUNTIME_PACKAGE and node.module in RUNTIME_MODULES), (
                f"{path}: {node.module}"
            )
            prefix = "manyview.runtime." if node.level else ""
            names |= {f"{prefix}{node.module}"} | {f"{prefix}{node.module}.{alias.name}" for alias in node.names}
    return names


def list_imported_layers(path: Path) -> set[str]:
    return {name.split(".")[1] for name in list_imports(path) if name.startswith("manyview.")} & set(LAYERS)


def list_layer_files(layer: str) -> list[Path]:
    return sorted((PACKAGE / layer).rglob("*.py"))


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_between_layers_run_downwards(layer: str) -> None:
    allowed = ISOLATED.get(layer, set(LAYERS[LAYERS.index(layer) :])) | {layer}
    violations = {str(f.relative_to(ROOT)): list_imported_layers(f) - allowed for f in list_layer_files(layer)}
    assert not {file: layers for file, layers in violations.items() if layers}


def test_every_layer_is_a_declared_one() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages <= set(LAYERS)


def test_mem_imports_torch_and_nothing_else_that_has_to_be_installed() -> None:
    packages = {name.split(".")[0] for file in list_layer_files("mem") for name in list_imports(file)}
    assert packages <= sys.stdlib_module_names | {"torch", "manyview"}


def test_the_runtime_needs_numpy_and_in_one_module_onnxruntime() -> None:
    packages_by_file = {
        file.name: {name.split(".")[0] for name in list_imports(file)} for file in list_layer_files("runtime")
    }
    assert set.union(*packages_by_file.values()) <= sys.stdlib_module_names | {"numpy", "onnxruntime", "manyview"}
    assert [name for name, packages in packages_by_file.items() if "onnxruntime" in packages] == ["onnx_policy.py"]


def test_envs_never_import_torch() -> None:
    assert not [
        file for file in list_layer_files("envs") if any(name.split(".")[0] == "torch" for name in list_imports(file))
    ]


def collect_paper_marks() -> dict[str, list[str]]:
    """Return the places of all `PAPER:` marks by decision; '' has those without one."""
    marks: dict[str, list[str]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if "PAPER:" in line:
                match = re.search(r"PAPER: (D\d+)\.", line)
                marks.setdefault(match[1] if match else "", []).append(f"{file.relative_to(ROOT)}:{number}")
    return marks


def test_every_paper_mark_names_a_decision_that_exists() -> None:
    entries = re.findall(r"^## (D\d+)\.", DECISIONS.read_text(), flags=re.M)
    assert len(entries) == len(set(entries))
    marks = collect_paper_marks()
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
"""Modules and calls that make objects or code from bytes."""


@pytest.mark.quality("X2")
def test_shipped_code_never_unpickles() -> None:
    files = [str(f.relative_to(ROOT)) for f in PACKAGE.rglob("*.py") if FORBIDDEN.search(f.read_text())]
    assert not files


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
def test_unpickling_code_is_recognized(line: str) -> None:
    assert FORBIDDEN.search(line)


def build_import_graph() -> dict[str, set[str]]:
    """Return the imports between modules of the package, also those inside functions."""
    modules = {
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
        for file in PACKAGE.rglob("*.py")
    }
    return {name: (list_imports(file) & modules.keys()) - {name} for name, file in modules.items()}


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {name: targets for name, targets in build_import_graph().items() if not is_package(name)}
    while leaves := {name for name, targets in graph.items() if not targets & graph.keys()}:
        graph = {name: targets for name, targets in graph.items() if name not in leaves}
    assert not graph, f"in or above a circle: {sorted(graph)}"


def is_package(name: str) -> bool:
    return (PACKAGE.parent / Path(*name.split(".")) / "__init__.py").is_file()


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_module_is_over_350_lines(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 350


def test_the_documented_call_path_to_the_update_is_the_real_one(
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
    (listing,) = re.findall(r"```text\n(cli/main\.py.*?)```", page, flags=re.S)
    assert paths[-1] == [line.split()[0] for line in listing.splitlines()]
    assert len(paths[-1]) <= 12
