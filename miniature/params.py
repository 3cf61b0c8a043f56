"""Typed parameters of the miniature's own stages (`miniature/params.yaml`): one section per stage, and `scenes`.

`scenes` gives every use its own range of scene seeds, so that a scene that one stage is trained on is never one that
another is tested on.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from cyclegrpo.params import Ratio, Section
from cyclegrpo.params_file import read_sections
from cyclegrpo.tokenizer.params import TokenizerTraining
from miniature.scene import VOCABULARY

PARAMS_FILE = "miniature/params.yaml"


def _check_attributes(ratios: dict[str, float]) -> dict[str, float]:
    if unknown := sorted(set(ratios) - set(VOCABULARY)):
        raise ValueError(f"unknown attribute {unknown[0]}; expected some of {', '.join(VOCABULARY)}")
    return ratios


def _check_unambiguous(ratios: dict[str, float]) -> dict[str, float]:
    if not (ratios.get("row", 0.0) > 0.0 and ratios.get("column", 0.0) > 0.0):
        raise ValueError("expected row and column above 0, or two equal objects have no expression of their own")
    return ratios


CaptionWords = Annotated[dict[str, Ratio], Field(min_length=1), AfterValidator(_check_attributes)]
"""How often a caption names each attribute; an attribute that is not listed never is."""
ExpressionWords = Annotated[CaptionWords, AfterValidator(_check_unambiguous)]
"""How often an expression names each attribute, before it is drawn again until it fits its target alone."""


class SceneRange(Section):
    """The scenes of the seeds `first_seed`, `first_seed + 1`, ..."""

    first_seed: int = Field(ge=0, description="Seed of the first scene.")
    num_scenes: int = Field(ge=1, le=10_000_000, description="Number of scenes.")

    @property
    def seeds(self) -> range:
        """The seeds, ascending.

        >>> list(SceneRange(first_seed=5, num_scenes=2).seeds)
        [5, 6]
        """
        return range(self.first_seed, self.first_seed + self.num_scenes)


class Scenes(Section):
    """Which scenes each use draws. No two ranges overlap."""

    v3det: SceneRange = Field(description="V3Det-like images, which the training rows describe.")
    train: SceneRange = Field(description="gRefCOCO split train.")
    val: SceneRange = Field(description="gRefCOCO split val, on which settings are chosen.")
    testA: SceneRange = Field(description="gRefCOCO split testA, for the final figures only.")
    tokenizer: SceneRange = Field(description="Training of the small tokenizer, drawn in memory.")
    tokenizer_heldout: SceneRange = Field(description="Its held-out scenes, drawn in memory.")
    coldstart: SceneRange = Field(description="Cold start of the small policy, drawn in memory.")

    def range_of(self, use: str) -> SceneRange:
        """The range of a use by its name; KeyError for an unknown one."""
        return dict(self)[use]

    def __iter__(self) -> Iterator[tuple[str, SceneRange]]:  # type: ignore[override]
        """Every use's name and range."""
        return ((name, getattr(self, name)) for name in type(self).model_fields)

    @model_validator(mode="after")
    def _ranges_are_disjoint(self) -> Self:
        for (name, first), (other_name, second) in combinations(self, 2):
            if max(first.first_seed, second.first_seed) < min(first.seeds.stop, second.seeds.stop):
                raise ValueError(
                    f"the seeds of scenes.{name} ({first.seeds.start} to {first.seeds.stop - 1}) and of "
                    f"scenes.{other_name} ({second.seeds.start} to {second.seeds.stop - 1}) overlap; "
                    "move a first_seed, or draw fewer"
                )
        return self


class World(Section):
    """Stage world: images, masks and expressions on disk."""

    raw_dir: Path = Field(description="Folder of the raw data. Holds nothing else.")
    seed: int = Field(ge=0, lt=2**32, description="Seed of the expressions; scenes have their own.")
    expression_words: ExpressionWords = Field(description="How often an expression names each attribute.")
    multi_target_ratio: Ratio = Field(description="Share of COCO images with a third ref, of several targets.")
    jpeg_quality: int = Field(ge=1, le=100, description="Quality of the images; chroma is kept at full size (4:4:4).")


class WordsBySize(Section):
    """How often a caption names each attribute of a small object, and of a large one."""

    small: CaptionWords
    large: CaptionWords

    def of(self, size: str) -> CaptionWords:
        """Those of a size by its word."""
        return self.small if size == "small" else self.large


class ColdStart(Section):
    """Stage coldstart: the small policy before CycleGRPO, deliberately left improvable."""

    seed: int = Field(ge=0, lt=2**32, description="Seed of the first weights and of every draw.")
    warmup_steps: int = Field(ge=0, description="Steps in which visual tokens learn to name their objects.")
    warmup_learning_rate: float = Field(gt=0.0)
    warmup_images_per_step: int = Field(ge=1, description="Scenes per step of the vision warm-up.")
    num_steps: int = Field(ge=1, description="Steps of supervised fine-tuning.")
    learning_rate: float = Field(gt=0.0)
    images_per_step: int = Field(ge=1, description="Scenes per step.")
    describe_turns: int = Field(ge=1, description="Descriptions per scene and step.")
    attributes_ratio: Ratio = Field(description="Share of these that are asked for all attributes by name.")
    zoom_ratio: Ratio = Field(description="Share of descriptions that come with the zoom-in crop.")
    locate_pairs: int = Field(
        ge=0,
        description="Pairs of groundings per scene and step: an expression, and with one word changed to fit nothing.",
    )
    locate_turns: int = Field(ge=0, description="Other groundings per scene and step.")
    no_target_ratio: Ratio = Field(description="Share of these whose expression fits nothing.")
    unambiguous_ratio: Ratio = Field(description="Share of the others whose expression fits its target alone.")
    caption_words: WordsBySize = Field(description="How often a caption names each attribute, by its object's size.")
    detailed_ratio: Ratio = Field(description="Share of captions that are detailed: words by `detailed_words`.")
    detailed_words: CaptionWords = Field(description="How often a detailed caption names each attribute.")
    expression_words: ExpressionWords = Field(description="How often an expression to locate names each attribute.")


class Annotate(Section):
    """Stage annotate: the DenseWorld-like file, whose regions are spelled as tokens."""

    seed: int = Field(ge=0, lt=2**32, description="Seed of prompts, texts and extra regions.")
    json_ratio: Ratio = Field(description="Share of records that answer with a fenced JSON block.")
    part_ratio: Ratio = Field(description="Share of records with a part or a union of objects as one more region.")
    num_without_regions: int = Field(ge=0, description="So many of the records hold no region at all.")
    batch_size: int = Field(ge=1, description="Images per pass of the image encoder.")


class MiniatureParams(Section):
    """The whole file."""

    scenes: Scenes
    world: World
    tokenizer: TokenizerTraining = Field(description="Stage tokenizer: the small mask tokenizer.")
    coldstart: ColdStart
    annotate: Annotate


def load_miniature_params(path: str | Path = PARAMS_FILE) -> MiniatureParams:
    """The checked parameters of the file; ParamsError, one line with the nearest name, if anything is wrong."""
    return read_sections(path, MiniatureParams)
