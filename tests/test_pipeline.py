"""dvc.yaml and miniature/dvc.yaml: what they name exists, is complete and is ignored by git; and DVC does with it what
the documentation says, tried on stand-in scripts in a repository of its own.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from cyclegrpo.params import STAGES, Base
from cyclegrpo.params_file import load_params
from cyclegrpo.params_problems import DVC_KEYS
from tests.test_params import SHIPPED, write_params

ROOT = Path(__file__).parent.parent
PIPELINES = {"dvc.yaml": "pipeline", "miniature/dvc.yaml": "miniature/stages"}
DVC = str(Path(sys.executable).with_name("dvc"))
PACKAGES = ("cyclegrpo", "pipeline", "miniature")

# What stages import that cannot change their outputs: messages, tables on the terminal, and the typed params, whose
# values DVC compares by itself.
WITHOUT_EFFECT = {
    f"{name}.py"
    for name in (
        "cyclegrpo/console", "cyclegrpo/errors", "cyclegrpo/params", "cyclegrpo/params_file",
        "cyclegrpo/params_problems", "pipeline/stage", "miniature/params", "miniature/stages/stage",
    )
}  # fmt: skip
# Keys of `base` that change how fast a stage is, not what it writes.
NEUTRAL_KEYS = {"base.device", "base.num_workers"}


@cache
def read_pipeline(name: str) -> dict[str, Any]:
    data: dict[str, Any] = YAML(typ="safe", pure=True).load(ROOT / name)
    return data


def stages() -> list[tuple[str, str]]:
    return [(pipeline, stage) for pipeline in PIPELINES for stage in read_pipeline(pipeline)["stages"]]


def fill(text: str) -> str:
    """A path of a dvc.yaml with its templates filled from the shipped params files."""
    yaml = YAML(typ="safe", pure=True)
    values = {**yaml.load(SHIPPED), **yaml.load(ROOT / "miniature/params.yaml")}
    for section in ("base", "world"):
        for key, value in values[section].items():
            text = text.replace(f"${{{section}.{key}}}", str(value))
    assert "${" not in text
    return text


def paths_of(pipeline: str, stage: str, kind: str) -> list[str]:
    """The deps or outs of a stage, relative to the root."""
    items = read_pipeline(pipeline)["stages"][stage][kind]
    names = [fill(next(iter(item)) if isinstance(item, dict) else item) for item in items]
    return [os.path.normpath(Path(pipeline).parent / name) for name in names]


def module_path(module: str) -> Path | None:
    base = ROOT.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def imported_modules(path: Path) -> Iterator[str]:
    """The modules of ours that a file imports, inside functions too, but not for type checking alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.split(".")[0] in PACKAGES:
                parts = name.split(".")
                yield from (".".join(parts[: end + 1]) for end in range(len(parts)))


@cache
def import_closure(script: Path) -> frozenset[str]:
    """The files that a script imports, directly or not, relative to the root; without those that cannot matter."""
    seen: set[Path] = set()
    todo = [script]
    while todo:
        path = todo.pop()
        if path not in seen and path.relative_to(ROOT).as_posix() not in WITHOUT_EFFECT:
            seen.add(path)
            todo += [found for found in map(module_path, imported_modules(path)) if found is not None]
    return frozenset(path.relative_to(ROOT).as_posix() for path in seen if not is_empty_package(path))


def is_empty_package(path: Path) -> bool:
    return path.name == "__init__.py" and all(
        isinstance(statement, ast.Expr | ast.Assign) for statement in ast.parse(path.read_text(encoding="utf-8")).body
    )


def script_of(pipeline: str, stage: str) -> Path:
    return ROOT / PIPELINES[pipeline] / f"{stage}.py"


def covers(dep: str, file: str) -> bool:
    return file == dep or file.startswith(f"{dep}/")


# What the files say


def test_stages_are_the_sections_and_the_scripts() -> None:
    assert tuple(read_pipeline("dvc.yaml")["stages"]) == STAGES
    for pipeline, stage in stages():
        command = read_pipeline(pipeline)["stages"][stage]["cmd"]
        module = PIPELINES[pipeline].replace("/", ".") + f".{stage}"
        assert command.removeprefix("cd .. && ") == f"python -m {module}"
        assert script_of(pipeline, stage).is_file()


