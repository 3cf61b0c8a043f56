"""params.yaml as typed, frozen models: one per section, sections named after the stages, plus `base`.

`params_file.py` reads the file. An unknown key, a wrong type and a value out of range are errors. The defaults are
those of the paper's 4B run, or of the released data; the shipped params.yaml says what the miniature uses instead.
"""

from __future__ import annotations

import warnings
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Kind = Literal["describe", "expression", "no_target"]
Ratio = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """What all sections share: unknown keys are errors, values never change, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Source(Section):
    """One annotation file with the images that it names."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_.-]+$", description="The source's name in manifests, reports and image lists."
    )
    format: Literal["denseworld", "grefcoco"] = Field(description="Which reader reads the annotations.")
    annotations: Path = Field(description="The annotation file (JSON).")
    instances: Path | None = Field(None, description="COCO instances file; grefcoco only.")
    image_root: Path = Field(description="The folder below which the named images lie. Never changed.")
    link_as: str = Field(description="The folder below dataset_dir/images in which the links to the images lie.")
    split: str | None = Field(None, description="The split to read (train, val, ...); grefcoco only.")
    kinds: tuple[Kind, ...] = Field(min_length=1, description="Which kinds of rows to make of the records.")
    limit: int | None = Field(None, ge=1, description="Read the first so many records; null reads all.")

    @field_validator("link_as")
    @classmethod
    def _link_as_below_images(cls, link_as: str) -> str:
        path = PurePosixPath(link_as)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in link_as or path.parts[0] == "crops":
            raise ValueError("expected a relative folder without `..`, other than `crops`")
        return link_as

    @model_validator(mode="after")
    def _fields_fit_format(self) -> Source:
        if self.format == "grefcoco":
            if self.instances is None or self.split is None:
                raise ValueError(f"source {self.name}: format grefcoco needs both `instances` and `split`")
            if "describe" in self.kinds:
                raise ValueError(
                    f"source {self.name}: format grefcoco gives expression and no_target rows, not describe"
                )
        elif self.instances is not None or self.split is not None or self.kinds != ("describe",):
            raise ValueError(
                f"source {self.name}: format denseworld takes no `instances` and no `split`, and gives [describe]"
            )
        return self


class Base(Section):
    """What several stages share: where things lie, and the seed."""

    seed: int = Field(0, ge=0, lt=2**32, description="Seed of every random choice.")
    region_space: Literal["mask", "box"] = Field("mask", description="How a region is spelled: mask tokens or a box.")
    dataset_dir: Path = Field(Path("data/dataset"), description="The dataset in the release layout.")
    work_dir: Path = Field(Path("data/work"), description="Manifests and tables between the stages.")
    tokenizer: Path = Field(description="Folder of the mask tokenizer (SAMTok) as `save_pretrained` writes it.")
    policy: Path = Field(description="Folder of the vision-language policy to train, with its processor.")
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$", description="auto takes a GPU where there is one."
    )
    tokenizer_dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="What the mask tokenizer computes in; auto is bfloat16 on a GPU and float32 elsewhere. Both give "
        "the same codes for nine masks in ten.",
    )
    num_workers: int = Field(2, ge=0, description="Processes for CPU work; 0 works in the main process.")
    max_skip_ratio: Ratio = Field(0.01, description="A stage fails when it skips a larger share of its records.")
    annotation_root: Path = Field(Path("data/raw"), description="Every annotation file lies below it; DVC watches it.")
    sources: tuple[Source, ...] = Field(min_length=1, description="The annotation files to make rows of.")

    @property
    def is_limited(self) -> bool:
        """Whether some source gives only the first of its records."""
        return any(source.limit is not None for source in self.sources)

    @model_validator(mode="after")
    def _sources_apart(self) -> Base:
        for field in ("name", "link_as"):
            values = [getattr(source, field) for source in self.sources]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                raise ValueError(f"two sources have the {field} {twice[0]}; each needs its own")
        return self


