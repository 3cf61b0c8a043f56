"""Images with masks, which the tokenizer is trained and measured on: of any source that has true masks.

The order is that of the annotation files, and each image comes once with its distinct masks. What cannot be used is
counted by reason, and named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cyclegrpo.errors import DataError, ParamsError
from cyclegrpo.files import digest
from cyclegrpo.images import load_image_below
from cyclegrpo.params import Params, Source, SourceParams
from cyclegrpo.regions.rle import Rle, rle_to_mask
from cyclegrpo.sources import Skip, read_source


@dataclass(frozen=True)
class MaskExample:
    """An image with masks of its regions.

    Attributes:
        name: which image this is, for messages and tables.
        image: uint8 RGB (H, W, 3).
        masks: bool (N, H, W), none of them empty.
        kinds: what each mask is of (`whole`, `part`), or empty.
        numbers: which of the image's distinct masks each is, from 0; empty where they are all of them.
    """

    name: str
    image: np.ndarray
    masks: np.ndarray
    kinds: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()


@dataclass
class _Annotated:
    """One image of a source and the masks that its records name, by their RLE."""

    root: Path
    image: str
    size: tuple[int, int] | None
    rles: dict[tuple[object, ...], Rle] = field(default_factory=dict)


class SourceExamples:
    """The images of some sources that have true masks; `len` many, each opened when it is asked for.

    Args:
        params: `base.sources`, and `check.max_pixels`.
        names: which sources; None takes all.
        limit: only so many images; None takes all.

    `skipped` counts by reason what could not be used, as far as it has been met, each image and each mask once;
    `unusable` says what is wrong with images, and `unusable_masks` with masks. Raises DataError where the sources have
    no true mask at all.
    """

    def __init__(
        self, params: Params | SourceParams, *, names: Sequence[str] | None = None, limit: int | None = None
    ) -> None:
        self.max_pixels = params.check.max_pixels
        self.skipped: Counter[str] = Counter()
        self.unusable: dict[int, str] = {}
        self.unusable_masks: dict[tuple[int, int], str] = {}
        found: dict[tuple[object, ...], _Annotated] = {}
        sources = _chosen(params.base.sources, names)
        for source in sources:
            self._collect(source, found)
        self.images = list(islice(found.values(), limit))
        if not self.images:
            shown = ", ".join(source.name for source in sources)
            raise DataError(f"no image with a true mask in {shown} ({self.reasons}); choose a source with masks.")

    @property
    def reasons(self) -> str:
        """Why something could not be used, and how often, with the first unusable image."""
        counts = [f"{count} {reason}" for reason, count in self.skipped.most_common()]
        return "; ".join([", ".join(counts) or "no records", *self.problems[:1]])

    @property
    def problems(self) -> list[str]:
        """What is wrong with images, and then with masks, as far as it has been met; each names its image."""
        return [*_in_order(self.unusable), *_in_order(self.unusable_masks)]

    def state_dict(self) -> dict[str, Any]:
        """What has been met, for a training that goes on after a kill."""
        return {"skipped": dict(self.skipped), "images": self.unusable, "masks": self.unusable_masks}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.skipped = Counter(state["skipped"])
        self.unusable, self.unusable_masks = dict(state["images"]), dict(state["masks"])

    def require_usable(self, max_skip_ratio: float, outcome: str) -> None:
        """DataError where a larger share of the images, or of the masks, could not be used.

        Args:
            outcome: what has been made of the others, for the message.
        """
        num_masks = sum(len(image.rles) for image in self.images)
        met = (("images", _in_order(self.unusable), len(self)), ("masks", _in_order(self.unusable_masks), num_masks))
        for what, bad, number in met:
            if len(bad) > max_skip_ratio * number:
                raise DataError(
                    f"{len(bad)} of {number} {what} cannot be used, more than base.max_skip_ratio = {max_skip_ratio} "
                    f"allows; the first: {bad[0]} {outcome}"
                )

    @property
    def digest(self) -> str:
        """Of the images' names and their masks, as the annotations give them."""
        return digest([[image.image, *sorted(map(str, image.rles))] for image in self.images])

    def _collect(self, source: Source, found: dict[tuple[object, ...], _Annotated]) -> None:
        for record in read_source(source):
            if isinstance(record, Skip):
                self.skipped[record.reason] += 1
                continue
            for region in record.regions:
                if region.rle is None:
                    self.skipped["no_true_mask"] += 1
                    continue
                key = (source.name, record.image, record.size)
                image = found.setdefault(key, _Annotated(source.image_root, record.image, record.size))
                image.rles.setdefault((str(region.rle["counts"]), *region.rle["size"]), region.rle)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[MaskExample]:
        return (example for example in map(self.load, range(len(self))) if example is not None)

    def load(self, index: int) -> MaskExample | None:
        """The image of that number with its masks; None, and counted, where either cannot be used."""
        annotated = self.images[index]
        try:
            image = load_image_below(
                annotated.root, annotated.image, declared_size=annotated.size, max_pixels=self.max_pixels
            )
        except DataError as error:
            if index not in self.unusable:
                self.skipped["image_unusable"] += 1
                self.unusable[index] = str(error)
            return None
        found = [self._mask(index, number, image.height, image.width) for number in range(len(annotated.rles))]
        masks = {number: mask for number, mask in enumerate(found) if mask is not None}
        if not masks:
            return None
        return MaskExample(annotated.image, np.asarray(image), np.stack(list(masks.values())), numbers=tuple(masks))

    def _mask(self, index: int, number: int, height: int, width: int) -> np.ndarray | None:
        annotated = self.images[index]
        try:
            mask = rle_to_mask(list(annotated.rles.values())[number], height=height, width=width)
            reason, message = ("", "") if mask.any() else ("empty_mask", "holds no pixel.")
        except DataError as error:
            reason, message = "bad_rle", str(error)
        if reason and (index, number) not in self.unusable_masks:
            self.skipped[reason] += 1
            self.unusable_masks[index, number] = f"{annotated.root / annotated.image}, mask {number}: {message}"
        return None if reason else mask

    def draw(self, rng: np.random.Generator, num_masks: int) -> tuple[np.ndarray, np.ndarray]:
        """A training example: an image, and so many of its masks, again from the first where it has fewer.

        Raises DataError where a hundred images in a row cannot be used.
        """
        for _ in range(100):
            example = self.load(int(rng.integers(len(self))))
            if example is not None:
                order = rng.permutation(len(example.masks))
                return example.image, example.masks[np.resize(order, num_masks)]
        raise DataError(f"no usable image in a hundred draws ({self.reasons}); mend the source.")


def _in_order(messages: Mapping[Any, str]) -> list[str]:
    return [message for _, message in sorted(messages.items())]


def _chosen(sources: Sequence[Source], names: Sequence[str] | None) -> list[Source]:
    if not names:
        return list(sources)
    by_name = {source.name: source for source in sources}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise ParamsError(f"no source is named {unknown[0]}; expected one of {', '.join(by_name)}.")
    return [by_name[name] for name in names]
