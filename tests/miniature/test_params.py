"""The miniature's params file: what is refused, and in which words."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from cyclegrpo.errors import ParamsError
from miniature.params import SceneRange, load_miniature_params

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "miniature" / "params.yaml"


def test_shipped_scenes_are_disjoint_and_as_many_as_planned() -> None:
    scenes = load_miniature_params(SHIPPED).scenes
    for (_, first), (_, second) in combinations(scenes, 2):
        assert not set(first.seeds[:2000]) & set(second.seeds[:2000])
    assert [scenes.range_of(use).num_scenes for use in ("v3det", "train", "val", "testA")] == [600, 500, 256, 256]


@pytest.mark.parametrize(
    ("old", "new", "raises"),
    [
        ("raw_dir:", "raw_dri:", "world.raw_dir is missing"),
        ("jpeg_quality: 95", "jpeg_quality: 101", "world.jpeg_quality is 101; expected <= 100"),
        ("first_seed: 2000000", "first_seed: 1000499", "scenes.train .* overlap"),
        ("first_seed: 2000000", "first_seed: -1", "scenes.val.first_seed is -1"),
        ("{size: 0.4,", "{sise: 0.4,", "unknown attribute sise"),
        ("row: 0.45", "row: 0", "row and column above 0"),
        ("world:", "wrld:", "world is missing"),
        ("scenes:", "scenes: [", "expected YAML 1.2"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path: Path, old: str, new: str, raises: str) -> None:
    text = SHIPPED.read_text()
    assert old in text
    path = tmp_path / "params.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ParamsError, match=raises) as caught:
        load_miniature_params(path)
    assert "\n" not in str(caught.value)


def test_touching_ranges_do_not_overlap_and_one_seed_in_common_does(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    text = SHIPPED.read_text()
    path.write_text(text.replace("first_seed: 2000000", "first_seed: 1000500"))
    assert load_miniature_params(path).scenes.val == SceneRange(first_seed=1_000_500, num_scenes=256)
    path.write_text(text.replace("first_seed: 2000000", "first_seed: 1000499"))
    with pytest.raises(ParamsError, match="overlap"):
        load_miniature_params(path)


def test_a_stage_with_a_missing_file_ends_with_code_2_and_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "miniature.stages.world", "--params", str(tmp_path / "none.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "no such file" in done.stderr
