"""One image, one question: the prompt and images that the policy gets, and how its answer is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cyclegrpo import predict
from cyclegrpo.errors import DataError, ParamsError
from cyclegrpo.params import Params
from cyclegrpo.params_file import load_params
from cyclegrpo.predict import describe_region, locate_text, parse_box
from tests.test_params import write_params

POLICY = Path("policy")


class FakePolicy:
    """Answers with a fixed text and keeps what it was asked."""

    answer = "the red square"
    asked: list[tuple[str, list[tuple[int, int]], int]]

    def __init__(self) -> None:
        self.asked = []

    def generate(self, prompts: list[str], images: list[list[Image.Image]], *, max_new_tokens: int) -> list[str]:
        self.asked.append((prompts[0], [image.size for image in images[0]], max_new_tokens))
        return [self.answer]


class FakeTokenizer:
    """Every mask is code (1, 2); codes decode to the left (second code known) or the top half."""

    class config:
        codebook_size = 256

    def embed_images(self, images: list[Image.Image]) -> list[Image.Image]:
        return images

    def encode(self, features: Any, masks: Any, image_of_mask: Any = None) -> np.ndarray:
        (mask,) = masks
        assert mask.shape == (features.height, features.width) and mask.any()
        return np.array([[1, 2]])

    def decode_masks(self, features: Any, codes: list[tuple[int, int]], height: int, width: int) -> np.ndarray:
        masks = np.zeros((len(codes), height, width), bool)
        for mask, (_, code1) in zip(masks, codes, strict=True):
            if code1 < 0:
                mask[: height // 2] = True
            else:
                mask[:, : width // 2] = True
        return masks


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> FakePolicy:
    fake = FakePolicy()
    monkeypatch.setattr(predict.Policy, "load", lambda path, device, codebook_size: fake)
    monkeypatch.setattr(predict, "load_tokenizer", lambda folder, device, dtype: FakeTokenizer())
    return fake


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """80 wide, 60 high."""
    path = tmp_path / "a b.png"
    Image.new("RGB", (80, 60), (10, 20, 30)).save(path)
    return path


def params_for(folder: Path, **changes: Any) -> Params:
    return load_params(write_params(folder, {key.replace("__", "."): value for key, value in changes.items()}))


TOKEN = "<|mt_start|><|mt_0001|><|mt_0258|><|mt_end|>"


def test_describe_shows_the_image_and_its_crop(tmp_path: Path, picture: Path, policy: FakePolicy) -> None:
    found = describe_region(params_for(tmp_path), POLICY, picture, box=(10, 10, 30, 30))
    assert (found.region, found.caption) == (TOKEN, "the red square")
    ((prompt, sizes, num_tokens),) = policy.asked
    assert prompt.count("<image>") == len(sizes) == 2 and prompt.count(TOKEN) == 3
    # 20 pixels wide, so 6 more on either side of the inclusive box 10..29: 31 x 31, enlarged to 96.
    assert sizes == [(80, 60), (96, 96)]
    assert num_tokens == load_params(tmp_path / "params.yaml").evaluate.max_caption_tokens


def lying(path: Path) -> Path:
    """A photo of a phone held upright: stored 80 wide and 60 high, shown 60 wide and 80 high, its top red."""
    image, exif = Image.new("RGB", (80, 60)), Image.Exif()
    image.paste((255, 0, 0), (0, 0, 40, 60))
    exif[0x0112] = 6
    image.save(path, exif=exif, quality=95)
    return path


def test_a_photo_is_asked_about_as_viewers_show_it(tmp_path: Path, policy: FakePolicy) -> None:
    photo, params = lying(tmp_path / "photo.jpg"), params_for(tmp_path, base__region_space="box")
    assert describe_region(params, POLICY, photo, box=(0, 40, 60, 80)).region == "[0, 500, 983, 987]"
    Image.new("L", (60, 80), 255).save(tmp_path / "mask.png")
    describe_region(params, POLICY, photo, mask_path=tmp_path / "mask.png")
    policy.answer = "[0, 0, 1000, 500]"
    found = locate_text(params, POLICY, photo, "the red half", picture=tmp_path / "out.png")
    assert found.box == "0,0,60,40"
    assert {sizes[0] for _, sizes, _ in policy.asked} == {(60, 80)}
    drawn = np.asarray(Image.open(tmp_path / "out.png"))
    assert drawn.shape == (80, 60, 3) and drawn[0].min(axis=0)[0] > 200 and drawn[79].max() < 30


def test_the_pixel_limit_is_that_of_the_params(tmp_path: Path, picture: Path, policy: FakePolicy) -> None:
    params = params_for(tmp_path, check__max_pixels=4_799)
    with pytest.raises(DataError, match=r"80x60, over the limit of 4799 pixels"):
        locate_text(params, POLICY, picture, "the dog")
    with pytest.raises(DataError, match=r"80x60, over the limit of 4799 pixels"):
        describe_region(params, POLICY, picture, box=(0, 0, 9, 9))


@pytest.mark.parametrize("change", ["crop__enabled", "train__zoom"])
def test_describe_without_crops(tmp_path: Path, picture: Path, policy: FakePolicy, change: str) -> None:
    describe_region(params_for(tmp_path, **{change: False}), POLICY, picture, box=(10, 10, 30, 30))
    assert policy.asked[0][1] == [(80, 60)] and policy.asked[0][0].count(TOKEN) == 1


def test_describe_a_mask_file(tmp_path: Path, picture: Path, policy: FakePolicy) -> None:
    mask = Image.new("L", (80, 60))
    mask.paste(255, (40, 30, 80, 60))
    mask.save(tmp_path / "mask.png")
    params = params_for(tmp_path, base__region_space="box")
    assert describe_region(params, POLICY, picture, mask_path=tmp_path / "mask.png").region == "[500, 500, 987, 983]"


def test_a_region_must_be_given_once_and_lie_in_the_image(tmp_path: Path, picture: Path, policy: FakePolicy) -> None:
    params = params_for(tmp_path)
    Image.new("L", (80, 60)).save(tmp_path / "empty.png")
    Image.new("L", (60, 80), 255).save(tmp_path / "turned.png")
    with pytest.raises(ParamsError, match="give the region once"):
        describe_region(params, POLICY, picture)
    with pytest.raises(ParamsError, match="give the region once"):
        describe_region(params, POLICY, picture, box=(0, 0, 1, 1), mask_path=tmp_path / "empty.png")
    for box in ((90, 0, 95, 5), (-5, 0, 20, 20), (0, 0, 80, 61)):
        with pytest.raises(ParamsError, match="leaves the image, which is 80x60"):
            describe_region(params, POLICY, picture, box=box)
    with pytest.raises(ParamsError, match="no pixel"):
        describe_region(params, POLICY, picture, mask_path=tmp_path / "empty.png")
    with pytest.raises(ParamsError, match="the mask is 60x80; expected the image's size, 80x60"):
        describe_region(params, POLICY, picture, mask_path=tmp_path / "turned.png")
    with pytest.raises(DataError, match="no such file"):
        describe_region(params, POLICY, tmp_path / "no.png", box=(0, 0, 1, 1))


def test_locate_masks_and_draw_them(tmp_path: Path, picture: Path, policy: FakePolicy) -> None:
    policy.answer = f"<answer>{TOKEN}</answer>"
    out = tmp_path / "out.png"
    found = locate_text(params_for(tmp_path), POLICY, picture, "the <image> red square", picture=out)
    assert (found.regions, found.flags, found.area_ratio) == ([TOKEN], (), 0.5)
    assert (found.box, found.picture) == ("0,0,40,60", str(out))
    prompt, sizes, _ = policy.asked[0]
    assert sizes == [(80, 60)] and prompt.count("<image>") == 1 and "red square" in prompt
    drawn = np.asarray(Image.open(out))
    assert drawn[0, 79].tolist() == [10, 20, 30]
    assert drawn[0, 0].tolist() == [120, 40, 45]  # half (230, 60, 60), half the image


def test_locate_reads_a_broken_token_leniently(tmp_path: Path, picture: Path, policy: FakePolicy) -> None:
    policy.answer = "<|mt_start|><|mt_0001|><|mt_end|>"
    found = locate_text(params_for(tmp_path), POLICY, picture, "the red square")
    assert found.area_ratio == 0.5 and found.flags == ("too_few",)


@pytest.mark.parametrize("text", ["", "  ", "<image>"])
def test_an_empty_text_cannot_be_located(tmp_path: Path, picture: Path, policy: FakePolicy, text: str) -> None:
    with pytest.raises(ParamsError, match="the text to locate is empty"):
        locate_text(params_for(tmp_path), POLICY, picture, text)


@pytest.mark.parametrize("space", ["mask", "box"])
def test_locate_nothing(tmp_path: Path, picture: Path, policy: FakePolicy, space: str) -> None:
    policy.answer = "<answer>No target.</answer>"
    found = locate_text(params_for(tmp_path, base__region_space=space), POLICY, picture, "the dog")
    assert (found.regions, found.area_ratio, found.box, found.picture) == ([], 0.0, "", None)


def test_locate_a_box(tmp_path: Path, picture: Path, policy: FakePolicy) -> None:
    policy.answer = "It is at [0, 0, 500, 1000]."
    found = locate_text(params_for(tmp_path, base__region_space="box"), POLICY, picture, "the dog")
    assert (found.regions, found.area_ratio) == (["[0, 0, 500, 1000]"], 0.5)


@pytest.mark.parametrize("text", ["1,2,3", "a,b,c,d", "1,2,3,4,5", "3,0,1,5", "0,0,0,5"])
def test_a_box_that_is_none(text: str) -> None:
    with pytest.raises(ParamsError, match="the box is"):
        parse_box(text)
