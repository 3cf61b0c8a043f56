"""One image's regions in both spellings, tokens and masks: decode what came as tokens, encode what came as a mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cyclegrpo.dataset.schema import rle_to_text
from cyclegrpo.dataset.tokenizers import OpenTokenizer, masks_to_tokens
from cyclegrpo.errors import DataError
from cyclegrpo.regions.geometry import Rle, box_to_mask, mask_to_rle, rle_to_mask
from cyclegrpo.regions.tokens import ParsedTokens, parse_tokens

if TYPE_CHECKING:
    from PIL import Image

    from cyclegrpo.tokenizer import ImageFeatures, MaskTokenizer


@dataclass(slots=True)
class SpelledRegion:
    """A region in both spellings, or the reason why it is none.

    Attributes:
        tokens: its token group; None in the box space.
        rle: its mask; None where there is a reason.
        reason, message: why the region is dropped, as in `Skip`.
    """

    tokens: str | None = None
    rle: Rle | None = None
    reason: str | None = None
    message: str = ""


class ImageTokens:
    """Masks <-> codes of one image, which is embedded once, when it is first needed."""

    def __init__(self, image: Image.Image, open_tokenizer: OpenTokenizer) -> None:
        self.image = image
        self._open_tokenizer = open_tokenizer

    @cached_property
    def tokenizer(self) -> MaskTokenizer:
        """The tokenizer, loaded when the first image needs it."""
        return self._open_tokenizer()

    @cached_property
    def features(self) -> ImageFeatures:
        """The image's features."""
        return self.tokenizer.embed_images([self.image])[0]

    def parse(self, text: str) -> ParsedTokens:
        """The token groups of a text, checked against the tokenizer's codebooks."""
        return parse_tokens(text, codebook_size=self.tokenizer.config.codebook_size)

    def codes(self, tokens: str) -> tuple[int, int]:
        """The codes of one well-formed token group."""
        code0, code1 = self.parse(tokens).codes[0]
        assert code1 is not None  # strict parsing gives both
        return code0, code1

    def decode(self, codes: Sequence[tuple[int, int]]) -> Iterator[np.ndarray]:
        """The codes' masks one after the other, bool (H, W) at the image's size."""
        return self.tokenizer.iterate_masks(self.features, np.array(codes), self.image.height, self.image.width)

    def encode(self, masks: Iterable[np.ndarray]) -> list[str]:
        """The masks' tokens. Masks are bool (H, W), none of them empty; few of them are held at a time."""
        return masks_to_tokens(self.tokenizer, self.features, masks)


def spell_regions(
    regions: Sequence[Mapping[str, Any]], tokens: ImageTokens, *, space: str, min_area_px: int = 1
) -> list[SpelledRegion]:
    """Regions of one image -> the same regions in both spellings, in the same order.

    Args:
        regions: as fields of `sources.Region`.
        tokens: the image's masks <-> codes.
        space: `mask`, or `box`, in which tokens are decoded but nothing is encoded.
        min_area_px: masks with fewer pixels are dropped (`below_min_area`).

    Equal regions are decoded and encoded once. Dropped are also: `bad_tokens` (malformed, or a code out of range),
    `empty_mask`, `bad_rle`, `box_without_mask` (a box in the mask space: the tokenizer needs a mask).
    """
    spelled = [_read_region(region, tokens, space) for region in regions]
    codes = {region.tokens: tokens.codes(region.tokens) for region in spelled if region.tokens is not None}
    rles: dict[str, Rle] = {}
    if codes:
        rles = {
            token: mask_to_rle(mask) for token, mask in zip(codes, tokens.decode(list(codes.values())), strict=True)
        }
    for region in spelled:
        if region.tokens is not None:
            region.rle = rles[region.tokens]
        if region.rle is not None:
            _drop_small(region, min_area_px)
    if space == "mask":
        _encode_missing([region for region in spelled if region.rle is not None and region.tokens is None], tokens)
    else:
        for region in spelled:
            region.tokens = None
    return spelled


def _read_region(region: Mapping[str, Any], tokens: ImageTokens, space: str) -> SpelledRegion:
    """The region as its source spells it: `tokens` or `rle` filled in, or a reason."""
    height, width = tokens.image.height, tokens.image.width
    if region["tokens"] is not None:
        parsed = tokens.parse(region["tokens"])
        if parsed.flags or len(parsed.tokens) != 1:
            flags = ", ".join(parsed.flags) or f"{len(parsed.tokens)} groups"
            return SpelledRegion(reason="bad_tokens", message=f"{region['tokens']!r:.120}: {flags}")
        return SpelledRegion(tokens=parsed.tokens[0])
    if region["rle"] is not None:
        try:
            return SpelledRegion(rle=mask_to_rle(rle_to_mask(region["rle"], height=height, width=width)))
        except DataError as error:
            return SpelledRegion(reason="bad_rle", message=str(error))
    if space == "mask":
        return SpelledRegion(
            reason="box_without_mask", message="the mask space needs a mask; set base.region_space to box"
        )
    return SpelledRegion(rle=mask_to_rle(box_to_mask(region["box"], height, width)))


def _drop_small(region: SpelledRegion, min_area_px: int) -> None:
    assert region.rle is not None
    area = int(rle_to_mask(region.rle).sum())
    if area == 0:
        region.reason, region.message = "empty_mask", "the mask has no pixel"
    elif area < min_area_px:
        region.reason, region.message = "below_min_area", f"{area} pixels; regions.min_area_px is {min_area_px}"
    if region.reason is not None:
        region.rle = None


def _encode_missing(regions: Sequence[SpelledRegion], tokens: ImageTokens) -> None:
    """Fill in the tokens of regions with true masks; equal masks are encoded once."""
    distinct = {rle_to_text(region.rle): region.rle for region in regions if region.rle is not None}
    if not distinct:
        return
    encoded = tokens.encode(rle_to_mask(rle) for rle in distinct.values())
    token_of = dict(zip(distinct, encoded, strict=True))
    for region in regions:
        if region.rle is not None:
            region.tokens = token_of[rle_to_text(region.rle)]