with warnings.catch_warnings():
    # `copy` hides a deprecated method of BaseModel that nobody calls here; pydantic warns of that.
    warnings.filterwarnings("ignore", message='Field name "copy"', category=UserWarning)

    class Link(Section):
        """Stage link: the images that the sources name, below the dataset directory."""

        copy: bool = Field(False, description="Copy the images instead of linking them.")  # type: ignore[assignment]


class Regions(Section):
    """Stage regions: every source's regions, as tokens and as masks."""

    min_area_px: int = Field(1, ge=1, description="Regions with fewer pixels are skipped, and counted.")


class Crop(Section):
    """Stage crop: zoom-in crops of small regions."""

    enabled: bool = Field(True, description="false makes rows without crops (ablation).")
    max_area_fraction: Ratio = Field(0.30, description="A crop is cut where box area / image area is below this.")
    min_side_px: int = Field(140, ge=1, description="A shorter side of the box is widened to this.")
    enlarge_to_px: int = Field(
        280, ge=1, description="A crop whose longer side is below this gets it as its shorter side."
    )
    jpeg_quality: int = Field(95, ge=1, le=100, description="Quality of the saved crops.")


class Tokenize(Section):
    """Stage tokenize: the tokens of every crop's mask."""

    batch_size: int = Field(
        8, ge=1, description="Crops embedded together; where they take more memory than it is given, in several passes."
    )


class Build(Section):
    """Stage build: rows in the release layout."""

    max_rows_per_file: int = Field(5000, ge=1, description="Rows per parquet file.")


class Check(Section):
    """Stage check: every row validated."""

    max_problems: int = Field(20, ge=0, description="Problems to print per kind; all are counted and written.")
    deep: bool = Field(
        False, description="Also decode every region and compare it with its crop; not there yet, true is refused."
    )
    max_pixels: int = Field(100_000_000, ge=1, description="Larger images (height * width) are problems.")


class Prompts(Section):
    """How many prompts of each kind one training step draws."""

    caption: int = Field(122, ge=0, description="Regions to describe and locate again.")
    no_target: int = Field(6, ge=0, description="Expressions that match nothing.")
    expression: int = Field(0, ge=0, description="Given expressions to locate.")


class Reward(Section):
    """What a rollout earns."""

    overlap: Literal["iou", "tokens"] = Field(
        "iou", description="Pixel IoU of decoded masks, or the graded token match."
    )
    resolution: Literal["logits", "image"] = Field(
        "logits", description="Size of the masks whose IoU is taken: the decoder's or the image's; tokens need none."
    )
    no_repeat: bool = Field(True, description="Add the score for not repeating oneself.")
    clean: bool = Field(True, description="A caption that leaks a location earns nothing.")
    format: bool = Field(True, description="Add the score for a well-formed region in a grounding.")
    shuffle: bool = Field(
        False, description="Shuffle the caption rewards within the batch (control run: nothing to learn)."
    )


