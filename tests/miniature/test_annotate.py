"""The DenseWorld-like file, made with an untrained tokenizer: its form, and that our reader finds the regions again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cyclegrpo.errors import DataError
from cyclegrpo.images import load_image
from cyclegrpo.regions.tokens import codes_to_tokens
from cyclegrpo.sources.denseworld import read_denseworld
from cyclegrpo.sources.records import Record, Skip
from cyclegrpo.tokenizer import MaskTokenizer, hiera_config
from miniature.annotate import PROMPTS, draw_mentions, draw_record, run_annotate
from miniature.params import MiniatureParams
from miniature.scene import draw_scene
from miniature.world import DENSEWORLD, draw_v3det, run_world

A, B = "<|mt_start|><|mt_0001|><|mt_0258|><|mt_end|>", "<|mt_start|><|mt_0003|><|mt_0260|><|mt_end|>"


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer that is too small to be good and whose codes are spread out."""
    torch.manual_seed(0)
    config = hiera_config(
        image_size=96,
        embed_dim=32,
        stage_dims=(8, 16, 32, 64),
        stage_blocks=(1, 1, 2, 1),
        stage_heads=(1, 1, 1, 1),
        stage_windows=(8, 4, 6, 3),
        global_blocks=(3,),
        decoder_heads=2,
        decoder_mlp_dim=32,
        iou_head_dim=16,
        multimask_output=False,
    )
    tokenizer = MaskTokenizer(config)
    for module in tokenizer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


def records_of(params: MiniatureParams) -> list[dict[str, Any]]:
    return json.loads((params.world.raw_dir / DENSEWORLD).read_text())


def with_annotate(params: MiniatureParams, **changes: Any) -> MiniatureParams:
    return params.model_copy(update={"annotate": params.annotate.model_copy(update=changes)})


def test_prompts_are_the_six_of_the_real_file() -> None:
    assert len(set(PROMPTS)) == 6
    assert all(prompt.startswith("<image>\n") for prompt in PROMPTS)
    assert all(prompt.endswith(' Do not use "<|object_ref_start|>...<|object_ref_end|>" tags.') for prompt in PROMPTS)
    assert PROMPTS[1] == (
        "<image>\nCan you provide a description of the this image? Please output with interleaved segmentation masks "
        'for the corresponding phrases. Do not use "<|object_ref_start|>...<|object_ref_end|>" tags.'
    )


@pytest.mark.parametrize(
    ("phrases", "tokens", "json_ratio", "expected"),
    [
        (["the red circle"], [A], 0.0, rf".* the red circle {re.escape(A)}\."),
        (["x", "y"], [A, B], 0.0, rf".* x {re.escape(A)} and y {re.escape(B)}\."),
        ([], [], 1.0, r"[^<`]*"),
    ],
)
def test_answers_by_hand(phrases: list[str], tokens: list[str], json_ratio: float, expected: str) -> None:
    record = draw_record("a.jpg", phrases, tokens, np.random.default_rng(0), json_ratio)
    assert [turn["from"] for turn in record["conversations"]] == ["human", "gpt"]
    assert re.fullmatch(expected, record["conversations"][1]["value"])


def test_a_json_answer_holds_masks_and_labels() -> None:
    answer = draw_record("a.jpg", ["x", "y"], [A, B], np.random.default_rng(0), 1.0)["conversations"][1]["value"]
    assert answer.startswith("```json\n")
    assert answer.endswith("\n```")
    items = json.loads(answer.removeprefix("```json\n").removesuffix("\n```"))
    assert items == [{"mask_2d": A, "label": "x"}, {"mask_2d": B, "label": "y"}]


def test_extra_regions_are_parts_of_an_object_or_unions(params: MiniatureParams) -> None:
    params = with_annotate(params, part_ratio=1.0)
    kinds = set()
    for seed in range(60):
        scene = draw_scene(seed)
        *wholes, extra = draw_mentions(scene, np.random.default_rng(seed), params)
        assert [np.array_equal(w.mask, o.mask) for w, o in zip(wholes, scene.objects, strict=True)]
        num_touched = sum(bool((extra.mask & o.mask).any()) for o in scene.objects)
        area = sum(int(o.mask.sum()) for o in scene.objects if (extra.mask & o.mask).any())
        is_part = " of the " in extra.phrase
        assert (num_touched == 1) == is_part
        assert (0 < extra.mask.sum() < area) if is_part else (extra.mask.sum() == area)
        kinds.add(is_part)
    assert kinds == {True, False}


def test_our_reader_finds_every_region_with_the_tokens_of_its_mask(
    params: MiniatureParams, tokenizer_dir: Path
) -> None:
    params = with_annotate(params, part_ratio=0.0, num_without_regions=2, json_ratio=0.5, batch_size=3)
    run_world(params)
    report = run_annotate(params, tokenizer_dir)
    raw = params.world.raw_dir
    read = list(read_denseworld(raw / DENSEWORLD, name="dense"))
    assert [item.reason for item in read if isinstance(item, Skip)] == ["no_regions"] * 2
    assert (report.num_records, report.num_records_without_regions, report.num_extra_regions) == (8, 2, 0)
    tokenizer = MaskTokenizer.from_pretrained(tokenizer_dir).eval()
    for item, (path, scene) in zip(read, draw_v3det(params), strict=True):
        if isinstance(item, Record):
            assert item.image == path
            features = tokenizer.embed_images([load_image(raw / path)])
            codes = tokenizer.encode(features[0], np.stack([o.mask for o in scene.objects])).tolist()
            assert [region.tokens for region in item.regions] == codes_to_tokens(codes)
    assert report.num_regions == sum(len(item.regions) for item in read if isinstance(item, Record))


def test_records_do_not_depend_on_how_many_there_are(
    make_params: Callable[..., MiniatureParams], tokenizer_dir: Path
) -> None:
    params = with_annotate(make_params(), num_without_regions=0)
    run_world(params)
    run_annotate(params, tokenizer_dir)
    all_records = records_of(params)
    assert len(all_records) == 8
    fewer = with_annotate(make_params({"v3det": 5, "train": 1, "val": 1, "testA": 1}), num_without_regions=0)
    run_world(fewer)
    run_annotate(fewer, tokenizer_dir)
    assert records_of(fewer) == all_records[:5]
    before = (params.world.raw_dir / DENSEWORLD).read_bytes()
    run_annotate(fewer, tokenizer_dir)
    assert (params.world.raw_dir / DENSEWORLD).read_bytes() == before


def test_missing_world_and_missing_tokenizer_are_told(
    params: MiniatureParams, tokenizer_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"miniature\.stages\.world"):
        run_annotate(params, tokenizer_dir)
    run_world(params)
    with pytest.raises(DataError, match="tokenizer"):
        run_annotate(params, tmp_path / "nothing")
    assert not (params.world.raw_dir / DENSEWORLD).exists()