@pytest.mark.parametrize(("pipeline", "stage"), stages())
def test_deps_are_what_the_script_imports(pipeline: str, stage: str) -> None:
    deps = [
        dep for dep in paths_of(pipeline, stage, "deps") if dep.split("/")[0] in PACKAGES and "checkpoints" not in dep
    ]
    files = import_closure(script_of(pipeline, stage))
    assert sorted(file for file in files if not any(covers(dep, file) for dep in deps)) == []
    assert [dep for dep in deps if not any(covers(dep, file) for file in files)] == []


@pytest.mark.parametrize("stage", STAGES)
def test_params_are_what_the_code_reads(stage: str) -> None:
    """Keys of `base` and other sections, as the code of the stage spells them: `base.seed`, `params.crop`."""
    named = read_pipeline("dvc.yaml")["stages"][stage]["params"]
    assert stage in named
    files = [ROOT / file for file in import_closure(script_of("dvc.yaml", stage))]
    everywhere = set().union(*(keys_read(path) for path in files))
    by_the_stage = set().union(*(keys_read(path) for path in files if f"def run_{stage}(" in path.read_text("utf-8")))
    for key in named:
        section, _, inner = key.partition(".")
        assert section == "base" or not inner or (section, inner) in DVC_KEYS
        assert section != "base" or inner in Base.model_fields
    sections = {key.split(".")[0] for key in named}
    assert by_the_stage - set(named) - NEUTRAL_KEYS - sections == set(), "read, but not named in dvc.yaml"
    assert {key for key in named if key.startswith("base.")} - everywhere <= {"base.annotation_root"}, "named, not read"


def keys_read(path: Path) -> set[str]:
    """Sections and keys of `base` that a file reads."""
    read = {f"base.{key}" for key in read_attributes(path, "base") if key in Base.model_fields}
    return read | {section for section in read_attributes(path, "params") if section in STAGES}


def read_attributes(path: Path, name: str) -> set[str]:
    """The attributes taken from a variable, or from an attribute, of that name."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and (
            (isinstance(node.value, ast.Name) and node.value.id == name)
            or (isinstance(node.value, ast.Attribute) and node.value.attr == name)
        )
    }


def test_outputs_are_ignored_by_git_and_images_by_dvc() -> None:
    outs = [out for pipeline, stage in stages() for out in paths_of(pipeline, stage, "outs")]
    assert len(outs) == len(set(outs))
    others = ["data/dataset/images/v3det/a.jpg", ".venv/x", "cyclegrpo/__pycache__/a.pyc", "dvc_plots/a.html"]
    assert ignored("git", [*outs, *others]) == [*outs, *others]
    images = ["data/x/V3Det/images/n1/a.jpg", "data/x/coco/train2014/b.jpg"]
    assert ignored(DVC, [*outs, *images]) == images


def test_git_keeps_what_the_pipeline_needs() -> None:
    names = [".dvc/config", ".dvcignore", "dvc.yaml", "miniature/dvc.yaml", "params.yaml", "constraints.txt"]
    assert ignored("git", names) == [] and all((ROOT / name).is_file() for name in names)


def ignored(tool: str, paths: list[str]) -> list[str]:
    """Those of the paths that git or DVC ignores."""
    command = [tool, "check-ignore", *paths]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode in (0, 1), run.stderr
    return run.stdout.splitlines()


def test_the_params_of_the_miniature_agree_with_the_pipelines() -> None:
    params = load_params(SHIPPED)
    raw = Path(YAML(typ="safe", pure=True).load(ROOT / "miniature/params.yaml")["world"]["raw_dir"])
    outs = {Path(out) for stage in ("world", "annotate") for out in paths_of("miniature/dvc.yaml", stage, "outs")}
    assert params.base.annotation_root == raw
    needed = {source.annotations for source in params.base.sources} | {params.evaluate.annotations}
    assert needed | {params.evaluate.instances, params.evaluate.truth} <= outs


# What DVC does, on stand-ins that copy a digest of what they depend on

STAND_IN = """
import hashlib, os, sys
from pathlib import Path
from ruamel.yaml import YAML
pipeline, stage = sys.argv[1:]
print("RUN", stage, flush=True)
folder = Path(pipeline).parent
yaml = YAML(typ="safe", pure=True)
params = yaml.load(Path("params.yaml"))
def fill(item):
    text = next(iter(item)) if isinstance(item, dict) else item
    for section, values in {**params, **yaml.load(Path("miniature/params.yaml"))}.items():
        for key, value in values.items():
            text = text.replace("${%s.%s}" % (section, key), str(value))
    return Path(os.path.normpath(folder / text))
