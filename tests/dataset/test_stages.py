"""link -> regions -> crop -> tokenize -> build on a small world with a tokenizer without weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cyclegrpo.dataset import processes, shards
from cyclegrpo.dataset import regions as regions_stage
from cyclegrpo.dataset.build import run_build
from cyclegrpo.dataset.crops import run_crop
from cyclegrpo.dataset.link import run_link
from cyclegrpo.dataset.prompts import parse_answer, parse_problem
from cyclegrpo.dataset.regions import run_regions
from cyclegrpo.dataset.schema import SCHEMA, SCHEMA_WITH_MASKS, read_rows
from cyclegrpo.dataset.tokenize import run_tokenize
from cyclegrpo.errors import DataError
from cyclegrpo.files import sha256_file
from cyclegrpo.params import Params
from cyclegrpo.regions.geometry import rle_to_mask
from tests.dataset.conftest import run_all
from tests.dataset.support import EMPTY, GridTokenizer, answer, cells, make_params, write_json, write_world


def files_below(folder: Path) -> dict[str, str]:
    """Digest of every file that is no link, by its path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in paths}


def outputs(params: Params) -> dict[str, str]:
    """Digests of what the stages made, without reports and stored shards."""
    work = {f"work/{path.name}": sha256_file(path) for path in sorted(params.base.work_dir.glob("*.parquet"))}
    return work | files_below(params.base.dataset_dir)


def test_release_layout(built: Params) -> None:
    dataset = built.base.dataset_dir
    names = sorted(path.name for path in (dataset / "data").iterdir())
    assert names == ["denseworld_multi_3.parquet", "gres_grounding_3.parquet", "gres_no_target_1.parquet"]
    for name in names:
        expected = SCHEMA_WITH_MASKS if name.startswith("gres_grounding") else SCHEMA
        assert pq.read_schema(dataset / "data" / name).equals(expected)
    assert (dataset / "image_lists" / "coco_train2014.txt").read_text() == "COCO_train2014_000000000001.jpg\n"
    assert len((dataset / "image_lists" / "v3det.txt").read_text().split()) == 3
    assert (dataset / "README.md").read_text().startswith("---\nconfigs:\n")


def test_describe_row(built: Params) -> None:
    row = read_rows(built.base.dataset_dir / "data" / "denseworld_multi_3.parquet")[0]
    tokens = (cells(2, 3, 2, 2), cells(8, 1, 3, 1), cells(0, 0, 16, 15))
    assert row.source == "denseworld_multiple"
    assert row.target_rle is None
    assert parse_answer(row.seg_answer) == tokens
    problem = parse_problem(row.cap_problem)
    assert problem is not None and problem.rest == "" and problem.regions == tokens
    assert [zoom.region for zoom in problem.zooms] == [tokens[0], tokens[1]]  # the third fills the image: no crop
    assert row.images[0] == "images/v3det/n00000000/0.jpg"
    assert len(row.images) == 3 and row.cap_problem.count("<image>") == 3
    # 2 x 2 cells are columns 18..29 and rows 8..15: sides of 11 and 7. Half of what is missing to 24 is 6 and 8.
    crops = pq.read_table(built.base.work_dir / "crops.parquet").to_pylist()
    assert crops[0]["window"] == [12, 0, 35, 23]
    assert (crops[0]["crop_width"], crops[0]["crop_height"]) == (64, 64)


def test_expression_rows_keep_true_masks_left_to_right(built: Params) -> None:
    rows = read_rows(built.base.dataset_dir / "data" / "gres_grounding_3.parquet")
    left, _, both = rows
    assert left.source == "gres_grounding" and "left man" in left.cap_problem
    assert left.cap_problem.startswith("<image>\n") and left.images == (
        "images/coco_train2014/COCO_train2014_000000000001.jpg",
    )
    assert both.target_rle is not None
    masks = [rle_to_mask(rle) for rle in both.target_rle]
    assert [int(mask.sum()) for mask in masks] == [15 * 15, 20 * 15]
    # Cells are 5 x 3.75 pixels. Left: columns 5..19 are cells 1..3, rows 15..29 are cells 4..7. Right: columns 40..59
    # and rows 30..44 are cells 8..11.
    assert parse_answer(both.seg_answer) == (cells(4, 1, 4, 3), cells(8, 8, 4, 4))


