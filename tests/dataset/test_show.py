"""A row as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from cyclegrpo.dataset.show import draw_row, find_row, row_text
from cyclegrpo.errors import DataError
from cyclegrpo.files import sha256_file
from cyclegrpo.images import load_image
from cyclegrpo.params import Params
from tests.dataset.conftest import run_all
from tests.dataset.support import GridTokenizer, cells, make_params, write_world


@pytest.mark.parametrize("number", [0, 3, 6], ids=["describe", "expression", "no target"])
def test_picture(built: Params, tmp_path: Path, number: int) -> None:
    paths = [tmp_path / name for name in ("a.png", "b.png")]
    for path in paths:
        draw_row(built, number, path, GridTokenizer())
    assert load_image(paths[0]).size == (1200, 650)
    assert sha256_file(paths[0]) == sha256_file(paths[1])


def test_rows_with_true_masks_need_no_tokenizer(built: Params, tmp_path: Path) -> None:
    tokenizer = GridTokenizer()
    draw_row(built, 3, tmp_path / "a.png", tokenizer)
    assert tokenizer.num_images == 0


def test_boxes(tmp_path: Path) -> None:
    params = make_params(tmp_path, sources=write_world(tmp_path), base={"region_space": "box"})
    run_all(params, GridTokenizer())
    draw_row(params, 0, tmp_path / "a.png")
    assert load_image(tmp_path / "a.png").size == (1200, 650)


def test_text_is_shortened(built: Params) -> None:
    row = find_row(built.base.dataset_dir, 0)
    regions = (cells(2, 3, 2, 2), cells(8, 1, 3, 1), cells(0, 0, 16, 15))
    text = row_text(row, regions)
    assert "<|mt_" not in text
    assert "regions? <T1>, <T2>, and <T3>." in text
    assert "Zoom in on <T2>" in text and "<Z2>" in text


def test_a_row_that_is_not_there(built: Params) -> None:
    with pytest.raises(DataError, match="has 7 rows; expected more than 7"):
        find_row(built.base.dataset_dir, 7)