spec = yaml.load(Path(pipeline))["stages"][stage]
digest = hashlib.sha256(str(params.get(stage)).encode())
for dep in map(fill, spec["deps"]):
    for file in sorted(dep.rglob("*")) if dep.is_dir() else [dep]:
        if file.is_file() and file.suffix != ".jpg" and "cyclegrpo" not in file.parts:
            digest.update(file.read_bytes())
for out in map(fill, spec["outs"]):
    text = digest.hexdigest()
    if out.name == "curves.csv":
        text = "step,caption/cycle_score\\n1,0.25\\n2,0.5\\n"
    elif out.suffix == ".json":
        text = '{"digest": "%s", "rows": %d}' % (text, 3)
    if not out.suffix:
        out = out / "file"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text)
for image in (["data/dataset/images/v3det/a.jpg"] if stage == "link" else ["data/miniature/raw/coco/train2014/a.jpg"]):
    Path(image).parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(image):
        os.symlink("/nowhere", image)  # a hash of it would fail
"""
SCRIPT = """
import runpy, sys
from pipeline.stage import run_stage
def run(params):
    sys.argv = ["stand_in", "{pipeline}", "{stage}"]
    runpy.run_path("stand_in.py")
if __name__ == "__main__":
    run_stage("{stage}", run)
"""


class Repository:
    """A git repository with the real dvc.yaml files and params, the real stage runner, and stand-ins for the stages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in (
            "dvc.yaml",
            "miniature/dvc.yaml",
            "params.yaml",
            "miniature/params.yaml",
            ".dvcignore",
            ".gitignore",
        ):
            self._copy(name)
        for name in (".dvc/config", ".dvc/.gitignore", "pipeline/stage.py", "pipeline/__init__.py"):
            self._copy(name)
        for pipeline, stage in stages():
            for dep in paths_of(pipeline, stage, "deps"):
                if (ROOT / dep).is_dir() and dep.startswith("cyclegrpo/"):
                    for file in (ROOT / dep).rglob("*.py"):
                        self._copy(file.relative_to(ROOT).as_posix())
                elif (ROOT / dep).is_file():
                    self._copy(dep)
            script = script_of(pipeline, stage).relative_to(ROOT)
            self.write(script.as_posix(), SCRIPT.format(pipeline=pipeline, stage=stage))
        for name in WITHOUT_EFFECT | {"cyclegrpo/__init__.py", "miniature/__init__.py", "miniature/stages/__init__.py"}:
            self._copy(name)
        self.write("stand_in.py", STAND_IN)
        for name in ("tokenizer", "policy"):
            self.write(f"miniature/checkpoints/{name}/file", name)
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-q", "-m", "start")

    def _copy(self, name: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, self.folder / name)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "DVC_SITE_CACHE_DIR": str(self.folder.parent / "site"), "DVC_NO_ANALYTICS": "1"}
        environment = {**os.environ, **variables, "HOME": str(self.folder.parent)}
        environment.pop("PYTHONPATH", None)
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    def git(self, *arguments: str) -> str:
        run = self.run("git", *arguments)
        assert run.returncode == 0, run.stderr
        return run.stdout

    def dvc(self, *arguments: str) -> list[str]:
        """The stages that ran."""
        run = self.run(DVC, *arguments)
        assert run.returncode == 0, run.stdout + run.stderr
        return [line.split()[1] for line in run.stdout.splitlines() if line.startswith("RUN ")]

    def planned(self, stage: str) -> list[str]:
        """The stages that `dvc repro` of a stage would run, none of which it runs."""
        run = self.run(DVC, "repro", "--dry", stage)
        assert run.returncode == 0, run.stdout + run.stderr
        return re.findall(r"^Running stage '(.*)':$", run.stdout, re.MULTILINE)


