"""What is wrong with a params file, in one line each: for the commands, and for dvc.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cyclegrpo.errors import ParamsError
from cyclegrpo.params_file import find_problems, load_params
from tests.test_params import write_params


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.betta": 0.1}, "train.betta is unknown; did you mean train.beta?"),
        ({"train.overlap": "iou"}, "train.overlap is unknown; did you mean train.reward.overlap?"),
        ({"tain": {}}, "tain is unknown; did you mean train?"),
        ({"train.zzz": 1}, "train.zzz is unknown; remove it."),
        ({"base.sources[0].anotations": "a"}, "base.sources[0].anotations is unknown; did you mean base.sources[0].annotations?"),
        ({"train.beta": -1}, "train.beta is -1; expected >= 0."),
        ({"train.beta": "0.1"}, 'train.beta is the text "0.1"; expected a number.'),
        ({"train.num_steps": 2.5}, "train.num_steps is 2.5; expected a whole number."),
        ({"train.num_steps": True}, "train.num_steps is true; expected a whole number."),
        ({"train.bf16": 1}, "train.bf16 is 1; expected true or false."),
        ({"train.beta": float("nan")}, "train.beta is nan; expected a finite number."),
        ({"train.epsilon_low": 1.0}, "train.epsilon_low is 1.0; expected < 1."),
        ({"crop.min_side_px": 0}, "crop.min_side_px is 0; expected >= 1."),
        ({"base.seed": None}, "base.seed is null; expected a whole number."),
        ({"base.tokenizer": 3}, "base.tokenizer is 3; expected text."),
        ({"train": None}, "train is null; expected a mapping."),
        ({"base.sources": {}}, "base.sources is {}; expected a list."),
        ({"base.sources": []}, "base.sources is []; expected at least 1 entry."),
        ({"base.sources[0].format": "coco"}, "base.sources[0].format is the text \"coco\"; expected 'denseworld' or 'grefcoco'."),
        ({"base.sources[0].format": "densworld"}, "base.sources[0].format is the text \"densworld\"; expected 'denseworld' or 'grefcoco'. Did you mean denseworld?"),
        ({"base.sources[0].link_as": "../x"}, 'base.sources[0].link_as is the text "../x"; expected a relative folder without `..`, other than `crops`.'),
        ({"base.sources[1].name": "v3det"}, "two sources have the name v3det; each needs its own."),
        ({"base.sources[1].instances": None}, "source coco_train2014: format grefcoco needs both `instances` and `split`."),
        ({"base.sources[0].kinds": ["no_target"]}, "source v3det: format denseworld takes no `instances` and no `split`, and gives [describe]."),
        ({"train.reward.overlap": "tokens", "base.region_space": "box"}, "train.reward.overlap is tokens, which a box region does not have; set overlap: iou."),
        ({"train.optimise": "captions", "train.grounding_weight": 0.7}, "train.grounding_weight has no effect where train.optimise is captions; remove it, or set optimise: both."),
        ({"train.optimise": "groundings", "train.caption_weight": 0.7}, "train.caption_weight has no effect where train.optimise is groundings; remove it, or set optimise: both."),
        ({"train.optimise": "groundings", "train.locate_with": "reference"}, "train.optimise is groundings, but train.locate_with: reference takes the groundings from the reference, so that they cannot train the policy; set optimise: captions."),
        ({"train.optimise": "captions", "train.locate_with": "reference", "train.beta": 0}, "train.beta is 0, so that no reference is loaded, but train.locate_with is reference; set beta above 0, or locate_with: policy."),
        ({"train.optimise": "captions", "train.num_captions": 1}, "train.num_captions is 1, and a group of one has no advantage; expected >= 2."),
        ({"train.optimise": "groundings", "train.num_captions": 1}, "train.num_captions is 1, and TRL takes no group of one; expected >= 2."),
        ({"train.optimise": "captions", "train.scale_groundings": "group"}, "train.scale_groundings has no effect where train.optimise is captions; remove it, or set optimise: both."),
        ({"train.optimise": "groundings", "train.reward.shuffle": True}, "train.reward.shuffle has no effect where train.optimise is groundings; remove it, or set optimise: both."),
        ({"train.optimise": "groundings", "train.reward.clean": False}, "train.reward.clean has no effect where train.optimise is groundings; remove it, or set optimise: both."),
        ({"train.optimise": "groundings", "train.prompts.no_target": 2}, "train.prompts.no_target is 2, but train.optimise is groundings, and such questions are learned with the captions; set it to 0, or optimise: both."),
        ({"train.optimise": "groundings", "train.prompts.no_target": 0, "train.prompts.expression": 3}, "train.prompts.expression is 3, but train.optimise is groundings, and such questions are learned with the captions; set it to 0, or optimise: both."),
        ({"check.deep": True}, "check.deep is true, but there is no deep check yet; set it to false."),
        ({"evaluate.split": "train"}, "evaluate.split is train of data/miniature/raw/grefcoco/grefs(unc).json, which base.sources[1] trains on; set another split for one of them."),
        ({"evaluate.split": "train", "base.sources[1].annotations": "data/miniature/raw/x/../grefcoco/grefs(unc).json"}, "evaluate.split is train of data/miniature/raw/grefcoco/grefs(unc).json, which base.sources[1] trains on; set another split for one of them."),
        ({"train.prompts.caption": 0}, "train.prompts.caption is 0, so that there are no groundings to optimise; set optimise: captions."),
        ({"base.sources[1].kinds": ["no_target"], "train.prompts.expression": 3}, "train.prompts.expression is 3, but no source has the kind expression; set it to 0."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_params(tmp_path, changes)
    with pytest.raises(ParamsError) as caught:
        load_params(path)
    assert caught.value.problems[0] == f"{path}: {message}"
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


def test_several_problems_are_all_kept(tmp_path: Path) -> None:
    path = write_params(tmp_path, {"train.beta": -1, "train.betta": 1, "crop.min_side_px": 0})
    with pytest.raises(ParamsError, match=r"and 2 more; `cyclegrpo check config` lists all"):
        load_params(path)
    assert len(find_problems(path)) == 3


@pytest.mark.parametrize("key", ["base.seed", "base.annotation_root", "crop"])
def test_dvc_needs_every_key(tmp_path: Path, key: str) -> None:
    path = write_params(tmp_path, remove=key)
    load_params(path)
    assert find_problems(path)[0] == f"{path}: {key} is missing, and dvc.yaml depends on it; add it."


def test_dvc_needs_annotations_where_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_params(tmp_path, {"evaluate.truth": "elsewhere/truth.json"})
    (problem,) = find_problems(path)
    assert "evaluate.truth is elsewhere/truth.json; expected a file below base.annotation_root" in problem
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/miniature/raw").mkdir(parents=True)
    (tmp_path / "data/miniature/raw/denseworld").symlink_to("/somewhere")
    (problem,) = find_problems(write_params(tmp_path))
    assert "base.sources[0].annotations" in problem and "a linked folder. Link the file alone" in problem
