"""The world on disk: its files' forms, and what a second, an interrupted and a changed run do."""

from __future__ import annotations

import contextlib
import errno
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile, get_sampling
from pycocotools.coco import COCO

from cyclegrpo.errors import DataError, ParamsError
from cyclegrpo.evaluation.truth import Truth, fitting_objects, known_words
from cyclegrpo.sources.grefcoco import read_grefcoco
from cyclegrpo.sources.records import Record
from miniature import world
from miniature.params import MiniatureParams
from miniature.scene import draw_scene
from miniature.stages.world import run as run_stage_world
from miniature.world import DENSEWORLD, MANIFEST, check_world, run_world

# pycocotools decodes with NumPy 1's protocol.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def contents(root: Path) -> dict[str, bytes]:
    return {name: content for name, (content, _) in snapshot(root).items()}


def load(params: MiniatureParams, name: str) -> Any:
    return json.loads((params.world.raw_dir / name).read_text())


def test_files_and_counts(params: MiniatureParams) -> None:
    report = run_world(params)
    names = sorted(snapshot(params.world.raw_dir))
    assert sum(name.startswith("V3Det/images/n") and name.endswith(".jpg") for name in names) == 8
    coco = [name for name in names if name.startswith("coco/")]
    assert coco == [f"coco/train2014/COCO_train2014_{i:012d}.jpg" for i in range(1, 14)]
    others = [name for name in names if not name.endswith(".jpg")]
    assert others == [".miniature-world", "grefcoco/grefs(unc).json", "grefcoco/instances.json", MANIFEST, "truth.json"]
    assert (report.num_images, report.num_files, report.num_files_written, report.num_files_removed) == (21, 24, 24, 0)
    assert len(load(params, MANIFEST)["files"]) == 24


def test_images_show_their_scene(params: MiniatureParams) -> None:
    run_world(params)
    with Image.open(params.world.raw_dir / "coco/train2014/COCO_train2014_000000000007.jpg") as image:
        assert (image.format, image.size, image.mode) == ("JPEG", (96, 96), "RGB")
        assert isinstance(image, JpegImageFile)
        assert get_sampling(image) == 0  # 4:4:4
        pixels = np.asarray(image).astype(int)
    scene = draw_scene(params.scenes.val.first_seed)  # the first image after the six of train
    assert np.abs(pixels - scene.image).mean() < 4


def test_pycocotools_loads_the_instances(params: MiniatureParams) -> None:
    run_world(params)
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO(params.world.raw_dir / "grefcoco/instances.json")
    seeds = [s for split in ("train", "val", "testA") for s in params.scenes.range_of(split).seeds]
    assert sorted(coco.imgs) == list(range(1, 14))
    for image_id, seed in enumerate(seeds, start=1):
        annotations = coco.loadAnns(coco.getAnnIds(imgIds=image_id))
        objects = draw_scene(seed).objects
        assert len(annotations) == len(objects)
        for annotation, scene_object in zip(annotations, objects, strict=True):
            ys, xs = np.nonzero(scene_object.mask)
            assert np.array_equal(coco.annToMask(annotation).astype(bool), scene_object.mask)
            assert annotation["bbox"] == [xs.min(), ys.min(), np.ptp(xs) + 1, np.ptp(ys) + 1]
            assert annotation["area"] == scene_object.mask.sum()
            assert coco.cats[annotation["category_id"]]["name"] == scene_object.shape


def test_references_have_the_fields_of_the_real_file(params: MiniatureParams) -> None:
    run_world(params)
    refs = load(params, "grefcoco/grefs(unc).json")
    instances = load(params, "grefcoco/instances.json")
    categories = {a["id"]: a["category_id"] for a in instances["annotations"]} | {-1: -1}
    names = {image["id"]: image["file_name"] for image in instances["images"]}
    assert [ref["ref_id"] for ref in refs] == list(range(1, len(refs) + 1))
    for ref in refs:
        assert ref["no_target"] == (ref["ann_id"] == [-1])
        assert ref["category_id"] == [categories[ann_id] for ann_id in ref["ann_id"]]
        assert ref["file_name"].rsplit("_", 1)[0] + ".jpg" == names[ref["image_id"]]
        (sentence,) = ref["sentences"]
        assert ref["sent_ids"] == [sentence["sent_id"]]
        assert sentence["raw"].lower() == sentence["sent"] == " ".join(sentence["tokens"])
    for split, num_images in {"train": 6, "val": 4, "testA": 3}.items():
        kinds = Counter(
            min(2, len(ref["ann_id"]) if not ref["no_target"] else 0) for ref in refs if ref["split"] == split
        )
        assert kinds[0] == kinds[1] == num_images
        assert kinds[2] <= num_images


