"""Linking: where an image is looked for, where its link lies, and that nothing of the user's is touched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cyclegrpo.dataset.link import ImageFinder, place_image, run_link
from cyclegrpo.errors import DataError
from cyclegrpo.files import sha256_file
from cyclegrpo.params import Params
from tests.dataset.support import answer, cells, make_params, write_image, write_json, write_world


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


@pytest.mark.parametrize(
    ("files", "name", "expected"),
    [
        (["a/0001.jpg", "b/0001.jpg"], "a/0001.jpg", "a/0001.jpg"),
        (["a/0001.jpg", "b/0001.jpg"], "images/b/0001.jpg", "b/0001.jpg"),  # the root is already at images
        (["images/a/0001.jpg", "images/b/0001.jpg"], "b/0001.jpg", "images/b/0001.jpg"),
        (["images/a/0001.jpg", "images/b/0002.jpg"], "0002.jpg", "images/b/0002.jpg"),
        (["a/0001.jpg"], "elsewhere/0001.jpg", "a/0001.jpg"),
        (["0001.jpg"], "V3Det/images/a/0001.jpg", "0001.jpg"),
        (["a/0001.jpg", "x/a/0001.jpg"], "y/a/0001.jpg", None),  # two have the same last two parts
        (["a/0001.jpg", "b/0001.jpg"], "c/0001.jpg", None),  # never by the file name when there are two
        (["a/0001.jpg"], "a/0002.jpg", None),
        (["a/0001.jpg"], "../a/0001.jpg", None),
        (["a/0001.jpg"], "/etc/hostname", None),
    ],
)
def test_where_an_image_is_found(tmp_path: Path, files: list[str], name: str, expected: str | None) -> None:
    root = tmp_path / "root"
    for file in files:
        touch(root / file)
    if expected is None:
        with pytest.raises(DataError) as caught:
            ImageFinder(root).find(name)
        assert name in str(caught.value)
    else:
        assert ImageFinder(root).find(name) == root / expected


def test_an_ambiguous_name_lists_its_candidates(tmp_path: Path) -> None:
    touch(tmp_path / "a" / "1.jpg")
    touch(tmp_path / "b" / "1.jpg")
    with pytest.raises(DataError, match=r"2 images below .* have this name: a/1\.jpg, b/1\.jpg"):
        ImageFinder(tmp_path).find("1.jpg")


def manifest(params: Params) -> list[dict[str, Any]]:
    return pq.read_table(params.base.work_dir / "images.parquet").to_pylist()


def test_manifest_and_links(tmp_path: Path) -> None:
    params = make_params(tmp_path, sources=write_world(tmp_path))
    report = run_link(params)
    assert report.made == {"images": 4} and report.skipped == {}
    rows = manifest(params)
    assert [row["source"] for row in rows] == ["v3det"] * 3 + ["coco"]
    assert rows[0]["name"] == "V3Det/images/n00000000/0.jpg"
    assert rows[0]["image"] == "images/v3det/n00000000/0.jpg"
    assert (rows[0]["height"], rows[0]["width"], rows[0]["orientation"]) == (64, 96, 1)
    for row in rows:
        link = params.base.dataset_dir / row["image"]
        assert link.is_symlink() and link.stat().st_size == row["num_bytes"]


def test_a_source_without_one_usable_record_is_refused(tmp_path: Path) -> None:
    sources = write_world(tmp_path)
    annotations = Path(sources[0]["annotations"])
    write_json(annotations, [{"picture": "a.jpg"}, {"picture": "b.jpg"}])
    with pytest.raises(DataError, match=r"no record can be used; the first one, .*0") as caught:
        run_link(make_params(tmp_path, sources=sources))
    assert str(annotations) in str(caught.value)


def test_linking_again_changes_nothing(tmp_path: Path) -> None:
    params = make_params(tmp_path, sources=write_world(tmp_path))
    run_link(params)
    before = {path: path.lstat().st_mtime_ns for path in params.base.dataset_dir.rglob("*")}
    digest = sha256_file(params.base.work_dir / "images.parquet")
    run_link(params)
    assert before == {path: path.lstat().st_mtime_ns for path in params.base.dataset_dir.rglob("*")}
    assert sha256_file(params.base.work_dir / "images.parquet") == digest


def test_copies(tmp_path: Path) -> None:
    params = make_params(tmp_path, sources=write_world(tmp_path), link={"copy": True})
    run_link(params)
    image = params.base.dataset_dir / "images" / "v3det" / "n00000000" / "0.jpg"
    assert not image.is_symlink()
    assert sha256_file(image) == sha256_file(tmp_path / "raw" / "V3Det" / "images" / "n00000000" / "0.jpg")


def test_a_link_to_another_image_is_replaced(tmp_path: Path) -> None:
    old, new = touch(tmp_path / "old.jpg"), touch(tmp_path / "new.jpg")
    place = tmp_path / "place.jpg"
    place_image(old, place, copy=False)
    place_image(new, place, copy=False)
    assert os.readlink(place) == str(new)


def test_a_foreign_file_in_the_way_is_not_touched(tmp_path: Path) -> None:
    original, place = touch(tmp_path / "a.jpg"), tmp_path / "place.jpg"
    place.write_bytes(b"something else")
    with pytest.raises(DataError, match="move it away"):
        place_image(original, place, copy=False)
    assert place.read_bytes() == b"something else"


def test_all_missing_images_are_reported(tmp_path: Path) -> None:
    sources = write_world(tmp_path)
    raw = tmp_path / "raw"
    (raw / "V3Det" / "images" / "n00000000" / "0.jpg").unlink()
    (raw / "V3Det" / "images" / "n00000001" / "1.jpg").write_bytes(b"")
    (raw / "V3Det" / "images" / "n00000000" / "2.jpg").unlink()
    (raw / "V3Det" / "images" / "n00000000" / "2.jpg").symlink_to("/nowhere/2.jpg")
    with pytest.raises(DataError, match=r"skipped 3 of 4 images \(3 image_unusable\)"):
        run_link(make_params(tmp_path, sources=sources))
    params = make_params(tmp_path, sources=sources, base={"max_skip_ratio": 1.0})
    report = run_link(params)
    messages = " | ".join(skip.message for skip in report.skips)
    assert "no such image" in messages and "0 bytes" in messages and "broken link to /nowhere/2.jpg" in messages
    assert len(manifest(params)) == 1


def test_two_images_for_one_place_are_refused(tmp_path: Path) -> None:
    sources = write_world(tmp_path)
    for folder in ("x", "y"):
        write_image(tmp_path / "raw" / folder / "a" / "1.jpg", 8, 8)
    records = [{"image": f"{folder}/a/1.jpg", "conversations": answer(cells(0, 0, 1, 1))} for folder in ("x", "y")]
    write_json(sources[0]["annotations"], records)
    with pytest.raises(DataError, match=r"x/a/1\.jpg and y/a/1\.jpg would both lie at images/v3det/a/1\.jpg"):
        run_link(make_params(tmp_path, sources=sources[:1]))
    assert not (tmp_path / "dataset").exists()


def test_two_names_of_one_image_share_its_place(tmp_path: Path) -> None:
    sources = write_world(tmp_path)
    names = ("V3Det/images/n00000000/0.jpg", "elsewhere/n00000000/0.jpg")
    write_json(
        sources[0]["annotations"],
        [{"image": name, "conversations": answer(cells(0, 0, 1, 1 + number))} for number, name in enumerate(names)],
    )
    params = make_params(tmp_path, sources=sources[:1])
    run_link(params)
    assert [row["image"] for row in manifest(params)] == ["images/v3det/n00000000/0.jpg"] * 2


@pytest.mark.parametrize("content", [[], [{"image": "a.jpg"}] * 0])
def test_an_empty_annotation_file_is_an_error(tmp_path: Path, content: list[Any]) -> None:
    sources = write_world(tmp_path)
    write_json(sources[0]["annotations"], content)
    with pytest.raises(DataError, match=r"denseworld\.json: holds no describe records"):
        run_link(make_params(tmp_path, sources=sources))
