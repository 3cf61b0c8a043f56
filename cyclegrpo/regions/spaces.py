"""Region spaces: how a region is spelled, parsed and compared, and the prompts that go with it.

The prompts are data. Those of the mask space are the release's, byte for byte (spaces and line breaks included); the
locate and describe prompts of the box space are the public code's, its prompts for rows of several regions are ours,
because the release has none. `dataclasses.replace(MASK, locate_template=...)` overrides one; every template is
checked when a space is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cyclegrpo.regions.answers import NO_TARGET, Parsed
from cyclegrpo.regions.boxes import box_to_text, parse_boxes
from cyclegrpo.regions.geometry import Box
from cyclegrpo.regions.overlap import box_overlap, mask_overlap
from cyclegrpo.regions.tokens import Code, codes_to_token, parse_tokens

NO_TARGET_ANSWER = f"<answer>{NO_TARGET}</answer>"
"""`seg_answer` of a row whose expression matches nothing."""

IMAGE = "<image>"
"""Where an image stands in a prompt."""

_MEDIA = (IMAGE, "<video>")


@dataclass(frozen=True)
class RegionSpace:
    """A kind of region, and everything that is said about it in text.

    Attributes:
        name: `mask` or `box`.
        describe_template: asks to describe the one target that was drawn; `{region}` exactly once.
        zoom_template: follows it (and `row_template`) for a region with a crop; one `<image>`; `{region}` and
            `{crop}` (the region in the crop) at most once each.
        single_template, single_zoom_template: the same two in a row of one region.
        row_template: asks to describe several regions; `{region}` exactly once, for all of them.
        row_zoom_template: follows it, once for every region with a crop.
        locate_template: asks for the region that a text describes; `{description}` exactly once.
        format: a region as text.
        parse: the regions in a model's output; never raises.
        overlap: predicted and target regions -> [0, 1]. The mask space compares decoded masks, not codes.

    Raises:
        ValueError: a template lacks a placeholder, or has one twice.
    """

    name: str
    describe_template: str
    zoom_template: str
    single_template: str
    single_zoom_template: str
    row_template: str
    row_zoom_template: str
    locate_template: str
    format: Callable[[Any], str]
    parse: Callable[[str | None], Parsed[Any]]
    overlap: Callable[[Sequence[Any], Sequence[Any]], float]

    def __post_init__(self) -> None:
        for field in ("describe_template", "single_template", "row_template"):
            self._check(field, "{region}")
        self._check("locate_template", "{description}")
        for field in ("zoom_template", "single_zoom_template", "row_zoom_template"):
            self._check(field, None)
            for placeholder in ("{region}", "{crop}"):
                if getattr(self, field).count(placeholder) > 1:
                    raise ValueError(
                        f"{field} of the {self.name} space has {placeholder} twice; expected once at most."
                    )

    def _check(self, field: str, placeholder: str | None) -> None:
        template = getattr(self, field)
        found = 1 if placeholder is None else template.count(placeholder)
        if found != 1:
            raise ValueError(
                f"{field} of the {self.name} space has {placeholder} {found} times; expected exactly once."
            )
        if sum(template.count(medium) for medium in _MEDIA) != 1:
            raise ValueError(f"{field} of the {self.name} space must hold <image> exactly once.")

    def describe(self, region: str, crop: str | None = None) -> str:
        """The prompt that asks to describe one region.

        Args:
            region: the region as text.
            crop: the region in its zoom-in crop as text (empty where the space has none), or None if there is no crop.

        >>> BOX.describe("[1, 2, 3, 4]")
        '<image>\\nGiven a detailed description of the region at bounding box [1, 2, 3, 4].'
        """
        zoom = "" if crop is None else _filled(self.zoom_template, region, crop)
        return self.describe_template.replace("{region}", region) + zoom

    def describe_single(self, region: str, crop: str | None = None) -> str:
        """The prompt of a row of one region (source `denseworld_single`); arguments as of `describe`."""
        zoom = "" if crop is None else _filled(self.single_zoom_template, region, crop)
        return self.single_template.replace("{region}", region) + zoom

    def describe_row(self, regions: Sequence[str], crops: Sequence[str | None]) -> str:
        """The prompt of a row of several regions; its images are the full one and then the crops, in order.

        Args:
            regions: the regions as text, at least one.
            crops: for each, the region in its crop as text, or None if it has no crop.

        >>> BOX.describe_row(["[1, 2, 3, 4]", "[5, 6, 7, 8]"], [None, ""]).split("regions? ")[1].split(". ")[0]
        '[1, 2, 3, 4] and [5, 6, 7, 8]'
        """
        zooms = [
            _filled(self.row_zoom_template, region, crop)
            for region, crop in zip(regions, crops, strict=True)
            if crop is not None
        ]
        return self.row_template.replace("{region}", join_regions(regions)) + "".join(zooms)

    def locate(self, description: str) -> str:
        """The prompt that asks for the region which a text describes; no marker may be left in the text."""
        return self.locate_template.replace("{description}", description)

    def answer(self, regions: Sequence[str]) -> str:
        """`seg_answer`: the regions as text, in order, or the no-target answer where there is none.

        >>> BOX.answer(["[1, 2, 3, 4]", "[5, 6, 7, 8]"]), BOX.answer([])
        ('<answer>[1, 2, 3, 4], [5, 6, 7, 8]</answer>', '<answer>No target.</answer>')
        """
        return f"<answer>{', '.join(regions)}</answer>" if regions else NO_TARGET_ANSWER


def join_regions(regions: Sequence[str]) -> str:
    """Regions as one enumeration: `a`, `a and b`, `a, b, and c`.

    Raises:
        ValueError: there is none.

    >>> [join_regions("abc"[:count]) for count in (1, 2, 3)]
    ['a', 'a and b', 'a, b, and c']
    """
    if not regions:
        raise ValueError("a prompt names no region; expected at least one.")
    if len(regions) <= 2:
        return " and ".join(regions)
    return ", ".join(regions[:-1]) + f", and {regions[-1]}"


def space(name: str, *, codebook_size: int = 256) -> RegionSpace:
    """The region space of that name.

    Args:
        codebook_size: entries per codebook of the mask tokenizer; codes outside are no regions. Boxes have none.

    Raises:
        ValueError: there is none.

    >>> space("mask") is MASK
    True
    >>> space("mask", codebook_size=64).parse(MASK.format((12, 44))).flags
    ('second_code_out_of_range',)
    """
    if name not in SPACES:
        raise ValueError(f"region space {name!r} is unknown; expected one of {', '.join(SPACES)}.")
    if name != "mask" or codebook_size == 256:
        return SPACES[name]
    return replace(
        MASK,
        format=partial(_format_mask, codebook_size=codebook_size),
        parse=partial(_parse_mask, codebook_size=codebook_size),
    )


def _filled(template: str, region: str, crop: str) -> str:
    return template.replace("{region}", region).replace("{crop}", crop)


def _parse_mask(text: str | None, *, codebook_size: int = 256) -> Parsed[Code]:
    parsed = parse_tokens(text, codebook_size=codebook_size)
    return Parsed(parsed.codes, parsed.flags, parsed.explicit_empty)


def _parse_box(text: str | None) -> Parsed[Box]:
    parsed = parse_boxes(text)
    return Parsed(parsed.boxes, parsed.flags, parsed.explicit_empty)


def _format_mask(code: Code, *, codebook_size: int = 256) -> str:
    return codes_to_token(*code, codebook_size=codebook_size)


# The line breaks and the eight leading spaces are part of the public prompts. {kind} and {spelling} are filled below.
_LOCATE = (
    "<image>\n"
    "All spatial relationships are defined from the viewer's perspective, where 'front' means closer to the viewer and "
    "'back' means farther from the viewer. Please provide the {kind} of the object the following statement describes:\n"
    "        {description}\n"
    "        Ensure that all details mentioned about the object are accurate. If a matching object is found, provide "
    "its {kind} in the format {spelling}. If no matching object is found, output null."
)

MASK = RegionSpace(
    name="mask",
    describe_template=("<image>\nCould you please give me a detailed description of the following region? {region}."),
    zoom_template=" Zoom in on {region} with the perspective as <image>, {crop}.",
    single_template="<image>\nProvide a detailed description of this region {region}.",
    single_zoom_template=" Zoom in with the perspective as <image>, {crop}.",
    row_template=(
        "<image>\nCould you please give me a detailed description of the following regions? {region}. "
        "Please respond with interleaved segmentation masks for the corresponding parts of the answer."
    ),
    row_zoom_template=" Zoom in on {region} with the perspective as <image>, {crop}.",
    locate_template=_LOCATE.replace("{kind}", "segmentation mask").replace(
        "{spelling}", "`<|mt_start|><|mt_xxxx|><|mt_xxxx|><|mt_end|>`"
    ),
    format=_format_mask,
    parse=_parse_mask,
    overlap=mask_overlap,
)

BOX = RegionSpace(
    name="box",
    describe_template="<image>\nGiven a detailed description of the region at bounding box {region}.",
    zoom_template=" Zoom in with the perspective as<image>, give a detailed description of this cropped region.",
    single_template="<image>\nGiven a detailed description of the region at bounding box {region}.",
    single_zoom_template=" Zoom in with the perspective as<image>, give a detailed description of this cropped region.",
    row_template=(
        "<image>\nCould you please give me a detailed description of the following regions? {region}. "
        "Please respond with interleaved bounding boxes for the corresponding parts of the answer."
    ),
    row_zoom_template=" Zoom in on {region} with the perspective as <image>.",
    locate_template=_LOCATE.replace("{kind}", "bounding box").replace(
        "{spelling}", "`[x1, y1, x2, y2]` where coordinates are normalized to [0, 1000]"
    ),
    format=box_to_text,
    parse=_parse_box,
    overlap=box_overlap,
)

SPACES = {space.name: space for space in (MASK, BOX)}
