"""The public preparation script's rows and crops, made again by the stages regions, crop, tokenize and build.

The golden folder holds what the public code made of ten samples with a small tokenizer whose decoder was replaced by
fixed logits (random weights give no compact mask); crops and their codes are real.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cyclegrpo.dataset.build import run_build
from cyclegrpo.dataset.crops import cut_crop, run_crop
from cyclegrpo.dataset.link import run_link
from cyclegrpo.dataset.regions import run_regions
from cyclegrpo.dataset.schema import Row, read_rows, text_to_rle
from cyclegrpo.dataset.tables import read_work_rows
from cyclegrpo.dataset.tokenize import run_tokenize
from cyclegrpo.images import read_image_header
from cyclegrpo.params import Params
from cyclegrpo.regions.rle import rle_to_mask
from cyclegrpo.regions.tokens import parse_tokens
from cyclegrpo.tokenizer.mask_prompts import normalised_boxes
from tests.dataset.support import make_params

GOLDEN = Path(os.environ.get("CYCLEGRPO_GOLDEN", Path(__file__).parents[3] / "shared" / "golden"))

pytestmark = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden folder is not here; set CYCLEGRPO_GOLDEN")


class FixedDecoder:
    """The golden tokenizer, with the decoder replaced as it was for the public run; counts image-encoder passes."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.config, self.num_images = tokenizer, tokenizer.config, 0

    def embed_images(self, images: Sequence[Image.Image]) -> Any:
        self.num_images += len(images)
        return self.tokenizer.embed_images(images)

    def encode(self, features: Any, masks: Any, image_of_mask: Any = None) -> Any:
        return self.tokenizer.encode(features, masks, image_of_mask)

    def iterate_masks(self, features: Any, codes: np.ndarray, height: int, width: int) -> Iterator[np.ndarray]:
        paths = [GOLDEN / "prepare" / "lowres" / f"{code0}_{code1}.png" for code0, code1 in codes]
        logits = torch.stack([torch.from_numpy(np.array(Image.open(path))) for path in paths]) / 255 * 20 - 10
        resized = torch.nn.functional.interpolate(logits[:, None], (height, width), mode="bilinear")
        return iter((resized[:, 0] > 0.5).numpy())


@pytest.fixture(scope="module")
def tokenizer() -> FixedDecoder:
    from safetensors.torch import load_file

    from cyclegrpo.tokenizer import MaskTokenizer, hiera_config
    from cyclegrpo.tokenizer.convert import convert_state_dict

    config = hiera_config(
        image_size=1024,
        embed_dim=64,
        stage_dims=(16, 32, 64, 128),
        stage_blocks=(1, 1, 2, 1),
        stage_heads=(1, 2, 4, 8),
        stage_windows=(8, 4, 14, 7),
        global_blocks=(3,),
    )
    model = MaskTokenizer(config).eval()
    model.load_state_dict(convert_state_dict(load_file(GOLDEN / "ref_state_nano_fp16.safetensors"), config))
    return FixedDecoder(model)


def expected_rows() -> list[dict[str, Any]]:
    return json.loads((GOLDEN / "prepare" / "expected.json").read_text(encoding="utf-8"))["rows"]


def without_crop_names(row: Row, dataset_dir: Path) -> dict[str, Any]:
    """The row as the golden file has it: crops numbered, and their sizes."""
    crops = row.images[1:]
    headers = [read_image_header(dataset_dir / crop) for crop in crops]
    sizes = [[header.width, header.height] for header in headers]
    images = [row.images[0].removeprefix("images/golden/"), *(f"<crop {number}>" for number in range(len(crops)))]
    return {"images": images, "sizes": sizes, "cap_problem": row.cap_problem, "seg_answer": row.seg_answer}


def test_rows_equal_those_of_the_public_script(tmp_path: Path, tokenizer: FixedDecoder) -> None:
    params = make_params(
        tmp_path,
        sources=[
            {
                "name": "golden",
                "format": "denseworld",
                "annotations": str(GOLDEN / "prepare" / "input_samples.json"),
                "image_root": str(GOLDEN),
                "link_as": "golden",
                "kinds": ["describe"],
            }
        ],
        base={"max_skip_ratio": 0.5, "annotation_root": GOLDEN},
        crop={},
    )
    run_link(params)
    regions = run_regions(params, tokenizer)
    num_images = tokenizer.num_images
    run_crop(params)
    crops = run_tokenize(params, tokenizer)
    run_build(params)

    assert num_images == 4
    assert tokenizer.num_images - num_images < crops.made["crops"]  # equal crops of one image are embedded once
    assert regions.skipped == {
        "region: bad_tokens": 2,
        "region: empty_mask": 2,
        "record: image_not_linked": 1,
        "record: no_regions": 1,
    }
    (path,) = (params.base.dataset_dir / "data").glob("*.parquet")
    assert re.fullmatch(r"denseworld_multi_8\.parquet", path.name)
    made = [without_crop_names(row, params.base.dataset_dir) for row in read_rows(path)]
    expected = [
        {
            "images": row["images"],
            "sizes": [crop["wh"] for crop in row["crop_files"]],
            "cap_problem": row["cap_problem"],
            "seg_answer": row["seg_answer"],
        }
        for row in expected_rows()
    ]
    assert sorted(made, key=str) == sorted(expected, key=str)
    assert_crops_are_those_of_the_log(params)


def assert_crops_are_those_of_the_log(params: Params) -> None:
    """Windows, sizes and codes of all crops, and the area and the box of the mask that was encoded in each."""
    base, made = params.base, []
    tokens = {(row["record_id"], row["region"]): row["tokens"] for row in read_work_rows(base.work_dir, "crop_tokens")}
    for row in read_work_rows(base.work_dir, "crops"):
        image = Image.open(base.dataset_dir / row["image"]).convert("RGB")
        mask = rle_to_mask(text_to_rle(row["rle"]))
        pixels, cut = cut_crop(image, mask, tuple(row["window"]), enlarge_to_px=params.crop.enlarge_to_px)
        assert (pixels.height, pixels.width) == (row["crop_height"], row["crop_width"])
        (codes,) = parse_tokens(tokens[row["record_id"], row["region"]]).codes
        box = normalised_boxes(torch.from_numpy(cut)[None])[0].tolist()
        made.append(([*row["window"]], [*cut.shape], list(codes), int(cut.sum()), pytest.approx(box, abs=1e-6)))
    log = json.loads((GOLDEN / "prepare" / "expected.json").read_text(encoding="utf-8"))["crop_log"]
    expected = [(entry["crop"], entry["mask_hw"], entry["codes"], entry["mask_area"], entry["box"]) for entry in log]
    assert sorted(expected, key=str) == sorted(made, key=lambda crop: str(crop[:4]))