class Train(Section):
    """Stage train: CycleGRPO."""

    num_steps: int = Field(
        161, ge=1, description="Optimizer steps; 161 steps of 128 prompts are one pass over the release."
    )
    prompts: Prompts = Prompts()
    num_captions: int = Field(6, ge=1, description="G: captions per region, and answers per prompt of the other kinds.")
    num_groundings: int = Field(6, ge=1, description="K: groundings per caption.")
    temperature: float = Field(1.0, gt=0.0, description="Sampling temperature of the rollouts.")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="Nucleus of the rollouts; 1 keeps all tokens.")
    micro_batches: int = Field(1, ge=1, description="Parts that a task's answers are computed in, one after the other.")
    learning_rate: float = Field(1e-6, ge=0.0, description="Of AdamW.")
    lr_schedule: Literal["constant", "linear"] = Field("constant", description="linear falls to 0 at the last step.")
    weight_decay: float = Field(0.01, ge=0.0)
    warmup_steps: int = Field(0, ge=0, description="Steps in which the learning rate rises from 0.")
    beta: float = Field(0.01, ge=0.0, description="Weight of the KL to the frozen reference.")
    epsilon_low: float = Field(0.2, gt=0.0, lt=1.0, description="Clipping of the probability ratio, below 1.")
    epsilon_high: float = Field(0.3, gt=0.0, description="Clipping of the probability ratio, above 1.")
    max_grad_norm: float = Field(1.0, gt=0.0)
    optimise: Literal["both", "captions", "groundings"] = Field("both", description="Which half of the cycle learns.")
    caption_weight: float = Field(0.5, gt=0.0, description="Weight of the caption task in the loss.")
    grounding_weight: float = Field(0.5, gt=0.0, description="Weight of the grounding task in the loss.")
    locate_with: Literal["policy", "reference"] = Field("policy", description="Who grounds the captions.")
    scale_groundings: Literal["batch", "group"] = Field("batch", description="Whose deviation divides the advantages.")
    min_cycle_score: Ratio = Field(
        0.3, description="Groundings of captions that score less carry no gradient; 0: all do."
    )
    zoom: bool = Field(True, description="Show the region's crop beside the image, where it has one.")
    freeze_vision: bool = Field(True, description="The vision tower does not learn.")
    bf16: bool = Field(True, description="Compute in bfloat16; the optimizer's states stay float32.")
    gradient_checkpointing: bool = Field(True, description="Less memory, more time.")
    max_caption_tokens: int = Field(512, ge=1, description="Longest caption, in tokens.")
    max_grounding_tokens: int = Field(256, ge=1, description="Longest grounding answer, in tokens.")
    save_steps: int = Field(20, ge=1, description="Steps between checkpoints.")
    logging_steps: int = Field(1, ge=1, description="Steps between lines of the curve.")
    reward: Reward = Reward()


class Evaluate(Section):
    """Stage evaluate: held-out regions, before and after."""

    annotations: Path = Field(description="Expressions of the held-out split (gRefCOCO JSON).")
    instances: Path = Field(description="COCO instances file of the held-out split.")
    image_root: Path = Field(description="The folder below which its images lie.")
    split: str = Field("testA", description="The split to read.")
    truth: Path | None = Field(None, description="What every object truly is (miniature only); null where unknown.")
    num_regions: int = Field(256, ge=1, description="Held-out regions to describe and locate.")
    num_samples: int = Field(4, ge=0, description="Sampled captions per region, beside the greedy one.")
    temperature: float = Field(1.0, gt=0.0, description="Of the sampled captions.")
    batch_size: int = Field(32, ge=1, description="Prompts per batch of generation.")
    max_caption_tokens: int = Field(512, ge=1, description="Longest caption, in tokens.")
    max_grounding_tokens: int = Field(256, ge=1, description="Longest grounding answer, in tokens.")
    frozen_grounder: bool = Field(True, description="Also score the new captions with the grounder from before.")
    num_examples: int = Field(12, ge=0, description="Examples to draw in the report.")


class Report(Section):
    """Stage report: the page."""

    title: str = Field("CycleGRPO", min_length=1)


class Params(Section):
    """The whole params file."""

    base: Base
    link: Link = Link()
    regions: Regions = Regions()
    crop: Crop = Crop()
    tokenize: Tokenize = Tokenize()
    build: Build = Build()
    check: Check = Check()
    train: Train = Train()
    evaluate: Evaluate
    report: Report = Report()


class SourceParams(BaseModel):
    """The sections that reading images and masks of the sources takes; the others of the file are let be."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    base: Base
    check: Check = Check()


STAGES: tuple[str, ...] = tuple(name for name in Params.model_fields if name != "base")
"""The stages of the pipeline in their order, which are also the sections of the file."""
