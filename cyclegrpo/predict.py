"""One image, one question: describe a region of it, or locate what a text describes, with any policy.

The prompts, the crop and the tokens are those of training, so that a policy is asked what it has learned to answer.
Pictures are read upright, as viewers show them: no annotation says that anything refers to another frame.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from cyclegrpo.dataset.tokenizers import load_tokenizer, masks_to_tokens
from cyclegrpo.errors import ParamsError
from cyclegrpo.evaluation.blocks import Cut, cut_region
from cyclegrpo.evaluation.run import crop_as_trained
from cyclegrpo.files import atomic_path
from cyclegrpo.images import load_image
from cyclegrpo.params import Params
from cyclegrpo.policy import Policy
from cyclegrpo.regions.boxes import parse_boxes
from cyclegrpo.regions.geometry import box_1000_to_image, box_to_mask, mask_to_box, mask_to_prompt_box, masks_union
from cyclegrpo.regions.spaces import BOX, space
from cyclegrpo.regions.tokens import codes_to_array, parse_tokens
from cyclegrpo.rewards.caption import strip_markers

if TYPE_CHECKING:
    from cyclegrpo.tokenizer import MaskTokenizer

_COLOR = np.array([230, 60, 60], dtype=np.float32)
_OPACITY = 0.5


@dataclass(frozen=True)
class Description:
    """A region, as the policy was asked about it, and what it said."""

    region: str
    caption: str


@dataclass(frozen=True)
class Location:
    """What the policy answered to a text, the regions in it, and the kinds of fault in their spelling.

    box: X0,Y0,X1,Y1 around all of them, half-open pixels as `describe` takes them; empty where nothing was found.
    area_ratio: share of the image's pixels that the regions cover, in [0, 1].
    picture: the file that they were drawn to, if one was asked for.
    """

    answer: str
    regions: list[str]
    flags: tuple[str, ...]
    box: str
    area_ratio: float
    picture: str | None


def describe_region(
    params: Params,
    policy_dir: Path,
    image_path: Path,
    *,
    box: tuple[int, int, int, int] | None = None,
    mask_path: Path | None = None,
) -> Description:
    """What the policy says of one region of an image, greedily.

    Args:
        params: the tokenizer, the region space, the crop rule, the device and the limits of lengths and pixels.
        box: the region as half-open pixels x0, y0, x1, y1 of the upright image; or
        mask_path: as a mask image of the same size, everything but black.

    Raises ParamsError where the region is not given once or lies outside the image, DataError where a file is missing.
    """
    image = load_image(image_path, upright=True, max_pixels=params.check.max_pixels)
    mask = _read_region(image, box, mask_path, params.check.max_pixels)
    cut = cut_region(image, mask, crop_as_trained(params))
    tokenizer = _load_tokenizer(params)
    region, crop_region = _spell(tokenizer, image, mask, cut)
    prompt = space(params.base.region_space).describe(region, crop_region)
    images = [image] if cut is None else [image, cut.seen]
    policy = _load_policy(params, policy_dir, tokenizer)
    caption = policy.generate([prompt], [images], max_new_tokens=params.evaluate.max_caption_tokens)[0]
    return Description(region=region, caption=caption.strip())


def locate_text(
    params: Params, policy_dir: Path, image_path: Path, text: str, *, picture: Path | None = None
) -> Location:
    """Where in an image the policy finds what a text describes, greedily.

    Args:
        params: as in `describe_region`.
        picture: a file to draw the image to, with the regions tinted; None draws none.

    The answer is read leniently: a mask token with one readable code is decoded from that code alone.
    """
    text = strip_markers(text)
    if not text.strip():
        raise ParamsError("the text to locate is empty; say what to find.")
    image = load_image(image_path, upright=True, max_pixels=params.check.max_pixels)
    region_space = space(params.base.region_space)
    prompt = region_space.locate(text)
    tokenizer = _load_tokenizer(params)
    policy = _load_policy(params, policy_dir, tokenizer)
    answer = policy.generate([prompt], [[image]], max_new_tokens=params.evaluate.max_grounding_tokens)[0]
    masks: Iterable[np.ndarray] = ()
    if tokenizer is not None:
        parsed = parse_tokens(answer, codebook_size=tokenizer.config.codebook_size, repair=True)
        regions, flags = parsed.tokens, parsed.flags
        if parsed.codes:
            codes = codes_to_array(parsed.codes)
            masks = tokenizer.decode_masks(tokenizer.embed_images([image])[0], codes, image.height, image.width)
    else:
        boxes = parse_boxes(answer)
        regions, flags = [region_space.format(box) for box in boxes.boxes], boxes.flags
        in_pixels = [box_1000_to_image(box, image.height, image.width) for box in boxes.boxes]
        masks = [box_to_mask(box, image.height, image.width) for box in in_pixels]
    covered = masks_union(masks, image.height, image.width)
    if picture is not None:
        _draw(image, covered, picture)
    box = mask_to_box(covered)
    return Location(
        answer=answer,
        regions=regions,
        flags=flags,
        box="" if box is None else ",".join(map(str, box)),
        area_ratio=float(covered.mean()),
        picture=None if picture is None else str(picture),
    )


def parse_box(text: str) -> tuple[int, int, int, int]:
    """A box that a user typed, as half-open pixels; ParamsError if it is none.

    >>> parse_box("10,20, 30,40")
    (10, 20, 30, 40)
    """
    try:
        x0, y0, x1, y1 = (int(part) for part in text.split(","))
    except ValueError as error:
        raise ParamsError(f"the box is {text!r}; expected four whole numbers X0,Y0,X1,Y1 in pixels.") from error
    if x0 >= x1 or y0 >= y1:
        raise ParamsError(f"the box is {text!r}; expected X0 < X1 and Y0 < Y1.")
    return x0, y0, x1, y1


def _read_region(
    image: Image.Image, box: tuple[int, int, int, int] | None, mask_path: Path | None, max_pixels: int
) -> np.ndarray:
    """The region as mask (height, width) of the image; ParamsError where it is not given once, or has no pixel."""
    if (box is None) == (mask_path is None):
        raise ParamsError("give the region once, with either --box X0,Y0,X1,Y1 or --mask FILE.")
    if mask_path is not None:
        mask = np.asarray(load_image(mask_path, upright=True, max_pixels=max_pixels)).any(axis=2)
        if mask.shape != (image.height, image.width):
            found, expected = f"{mask.shape[1]}x{mask.shape[0]}", f"{image.width}x{image.height}"
            raise ParamsError(f"the mask is {found}; expected the image's size, {expected}.")
    else:
        assert box is not None
        if box[0] < 0 or box[1] < 0 or box[2] > image.width or box[3] > image.height:
            shown = ",".join(map(str, box))
            raise ParamsError(f"the box {shown} leaves the image, which is {image.width}x{image.height}; move it.")
        mask = box_to_mask(box, image.height, image.width)
    if not mask.any():
        raise ParamsError(f"the region has no pixel in the image, which is {image.width}x{image.height}; move it.")
    return mask


def _load_tokenizer(params: Params) -> MaskTokenizer | None:
    """The mask tokenizer, or None in the box space."""
    base = params.base
    return load_tokenizer(base.tokenizer, base.device, base.tokenizer_dtype) if base.region_space == "mask" else None


def _load_policy(params: Params, policy_dir: Path, tokenizer: MaskTokenizer | None) -> Policy:
    """The policy, which knows the tokenizer's tokens; DataError otherwise."""
    codebook_size = None if tokenizer is None else tokenizer.config.codebook_size
    return Policy.load(policy_dir, params.base.device, codebook_size=codebook_size)


def _spell(
    tokenizer: MaskTokenizer | None, image: Image.Image, mask: np.ndarray, cut: Cut | None
) -> tuple[str, str | None]:
    """The region as text in the image, and in its crop ("" in the box space); None where there is no crop."""
    if tokenizer is None:
        return BOX.format(mask_to_prompt_box(mask)), None if cut is None else ""
    shown = [(image, mask)] if cut is None else [(image, mask), (cut.pixels, cut.mask)]
    features = tokenizer.embed_images([pixels for pixels, _ in shown])
    tokens = [masks_to_tokens(tokenizer, features[i], [mask])[0] for i, (_, mask) in enumerate(shown)]
    return tokens[0], None if cut is None else tokens[1]


def _draw(image: Image.Image, covered: np.ndarray, path: Path) -> None:
    """The image with the covered pixels tinted, written to `path` in the format of its extension."""
    pixels = np.asarray(image, dtype=np.float32).copy()
    pixels[covered] = (1 - _OPACITY) * pixels[covered] + _OPACITY * _COLOR
    with atomic_path(path) as temporary:
        Image.fromarray(pixels.astype(np.uint8)).save(temporary)