def test_no_target_row(built: Params) -> None:
    (row,) = read_rows(built.base.dataset_dir / "data" / "gres_no_target_1.parquet")
    assert row.seg_answer == "<answer>No target.</answer>"
    assert "a zebra" in row.cap_problem and row.cap_problem.count("<image>") == 1
    assert row.source == "gres_no_target" and len(row.images) == 1


def test_load_dataset_joins_files_of_the_seven_columns(built: Params, tmp_path: Path) -> None:
    from datasets import load_dataset

    data = built.base.dataset_dir / "data"
    files = [str(data / name) for name in ("denseworld_multi_3.parquet", "gres_no_target_1.parquet")]
    for order in (files, files[::-1]):
        assert len(load_dataset("parquet", data_files=order, cache_dir=str(tmp_path / "cache"))["train"]) == 4


def test_box_space(tmp_path: Path) -> None:
    params = make_params(tmp_path, sources=write_world(tmp_path), base={"region_space": "box"})
    tokenizer = GridTokenizer()
    run_all(params, tokenizer)
    assert tokenizer.num_encoded == 0
    row = read_rows(params.base.dataset_dir / "data" / "denseworld_multi_3.parquet")[0]
    # columns 18..29 of 96 and rows 8..15 of 64, inclusive, in thousandths: 187.5, 125, 302.1, 234.4
    assert parse_answer(row.seg_answer) is not None and parse_answer(row.seg_answer)[0] == "[187, 125, 302, 234]"  # type: ignore[index]
    problem = parse_problem(row.cap_problem)
    assert problem is not None and problem.space == "box" and len(problem.zooms) == len(row.images) - 1 == 2


