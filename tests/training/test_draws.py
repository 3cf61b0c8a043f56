from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from PIL import Image

from cyclegrpo.dataset.schema import Row
from cyclegrpo.errors import DataError
from cyclegrpo.params import Prompts
from cyclegrpo.regions.spaces import BOX, MASK, space
from cyclegrpo.regions.tokens import codes_to_token
from cyclegrpo.training.draws import Draw, draw_steps, draw_target, load_rows
from cyclegrpo.training.run import draws_dataset

ONE, TWO, ZOOMED = codes_to_token(10, 20), codes_to_token(40, 30), codes_to_token(5, 80)


def steps(dataset_dir, num=4, zoom=True, seed=0, **prompts):
    counts = {"caption": 2, "no_target": 1, "expression": 1} | prompts
    return list(draw_steps(load_rows(dataset_dir), Prompts(**counts), MASK, num_steps=num, zoom=zoom, seed=seed))


def test_a_draw_asks_for_one_target_with_its_own_crop(dataset_dir):
    name, row = load_rows(dataset_dir)["caption"][0]
    draws = [draw_target(name, row, MASK, zoom=True, rng=np.random.default_rng(seed)) for seed in range(20)]
    by_target = {draw.targets: draw for draw in draws}
    assert set(by_target) == {(ONE,), (TWO,)}
    zoomed = by_target[(ONE,)]
    assert zoomed.images == ("images/a.png", "images/crop.png")
    assert zoomed.prompt == (
        "<image>\nCould you please give me a detailed description of the following region? "
        f"{ONE}. Zoom in on {ONE} with the perspective as <image>, {ZOOMED}."
    )
    assert by_target[(TWO,)].images == ("images/a.png",)
    assert by_target[(TWO,)].prompt.endswith(f"following region? {TWO}.")


def test_without_zoom_the_crop_and_its_clause_are_left_out(dataset_dir):
    for step in steps(dataset_dir, zoom=False):
        for draw in step:
            assert len(draw.images) == 1 and "Zoom in" not in draw.prompt


def test_a_step_has_the_counts_of_the_params_and_questions_stay_as_they_are(dataset_dir):
    (step,) = steps(dataset_dir, num=1)
    assert [draw.task for draw in step] == ["caption", "caption", "no_target", "expression"]
    assert step[2].targets == () and "blue dog" in step[2].prompt
    assert step[3].targets == (ONE,) and step[3].images == ("images/b.png",)


def test_every_pass_shows_every_row_once_and_a_step_does_not_depend_on_the_steps_asked_for(dataset_dir):
    long = steps(dataset_dir, num=6)
    for step in long:
        assert {draw.record for draw in step if draw.task == "caption"} == {
            "denseworld_multi_2.parquet:0",
            "denseworld_multi_2.parquet:1",
        }
    assert list(islice(long, 3)) == steps(dataset_dir, num=3)
    assert long != steps(dataset_dir, num=6, seed=1)


def test_a_task_without_rows_is_named(dataset_dir):
    (dataset_dir / "data" / "gres_grounding_1.parquet").unlink()
    with pytest.raises(DataError, match=r"train\.prompts\.expression is 1"):
        steps(dataset_dir)
    assert steps(dataset_dir, num=1, expression=0)


@pytest.mark.parametrize(
    ("answer", "source", "region_space", "message"),
    [
        ("[1, 2, 300, 400]", "gres_grounding", MASK, r"holds '\[1, 2, 300, 400\]' \(no region\); expected a mask"),
        ("[1, 2, 300, 400]", "denseworld_multiple", MASK, r"\(no region\); expected a mask"),
        (ONE, "gres_grounding", BOX, r"\(no region\); expected a box of base.region_space"),
        (f"{ONE}, [1, 2, 3, 4]", "gres_grounding", MASK, r"holds '\[1, 2, 3, 4\]'"),
        ("<|mt_start|><|mt_0300|><|mt_0301|><|mt_end|>", "gres_grounding", MASK, "first code out of range"),
        (ONE, "gres_grounding", space("mask", codebook_size=64), "second code out of range"),
        ("<|mt_start|><|mt_0010|><|mt_end|>", "denseworld_multiple", MASK, "too few"),
        ("somewhere", "gres_grounding", MASK, "no region"),
        ("", "gres_grounding", MASK, "no region"),
        ("No target.", "gres_grounding", MASK, "source is 'gres_grounding'; expected at least one region"),
        ("No target.", "denseworld_multiple", MASK, "expected at least one region"),
        (ONE, "gres_no_target", MASK, "source is 'gres_no_target'; expected No target"),
    ],
)
def test_a_target_that_would_reward_empty_answers_is_refused(answer, source, region_space, message):
    row = Row(("images/a.png",), MASK.describe_row([ONE], [None]), f"<answer>{answer}</answer>", source)
    with pytest.raises(DataError, match="record data.parquet:7: seg_answer .*" + message):
        draw_target("data.parquet:7", row, region_space, zoom=True, rng=np.random.default_rng(0))


def test_a_true_mask_belongs_to_every_target():
    rles = ({"size": [8, 4], "counts": "`0"},)
    row = Row(("images/a.png",), MASK.describe_row([ONE, TWO], [None, None]), MASK.answer([ONE, TWO]), None, rles)
    with pytest.raises(DataError, match=r"data.parquet:7: target_rle has 1 masks, seg_answer 2 regions"):
        draw_target("data.parquet:7", row, MASK, zoom=True, rng=np.random.default_rng(0))


def test_no_dataset_is_named(tmp_path):
    with pytest.raises(DataError, match="Run the build stage first"):
        load_rows(tmp_path)


def test_images_are_opened_in_the_frame_of_the_true_masks_and_below_the_dataset_only(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side: 8 wide, 4 high
    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 4)).save(tmp_path / "images" / "a.jpg", exif=exif)
    upright = Draw("expression", "<image>\nWhere?", ("images/a.jpg",), (ONE,), ({"size": [8, 4], "counts": "`0"},), "r")
    as_stored = replace(upright, target_rle=None)
    outside = replace(upright, images=("../a.jpg",))
    dataset = draws_dataset([upright, as_stored, outside], tmp_path)
    assert [dataset[i]["whole_image"].size for i in (0, 1)] == [(4, 8), (8, 4)]
    with pytest.raises(DataError, match="leaves its root"):
        dataset[2]
