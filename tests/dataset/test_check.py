"""The validator finds every fault of the list, names its place, and finds nothing in a clean dataset."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cyclegrpo.dataset.check import CheckReport, check_dataset, run_check
from cyclegrpo.dataset.checks.terminal import report_tables
from cyclegrpo.dataset.prompts import ask_expression, parse_question
from cyclegrpo.dataset.schema import SCHEMA, SCHEMA_WITH_MASKS
from cyclegrpo.errors import DataError
from cyclegrpo.files import write_table
from cyclegrpo.params import Params
from tests.dataset.support import cells

Rows = list[dict[str, Any]]
FILES = {
    "describe": "data/denseworld_multi_3.parquet",
    "no_target": "data/gres_no_target_1.parquet",
    "expression": "data/gres_grounding_3.parquet",
}
OTHER = cells(9, 9, 2, 2)


def check(params: Params) -> CheckReport:
    return check_dataset(params.base.dataset_dir)


def rewrite(params: Params, name: str, change: Callable[[Rows], None]) -> None:
    """Change the rows of one file in place."""
    path = params.base.dataset_dir / FILES[name]
    rows = pq.read_table(path).to_pylist()
    change(rows)
    write_table(path, pa.Table.from_pylist(rows, schema=SCHEMA_WITH_MASKS if name == "expression" else SCHEMA))


def test_a_built_dataset_has_no_problem(built: Params, tmp_path: Path) -> None:
    report = run_check(built, tmp_path / "results")
    assert report.findings == [] and report.exit_code == 0
    assert (report.num_files, report.num_rows) == (3, 7)
    statistics = report.statistics
    assert statistics["num_regions"] == 3 * 3 + 4
    assert statistics["regions_per_row"] == {"mean": 13 / 6, "min": 1, "median": 2.5, "max": 3}
    assert statistics["num_crops"] == 6
    assert statistics["num_images"] == 4
    # Corners: three regions at three places in each DenseWorld image, two objects of COCO.
    assert statistics["codebook_0"]["used"] == 5
    metrics = json.loads((tmp_path / "results" / "metrics.json").read_text())
    assert metrics["num_errors"] == 0 and metrics["statistics"]["num_crops"] == 6


def set_value(row: int, column: str, value: Any) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        rows[row][column] = value

    return change


def replace(row: int, column: str, old: str, new: str) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        assert old in rows[row][column]
        rows[row][column] = rows[row][column].replace(old, new)

    return change


def set_image(row: int, position: int, path: str) -> Callable[[Rows], None]:
    def change(rows: Rows) -> None:
        rows[row]["images"][position] = path

    return change


def drop_crop(rows: Rows) -> None:
    rows[0]["images"].pop()


def share_crop(rows: Rows) -> None:
    rows[1]["images"][1] = rows[0]["images"][1]


def repeat_row(rows: Rows) -> None:
    rows[1] = {**rows[0], "images": [rows[0]["images"][0], *rows[1]["images"][1:]]}


def ask_again(rows: Rows) -> None:
    """The second row asks for what the first one asks for, in another question."""
    expression = parse_question(rows[0]["cap_problem"])
    assert expression is not None
    questions = {ask_expression(f"the {expression}", str(number)) for number in range(20)} - {rows[0]["cap_problem"]}
    rows[1] = {**rows[0], "cap_problem": min(questions)}


def turn_zooms(rows: Rows) -> None:
    head, first, second = rows[0]["cap_problem"].split(" Zoom in on ")
    rows[0]["cap_problem"] = " Zoom in on ".join([head, second, first])


def double_zoom(rows: Rows) -> None:
    head, first, _ = rows[0]["cap_problem"].split(" Zoom in on ")
    rows[0]["cap_problem"] = " Zoom in on ".join([head, first, first])


FIRST = cells(2, 3, 2, 2)


@pytest.mark.parametrize(
    ("name", "change", "row", "column", "kinds"),
    [
        ("describe", set_image(0, 0, "/etc/hostname"), 0, "images", {"path_absolute"}),
        ("describe", set_image(0, 0, "images/../../outside.jpg"), 0, "images", {"path_escapes"}),
        ("describe", set_image(0, 0, "images/v3det/none.jpg"), 0, "images", {"image_missing"}),
        ("describe", set_image(0, 0, "images/v3det"), 0, "images", {"image_is_folder"}),
        ("describe", set_image(0, 0, "README.md"), 0, "images", {"not_an_image"}),
        ("describe", set_value(0, "images", []), 0, "images", {"no_value"}),
        ("describe", set_value(1, "cap_problem", None), 1, "cap_problem", {"no_value"}),
        ("describe", set_value(1, "cap_answer", "a dog"), 1, "cap_answer", {"unused_not_null"}),
        ("describe", set_value(1, "masks", []), 1, "masks", {"unused_not_null"}),
        ("describe", set_value(2, "source", "mystery"), 2, "source", {"unknown_source"}),
        ("describe", replace(0, "cap_problem", "<image>\n", ""), 0, "cap_problem", {"image_count", "bad_prompt"}),
        (
            "describe",
            replace(0, "cap_problem", FIRST, FIRST[:-10]),
            0,
            "cap_problem",
            {"malformed_token", "answer_differs"},
        ),
        (
            "describe",
            replace(0, "seg_answer", "mt_0273", "mt_0600"),
            0,
            "seg_answer",
            {"malformed_token", "answer_differs"},
        ),
        ("describe", replace(0, "seg_answer", FIRST, OTHER), 0, "seg_answer", {"answer_differs"}),
        ("describe", replace(0, "seg_answer", "</answer>", ""), 0, "seg_answer", {"bad_answer"}),
        ("describe", replace(0, "cap_problem", f"on {FIRST}", f"on {OTHER}"), 0, "cap_problem", {"zoom_of_no_target"}),
        ("describe", double_zoom, 0, "cap_problem", {"zoom_twice"}),
        ("describe", turn_zooms, 0, "cap_problem", {"zoom_order"}),
        ("describe", drop_crop, 0, "images", {"zoom_without_image", "image_count"}),
        ("describe", replace(0, "cap_problem", "Zoom in on", "Look at"), 0, "cap_problem", {"bad_prompt"}),
        ("describe", share_crop, 1, "images", {"crop_shared"}),
        ("describe", repeat_row, 1, "seg_answer", {"duplicate_row"}),
        ("expression", ask_again, 1, "seg_answer", {"duplicate_row"}),
        (
            "no_target",
            set_value(0, "seg_answer", f"<answer>{FIRST}</answer>"),
            0,
            "seg_answer",
            {"no_target_with_regions"},
        ),
        ("no_target", set_value(0, "source", "gcg"), 0, "source", {"no_target_source"}),
        ("expression", set_value(0, "target_rle", []), 0, "target_rle", {"mask_count"}),
        ("expression", set_value(0, "target_rle", ["{}"]), 0, "target_rle", {"bad_mask"}),
        (
            "expression",
            set_value(0, "target_rle", ['{"size":[4,4],"counts":"0220004"}']),
            0,
            "target_rle",
            {"mask_size"},
        ),
        ("expression", set_value(0, "target_rle", ['{"size":[60,80],"counts":"PZ1"}']), 0, "target_rle", {"bad_mask"}),
    ],
)
def test_a_fault_in_a_row(
    built: Params, name: str, change: Callable[[Rows], None], row: int, column: str, kinds: set[str]
) -> None:
    rewrite(built, name, change)
    report = check(built)
    here = [finding for finding in report.findings if finding.file == FILES[name]]
    assert {finding.kind for finding in here} & kinds, report.findings
    assert any((finding.row, finding.column) == (row, column) for finding in here)
    assert {finding.kind for finding in report.findings} <= kinds | {
        "list_unused",
        "image_not_listed",
        "image_left_over",
    }
    assert report.exit_code == 1


def test_no_target_rows_have_one_image(built: Params) -> None:
    def add_image(rows: Rows) -> None:
        rows[0]["images"].append("images/v3det/n00000000/0.jpg")
        rows[0]["cap_problem"] += "<image>"

    rewrite(built, "no_target", add_image)
    assert check(built).kinds == {"no_target_with_crops": 1}


def test_images_left_over(built: Params) -> None:
    def add_image(rows: Rows) -> None:
        rows[0]["images"].append("images/v3det/n00000000/0.jpg")

    rewrite(built, "describe", add_image)
    assert check(built).kinds == {"image_count": 1, "image_left_over": 1}


def break_image(content: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(content(data))

    return change


def rotate(path: Path) -> None:
    with Image.open(path) as image:
        image.load()
        exif = Image.Exif()
        exif[0x0112] = 6
        path.unlink()
        image.save(path, format="JPEG", exif=exif)


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nowhere/at/all.jpg")


@pytest.mark.parametrize(
    ("change", "kind", "errors"),
    [
        (break_image(lambda data: b""), "image_empty", True),
        (break_image(lambda data: data[: len(data) // 2]), "image_truncated", True),
        (break_image(lambda data: b"<html>404</html>"), "not_an_image", True),
        (dangle, "broken_link", True),
        (rotate, "image_rotated", False),
    ],
)
def test_a_fault_in_an_image(built: Params, change: Callable[[Path], None], kind: str, errors: bool) -> None:
    change(built.base.dataset_dir / "images" / "v3det" / "n00000000" / "0.jpg")
    report = check(built)
    assert report.kinds == {kind: 1}
    assert "images/v3det/n00000000/0.jpg" in report.findings[0].message
    assert report.exit_code == int(errors)


def test_the_pixel_limit(built: Params) -> None:
    report = check_dataset(built.base.dataset_dir, max_pixels=96 * 64 - 1)
    assert report.kinds == {"image_too_large": 3}


def test_only_the_link_stage_may_link_out(built: Params, tmp_path: Path) -> None:
    assert check_dataset(built.base.dataset_dir, links=[]).kinds == {"path_escapes": 7}


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"", "empty_file"), (b"PAR1 cut", "truncated_file"), (b"<html>", "not_parquet")],
)
def test_a_file_that_is_no_table(built: Params, content: bytes, kind: str) -> None:
    (built.base.dataset_dir / "data" / "a.parquet").write_bytes(content)
    report = check(built)
    assert [(finding.file, finding.kind) for finding in report.findings] == [("data/a.parquet", kind)]
    assert report.num_rows == 7  # the others are read all the same


def other_schema(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        pq.write_table(change(pq.read_table(path)), path)

    return apply


def retype(table: pa.Table, column: str, kind: pa.DataType) -> pa.Table:
    position = table.column_names.index(column)
    return table.set_column(position, column, table.column(column).cast(kind))


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda table: table.drop_columns(["source"]), {"missing_column": 1}),
        (lambda table: table.append_column("n", pa.array([1, 2, 3])), {"extra_column": 1}),
        (lambda table: table.set_column(6, "source", pa.array([1, 2, 3])), {"wrong_type": 1}),
        (lambda table: table.set_column(5, "masks", pa.nulls(3)), {"null_type": 1}),
        (lambda table: table.select(table.column_names[::-1]), {}),
        (lambda table: retype(table, "cap_problem", pa.large_string()), {}),
        (lambda table: retype(table, "images", pa.large_list(pa.large_string())), {}),
        (lambda table: table.set_column(6, "source", table.column("source").dictionary_encode()), {}),
        (lambda table: table.slice(0, 0), {"empty_file": 1}),
    ],
)
def test_columns_and_types(built: Params, change: Callable[[pa.Table], pa.Table], kinds: dict[str, int]) -> None:
    other_schema(change)(built.base.dataset_dir / FILES["describe"])
    assert {kind: number for kind, number in check(built).kinds.items() if kind != "list_unused"} == kinds


def test_lists_and_rows_are_checked_against_each_other(built: Params) -> None:
    path = built.base.dataset_dir / "image_lists" / "v3det.txt"
    path.write_text("V3Det/images/n00000000/0.jpg\n2.jpg\nn1/never.jpg\n")
    report = check(built)
    # 0 is found by its folder, 2 by its bare name, 1 is not listed.
    assert report.kinds == {"image_not_listed": 1, "list_unused": 1}
    assert "n00000001/1.jpg" in report.findings[0].message and report.findings[1].row == 2


def test_no_dataset_at_all(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no parquet file"):
        check_dataset(tmp_path)


def test_printing_is_bounded_and_counting_is_not(built: Params) -> None:
    from rich.console import Console

    def forget_sources(rows: Rows) -> None:
        for row in rows:
            row["source"] = "[bold]mystery"

    rewrite(built, "describe", forget_sources)
    report = check(built)
    assert report.kinds == {"unknown_source": 3}
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report_tables(report, 2))
    text = console.export_text()
    assert text.count("[bold]mystery") == 2 and "and 1 more" in text
