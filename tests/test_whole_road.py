"""The whole pipeline as a user runs it, every stage real and small: `dvc repro`, again, after an edit, after a typo."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from cyclegrpo.explorer.report import SCORE_COLUMNS, SPARKS

ROOT = Path(__file__).parent.parent
DVC = str(Path(sys.executable).with_name("dvc"))
SOURCES = (".dvc/config", ".dvcignore", ".gitignore", "cyclegrpo", "pipeline", "miniature", "dvc.yaml", "params.yaml")
SMALL_SCENES = {"v3det": 12, "train": 12, "val": 4, "testA": 8}
SMALL_PARAMS = {
    "train": {
        "num_steps": 2,
        "num_captions": 2,
        "num_groundings": 2,
        "save_steps": 1,
        "prompts": {"caption": 2, "no_target": 1, "expression": 1},
    },
    "evaluate": {"num_regions": 6, "num_samples": 1, "num_examples": 2},
    "base": {"max_skip_ratio": 0.5},  # of twelve images, one without regions is more than the shipped share
}


def edit(path: Path, changes: dict) -> None:
    yaml = YAML()
    data = yaml.load(path)
    for section, values in changes.items():
        data[section].update(values)
    yaml.dump(data, path)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A git repository with the project as it is, and smaller params."""
    for name in SOURCES:
        source, target = ROOT / name, tmp_path / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    edit(tmp_path / "params.yaml", SMALL_PARAMS)
    scenes = YAML(typ="safe").load(tmp_path / "miniature/params.yaml")["scenes"]
    small = {use: {**scenes[use], "num_scenes": number} for use, number in SMALL_SCENES.items()}
    edit(tmp_path / "miniature/params.yaml", {"scenes": small, "annotate": {"num_without_regions": 1}})
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def dvc(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(clone)}
    return subprocess.run([DVC, *arguments], cwd=clone, env=variables, capture_output=True, text=True, check=False)


def test_from_raw_annotations_to_the_page(clone: Path) -> None:
    first = dvc(clone, "repro")
    assert first.returncode == 0, first.stdout + first.stderr
    page = (clone / "results/report.html").read_text()
    assert "<svg" in page and 'src="http' not in page
    metrics = json.loads((clone / "results/evaluate/metrics.json").read_text())
    assert set(metrics) >= {"before", "after", "change"} and 0 <= metrics["after"]["cycle_iou"] <= 1
    assert metrics["num_images_in_training"] == 0 and "all of scenes that no training step saw" in page
    with (clone / "results/train/curves.csv").open() as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == 2 and {"step", SCORE_COLUMNS[0], *SPARKS} <= set(lines[0])
    assert [label for label in SPARKS.values() if label not in page] == []
    assert (clone / "models/policy/model.safetensors").stat().st_size > 1_000_000

    second = dvc(clone, "repro")
    assert second.returncode == 0 and "Running stage" not in second.stdout
    assert "cycle_iou" in dvc(clone, "metrics", "show").stdout

    edit(clone / "params.yaml", {"evaluate": {"num_examples": 1}})
    third = dvc(clone, "repro")
    assert third.returncode == 0, third.stderr
    ran = [line.split("'")[1] for line in third.stdout.splitlines() if line.startswith("Running stage")]
    assert ran == ["evaluate", "report"]

    edit(clone / "params.yaml", {"train": {"nun_steps": 3}})
    typo = dvc(clone, "repro")
    assert typo.returncode != 0 and "train.nun_steps is unknown; did you mean train.num_steps?" in typo.stderr
    assert (clone / "results/report.html").is_file()
