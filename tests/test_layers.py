"""Who may import whom: the rooms of the package, from the bottom up, and the heavy packages that each may use.

Imports inside functions count too, except where a test speaks of module level; imports for type checking do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("cyclegrpo", "pipeline", "miniature")

# Room of cyclegrpo -> the rooms that it may import. A room that is not named imports none and is no room.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "params": set(),
    "params_problems": {"errors"},
    "params_file": {"errors", "params", "params_problems"},
    "files": {"errors"},
    "images": {"errors", "files"},
    "loading": {"errors"},
    "console": {"errors"},
    "regions": {"errors"},
    "rewards": {"regions"},
    "sources": {"errors", "files", "params", "regions"},
    "unfinished": {"errors", "files"},
    "tokenizer": {"errors", "files", "images", "loading", "params", "params_file", "regions", "sources", "unfinished"},
    "dataset": {"errors", "files", "images", "loading", "params", "regions", "sources", "tokenizer"},
    "vision": set(),
    "policy": {"errors", "files", "loading", "regions", "vision"},
}
MAY_IMPORT["training"] = {*MAY_IMPORT["dataset"], "dataset", "policy", "rewards", "vision"}
MAY_IMPORT["evaluation"] = {*MAY_IMPORT["dataset"], "dataset", "policy", "rewards"}
MAY_IMPORT["explorer"] = {"errors", "files", "params", "regions"}
MAY_IMPORT["predict"] = {*MAY_IMPORT["evaluation"], "evaluation"}
MAY_IMPORT["cli"] = set(MAY_IMPORT) | {"explorer", "predict"}
MAY_IMPORT["__main__"] = {"cli"}

TORCH = {"torch", "torchvision", "transformers", "trl", "accelerate"}


def python_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path, *, module_level: bool = False) -> Iterator[str]:
    """The dotted names that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo += node.orelse
        elif not (module_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            todo += ast.iter_child_nodes(node)


def room_of(path: Path) -> str:
    return path.relative_to(ROOT / "cyclegrpo").parts[0].removesuffix(".py")


def files_of(*rooms: str) -> list[Path]:
    return [path for path in python_files("cyclegrpo") if room_of(path) in rooms]


def top_level(names: Iterator[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_every_module_is_in_a_room() -> None:
    assert {room_of(path) for path in python_files("cyclegrpo")} - {"__init__"} == set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_only_go_down(room: str) -> None:
    for path in files_of(room):
        ours = [name.split(".") for name in imports(path) if name.startswith("cyclegrpo.")]
        used = {parts[1] for parts in ours} & set(MAY_IMPORT)
        assert used - {room} <= MAY_IMPORT[room], path


def test_the_order_has_no_circle() -> None:
    placed: set[str] = set()
    while rest := {room for room in MAY_IMPORT if room not in placed}:
        free = {room for room in rest if MAY_IMPORT[room] <= placed}
        assert free, rest
        placed |= free


def test_regions_and_rewards_are_plain_python_and_numpy() -> None:
    for path in files_of("regions", "rewards"):
        assert not top_level(imports(path)) & (TORCH | {"PIL", "pyarrow", "pathlib", "os", "io"}), path


def test_sources_have_no_models() -> None:
    for path in files_of("sources"):
        assert not top_level(imports(path)) & TORCH, path


def test_data_stages_start_without_torch() -> None:
    for path in files_of("dataset", "loading", "params", "params_file", "files", "images", "console", "cli"):
        assert not top_level(imports(path, module_level=True)) & TORCH, path


def test_only_training_imports_trl() -> None:
    users = {path for package in PACKAGES for path in python_files(package) if "trl" in top_level(imports(path))}
    assert users <= set(files_of("training"))


def test_nothing_below_imports_the_miniature_the_pipeline_or_dvc() -> None:
    for path in python_files("cyclegrpo"):
        assert not top_level(imports(path)) & {"miniature", "pipeline", "dvc"}, path
    for path in python_files("pipeline"):
        assert not top_level(imports(path)) & {"miniature", "dvc"}, path