def test_what_dvc_does_with_the_pipeline(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    folder = repository.folder

    assert repository.dvc("repro") == ["world", "annotate", *STAGES]
    assert repository.dvc("repro") == []
    assert "up to date" in repository.run(DVC, "status", "dvc.yaml").stdout
    assert repository.git("status", "--short").split() == ["??", "dvc.lock", "??", "miniature/dvc.lock"]

    # Metrics and plots.
    assert "rows" in repository.run(DVC, "metrics", "show").stdout
    assert repository.run(DVC, "plots", "show").returncode == 0

    # An experiment with another reward trains and evaluates again, and changes one line of params.yaml.
    assert repository.dvc("exp", "run", "-S", "train.reward.overlap=tokens")[0] == "train"
    assert changed_lines(repository) == ["-    overlap: iou # iou or tokens", "+    overlap: tokens # iou or tokens"]
    assert "tokens" in repository.run(DVC, "exp", "show", "--csv").stdout
    assert repository.run(DVC, "exp", "run", "-S", "train.betta=0").returncode != 0

    # A mistake in the file stops the first stage that would run, before it loads anything, and keeps the old policy.
    policy = (folder / "models/policy/file").read_text()
    write_params(folder, {"train.betta": 0.1})
    run = repository.run(DVC, "repro")
    assert run.returncode != 0
    assert "train: error: params.yaml: train.betta is unknown; did you mean train.beta?" in run.stderr
    assert (folder / "models/policy/file").read_text() == policy

    # Back to the old params: what is cached comes back without a run.
    repository.git("checkout", "params.yaml")
    assert repository.dvc("repro") == ["train"]

    # Nothing looks at images. A table that was deleted is made again by its stage: images lie beside it.
    (folder / "data/dataset/images/v3det/b.jpg").symlink_to("/nowhere")
    (folder / "data/miniature/raw/V3Det/images/n1").mkdir(parents=True)
    (folder / "data/miniature/raw/V3Det/images/n1/b.jpg").symlink_to("/nowhere")
    assert repository.dvc("repro") == []
    (folder / "data/work/images.parquet").unlink()
    assert repository.dvc("repro") == ["link"]

    # From nothing: tokenizer and policy of the miniature are trained too, and the tree says so in two lines.
    paths = {"base.tokenizer": "data/miniature/tokenizer", "base.policy": "data/miniature/policy"}
    overrides = [text for key, value in paths.items() for text in ("-S", f"{key}={value}")]
    ran = repository.dvc("exp", "run", *overrides)
    assert sorted(ran) == sorted(["tokenizer", "coldstart", "annotate", *STAGES])
    assert [line for line in changed_lines(repository) if line.startswith("+")] == [
        "+  tokenizer: data/miniature/tokenizer",
        "+  policy: data/miniature/policy",
    ]
    assert repository.dvc("repro") == []
    assert "up to date" in repository.run(DVC, "status").stdout


def changed_lines(repository: Repository) -> list[str]:
    lines = repository.git("diff", "-U0", "params.yaml").splitlines()
    return [line for line in lines if line[0] in "+-" and not line.startswith(("+++", "---"))]


def test_real_data_never_runs_the_miniature(tmp_path: Path) -> None:
    """A params file that points elsewhere drops the miniature's stages; a linked annotation file is watched."""
    repository = Repository(tmp_path / "repository")
    (tmp_path / "elsewhere.json").write_text("1")
    raw = repository.folder / "data/raw"
    raw.mkdir(parents=True)
    (raw / "annotations.json").symlink_to(tmp_path / "elsewhere.json")
    changes: dict[str, Any] = {"base.annotation_root": "data/raw", "evaluate.truth": None}
    for key in ("base.sources[0].annotations", "base.sources[1].annotations", "base.sources[1].instances"):
        changes[key] = "data/raw/annotations.json"
    changes |= dict.fromkeys(("evaluate.annotations", "evaluate.instances"), "data/raw/annotations.json")
    write_params(repository.folder, changes)
    assert repository.planned("link") == ["link"]
    assert repository.dvc("repro", "link") == ["link"]
    assert repository.planned("link") == []
    (tmp_path / "elsewhere.json").write_text("2")
    assert repository.planned("link") == ["link"]