def test_one_pass_per_image_and_per_crop(tmp_path: Path) -> None:
    params = make_params(tmp_path, sources=write_world(tmp_path, num_images=5))
    tokenizer = GridTokenizer()
    run_link(params)
    run_regions(params, tokenizer)
    assert tokenizer.num_images == 6  # five of DenseWorld, one of COCO
    assert tokenizer.num_encoded == 2  # two objects in four expressions
    run_crop(params)
    run_tokenize(params, tokenizer)
    num_crops = pq.read_table(params.base.work_dir / "crops.parquet").num_rows
    assert tokenizer.num_images == 6 + num_crops
    assert tokenizer.num_passes == 6 + -(-num_crops // params.tokenize.batch_size)


def test_same_bytes_again_and_with_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_IMAGES", 2)
    monkeypatch.setattr(processes, "WORTH_PROCESSES_S", 0.0)
    made = []
    for folder, num_workers in (("a", 0), ("b", 2)):
        params = make_params(
            tmp_path / folder, sources=write_world(tmp_path / folder, 5), base={"num_workers": num_workers}
        )
        run_all(params, GridTokenizer())
        made.append(outputs(params))
    assert made[0] == made[1]
    tokenizer = GridTokenizer()
    run_all(params, tokenizer)
    assert outputs(params) == made[1]
    assert tokenizer.num_passes == 0  # every shard was there already


def test_raw_data_are_not_touched(tmp_path: Path) -> None:
    sources = write_world(tmp_path)
    before = {
        path: (sha256_file(path), path.stat().st_mtime_ns) for path in (tmp_path / "raw").rglob("*") if path.is_file()
    }
    run_all(make_params(tmp_path, sources=sources), GridTokenizer())
    assert before == {path: (sha256_file(path), path.stat().st_mtime_ns) for path in before}


class Killed(BaseException):
    """Stands for Ctrl-C or a lost machine."""


def test_regions_resumes_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_IMAGES", 2)
    params = make_params(tmp_path, sources=write_world(tmp_path, num_images=5))
    run_link(params)
    tokenizer = GridTokenizer()
    embed = tokenizer.embed_images

    def die_at_fourth(images: list[Image.Image]) -> Any:
        if tokenizer.num_images == 3:
            raise Killed
        return embed(images)

    tokenizer.embed_images = die_at_fourth  # type: ignore[method-assign]
    with pytest.raises(Killed):
        run_regions(params, tokenizer)
    assert not (params.base.work_dir / "regions.parquet").exists()
    tokenizer = GridTokenizer()
    run_regions(params, tokenizer)
    assert tokenizer.num_images == 4  # the first shard of two images is not made again
    resumed = sha256_file(params.base.work_dir / "regions.parquet")
    whole = make_params(tmp_path, sources=write_world(tmp_path, 5), base={"work_dir": tmp_path / "other"})
    run_link(whole)
    run_regions(whole, GridTokenizer())
    assert sha256_file(whole.base.work_dir / "regions.parquet") == resumed


def test_a_changed_setting_makes_shards_again(built: Params) -> None:
    tokenizer = GridTokenizer()
    run_regions(built.model_copy(update={"regions": built.regions.model_copy(update={"min_area_px": 2})}), tokenizer)
    assert tokenizer.num_images == 4


def test_a_lost_crop_is_cut_again_and_a_stale_one_removed(built: Params) -> None:
    folder = built.base.dataset_dir / "images" / "crops"
    before = files_below(folder)
    next(iter(sorted(folder.iterdir()))).unlink()
    (folder / "0123456789abcdef0123.jpg").write_bytes(b"stale")
    (folder / "mine.jpg").write_bytes(b"not ours")
    run_crop(built)
    assert {name: digest for name, digest in files_below(folder).items() if name != "mine.jpg"} == before
    assert (folder / "mine.jpg").exists()


def test_crops_are_jpegs_without_subsampling(built: Params) -> None:
    path = next((built.base.dataset_dir / "images" / "crops").iterdir())
    with Image.open(path) as image:
        assert image.format == "JPEG"
        assert [layer[1:3] for layer in image.layer] == [(1, 1)] * 3  # type: ignore[attr-defined]


def test_without_crops(tmp_path: Path) -> None:
    params = make_params(tmp_path, sources=write_world(tmp_path), crop={"enabled": False})
    run_all(params, GridTokenizer())
    rows = read_rows(params.base.dataset_dir / "data" / "denseworld_multi_3.parquet")
    assert all(len(row.images) == 1 and "Zoom in" not in row.cap_problem for row in rows)


def test_several_files_when_there_are_many_rows_and_no_stale_ones(built: Params) -> None:
    run_build(built.model_copy(update={"build": built.build.model_copy(update={"max_rows_per_file": 2})}))
    names = sorted(path.name for path in (built.base.dataset_dir / "data").glob("denseworld*"))
    assert names == ["denseworld_multi_001_2.parquet", "denseworld_multi_002_1.parquet"]


def drop_regions(sources: list[dict[str, Any]], *groups: str) -> None:
    """Give the first DenseWorld image these regions."""
    path = sources[0]["annotations"]
    name = "V3Det/images/n00000000/0.jpg"
    others = [{"image": "V3Det/images/n00000001/1.jpg", "conversations": answer(cells(0, 0, 1, 1))}]
    write_json(path, [{"image": name, "conversations": answer(*groups)}, *others])


@pytest.mark.parametrize(
    ("groups", "skipped"),
    [
        ((EMPTY, cells(0, 0, 1, 1)), {"region: empty_mask": 1}),
        ((EMPTY,), {"region: empty_mask": 1, "record: no_regions_left": 1}),
        (("<|mt_start|><|mt_0001|><|mt_end|>", cells(0, 0, 1, 1)), {"region: bad_tokens": 1}),
        (("<|mt_start|><|mt_0300|><|mt_0301|><|mt_end|>", cells(0, 0, 1, 1)), {"region: bad_tokens": 1}),
        ((), {"record: no_regions": 1}),
    ],
)
def test_what_drops_out_is_counted(tmp_path: Path, groups: tuple[str, ...], skipped: dict[str, int]) -> None:
    sources = write_world(tmp_path)
    drop_regions(sources, *groups)
    params = make_params(tmp_path, sources=sources[:1], base={"max_skip_ratio": 1.0})
    run_link(params)
    report = run_regions(params, GridTokenizer())
    assert report.skipped == skipped
    assert report.read["record"] == 2
    assert len(report.skips) == sum(skipped.values())


def test_too_many_skips_fail_the_stage_and_leave_no_table(tmp_path: Path) -> None:
    sources = write_world(tmp_path)
    drop_regions(sources, EMPTY)
    params = make_params(tmp_path, sources=sources[:1])
    run_link(params)
    with pytest.raises(
        DataError,
        match=r"skipped 1 of 2 records \(1 no_regions_left\).* The first: \S+: all of its regions dropped out\.",
    ):
        run_regions(params, GridTokenizer())
    assert not (params.base.work_dir / "regions.parquet").exists()
    assert (params.base.work_dir / "reports" / "regions.json").exists()


def one_row(y: int, x: int, height: int, width: int) -> np.ndarray:
    mask = np.zeros((64, 96), dtype=bool)
    mask[y : y + height, x : x + width] = True
    return mask


@pytest.mark.parametrize(
    "make_mask",
    [
        lambda: one_row(10, 10, 40, 1),
        lambda: one_row(63, 0, 1, 96),
        lambda: one_row(63, 95, 1, 1),
        lambda: one_row(0, 0, 1, 1),
    ],
    ids=["one pixel wide", "last row", "last pixel", "first pixel"],
)
def test_degenerate_masks_get_a_crop_or_a_reason(tmp_path: Path, make_mask: Callable[[], np.ndarray]) -> None:
    tokenizer = GridTokenizer()
    decoded: list[np.ndarray] = []

    def iterate_masks(features: object, codes: Sequence[object], height: int, width: int) -> Iterator[np.ndarray]:
        for _ in codes:
            decoded.append(make_mask())
            yield decoded[-1]

    tokenizer.iterate_masks = iterate_masks  # type: ignore[method-assign]
    sources = write_world(tmp_path, num_images=1)
    drop_regions(sources, cells(0, 0, 1, 1))
    params = make_params(tmp_path, sources=sources[:1], base={"max_skip_ratio": 1.0})
    write_json(
        sources[0]["annotations"],
        [{"image": "V3Det/images/n00000000/0.jpg", "conversations": answer(cells(0, 0, 1, 1))}],
    )
    run_all(params, tokenizer)
    assert decoded
    report = run_crop(params)
    assert report.made["crops"] + report.skipped.get("crop: empty_crop_mask", 0) == 1
    (row,) = read_rows(params.base.dataset_dir / "data" / "denseworld_multi_1.parquet")
    assert len(row.images) == row.cap_problem.count("<image>") == 1 + report.made["crops"]


def test_an_expression_that_loses_a_target_is_no_row(tmp_path: Path) -> None:
    params = make_params(
        tmp_path, sources=write_world(tmp_path)[1:], base={"max_skip_ratio": 1.0}, regions={"min_area_px": 250}
    )
    run_link(params)
    report = run_regions(params, GridTokenizer())
    # The left object has 225 pixels: "left man", "man in red" and "both men" go, the expression without target stays.
    assert report.skipped == {"record: target_lost": 3, "region: below_min_area": 3}
    assert report.made == {"records": 1, "regions": 0}


def test_duplicate_records_give_one_row(tmp_path: Path) -> None:
    sources = write_world(tmp_path)
    record = {"image": "V3Det/images/n00000000/0.jpg", "conversations": answer(cells(0, 0, 1, 1))}
    write_json(sources[0]["annotations"], [record, record])
    params = make_params(tmp_path, sources=sources[:1])
    run_all(params, GridTokenizer())
    assert run_build(params).skipped == {"row: duplicate_row": 1}
    assert (params.base.dataset_dir / "data" / "denseworld_multi_1.parquet").exists()


def test_a_question_asked_twice_is_one_row_whatever_its_template(tmp_path: Path) -> None:
    sources = write_world(tmp_path)
    grefs = json.loads(sources[1]["annotations"].read_text())
    texts = ["left man", "the left man", "Left  man", *["left man"] * 9, "the other left man"]
    repeated = [{**grefs[0], "ref_id": number, "sentences": [{"sent": text}]} for number, text in enumerate(texts)]
    nothing = next(ref for ref in grefs if ref["ann_id"] == [-1])
    repeated += [{**nothing, "ref_id": number} for number in range(100, 110)]
    write_json(sources[1]["annotations"], repeated)
    params = make_params(tmp_path, sources=sources[1:])
    run_all(params, GridTokenizer())
    report = run_build(params)
    assert report.made["expression_rows"] == 2 and report.made["no_target_rows"] == 1
    assert report.skipped == {"row: duplicate_row": 11 + 9}


def test_a_missing_tokenizer_is_one_clear_error(tmp_path: Path) -> None:
    params = make_params(tmp_path, sources=write_world(tmp_path))
    run_link(params)
    with pytest.raises(DataError, match=r"config\.json is missing; expected the folder of a mask tokenizer"):
        regions_stage.run_regions(params)


def test_a_broken_table_is_one_clear_error(built: Params) -> None:
    (built.base.work_dir / "crops.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"crops\.parquet: is not the table of the crop stage"):
        run_build(built)