def test_our_reader_finds_every_expression_and_the_truth_agrees(params: MiniatureParams) -> None:
    run_world(params)
    raw = params.world.raw_dir
    truth = Truth.load(raw / "truth.json")
    targets = {ref["ref_id"]: ref["ann_id"] for ref in load(params, "grefcoco/grefs(unc).json")}
    for split, num_images in {"train": 6, "val": 4, "testA": 3}.items():
        refs, instances = raw / "grefcoco/grefs(unc).json", raw / "grefcoco/instances.json"
        images = set()
        for record in read_grefcoco(refs, instances, name="gref", split=split, kinds=("expression", "no_target")):
            assert isinstance(record, Record)
            assert record.text is not None
            images.add(record.image)
            fitting = fitting_objects(known_words(record.text, truth.vocabulary), truth.images[record.image])
            if record.kind == "no_target":
                assert fitting == []
            elif len(record.regions) == 1:
                assert fitting == targets[int(record.record_id.split("/")[1].split("-")[0])]
        assert len(images) == num_images


def test_a_second_run_changes_no_file(params: MiniatureParams) -> None:
    run_world(params)
    before = snapshot(params.world.raw_dir)
    assert run_world(params).num_files_written == 0
    assert snapshot(params.world.raw_dir) == before


def test_an_interrupted_run_has_no_manifest_and_is_continued(
    params: MiniatureParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_world(params)
    raw = params.world.raw_dir
    expected = contents(raw)
    for name in expected:
        if name != ".miniature-world":
            (raw / name).unlink()
    written: list[Path] = []
    write = world.write_bytes

    def full_disk(path: Path, data: bytes) -> None:
        if len(written) == 10:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, data)
        written.append(path)

    monkeypatch.setattr(world, "write_bytes", full_disk)
    with pytest.raises(OSError, match="No space"):
        run_world(params)
    with pytest.raises(DataError, match="no finished world"):
        check_world(params)
    monkeypatch.undo()
    times = {path: path.stat().st_mtime_ns for path in written}
    assert run_world(params).num_files_written == 24 - 10
    assert {path: path.stat().st_mtime_ns for path in written} == times
    assert contents(raw) == expected


def test_a_damaged_file_is_written_again_and_a_half_written_one_removed(params: MiniatureParams) -> None:
    run_world(params)
    raw = params.world.raw_dir
    expected = contents(raw)
    image = raw / "coco/train2014/COCO_train2014_000000000003.jpg"
    image.write_bytes(image.read_bytes()[:-1] + b"x")
    (raw / "coco/train2014/.COCO_train2014_000000000003.ab12cd34.tmp.jpg").write_bytes(b"half")
    report = run_world(params)
    assert (report.num_files_written, report.num_files_removed) == (1, 1)
    assert contents(raw) == expected


def test_nothing_of_another_world_is_left(make_params: Callable[..., MiniatureParams], tmp_path: Path) -> None:
    small = {"v3det": 3, "train": 2, "val": 2, "testA": 1}
    run_world(make_params(small, raw_dir=tmp_path / "fresh", seed=1))
    run_world(make_params())
    tokens = tmp_path / "raw" / DENSEWORLD
    tokens.parent.mkdir()
    tokens.write_text("[]")
    for name in (MANIFEST, "truth.json"):  # as DVC does before it runs the stage
        (tmp_path / "raw" / name).unlink()
    run_world(make_params())
    assert tokens.exists()  # the same images: their tokens stay true
    run_world(make_params(small, seed=1))
    assert not tokens.parent.exists()
    assert contents(tmp_path / "raw") == contents(tmp_path / "fresh")


def test_a_folder_of_somebody_else_is_refused_and_untouched(params: MiniatureParams) -> None:
    photo = params.world.raw_dir / "V3Det/images/n07745046/photo.jpg"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(b"mine")
    with pytest.raises(DataError, match="did not write"):
        run_world(params)
    assert contents(params.world.raw_dir) == {"V3Det/images/n07745046/photo.jpg": b"mine"}


def test_empty_folders_are_nobody_s(params: MiniatureParams) -> None:
    (params.world.raw_dir / "denseworld").mkdir(parents=True)  # DVC makes it before the stage that fills it
    run_world(params)
    check_world(params)


def test_check_world_tells_other_params(make_params: Callable[..., MiniatureParams]) -> None:
    run_world(make_params())
    check_world(make_params())
    with pytest.raises(DataError, match="other params"):
        check_world(make_params(seed=1))


def test_a_mistake_in_the_pipelines_params_is_told_before_the_world_is_made(params, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("base: {sed: 1}\n")
    with pytest.raises(ParamsError, match=r"^params\.yaml: base\."):
        run_stage_world(params)
    assert not params.world.raw_dir.exists()
