"""Parameters of the tokenizer's sizes and training, as YAML holds them; imports neither torch nor transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from cyclegrpo.errors import ParamsError, printable_path
from cyclegrpo.params_file import read_sections

FourSizes = tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt]
Level = Annotated[int, Field(ge=0, le=3)]


class TokenizerSizes(BaseModel):
    """Sizes of the tokenizer that is trained; see `hiera_config` for their meaning and limits."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    image_size: int = Field(160, ge=32, multiple_of=32, description="Side of the resized image, in pixels.")
    embed_dim: int = Field(64, ge=8, multiple_of=8, description="Channels of the image map and of the codes.")
    stage_dims: FourSizes = Field((16, 32, 64, 128), description="Channels of the four Hiera stages.")
    stage_blocks: FourSizes = Field((1, 1, 2, 1), description="Blocks of each stage.")
    stage_heads: FourSizes = Field((1, 2, 4, 8), description="Attention heads of each stage.")
    stage_windows: FourSizes = Field((8, 4, 10, 5), description="Window side of each stage.")
    global_blocks: tuple[int, ...] = Field((3,), description="Blocks that attend to the whole map.")
    top_down_levels: tuple[Level, ...] = Field(
        (0, 1, 2, 3), description="Levels of the feature pyramid that hear from the coarser ones (the release: 2, 3)."
    )
    position_grid: int = Field(6, ge=1, description="Side of the background position embedding.")
    decoder_heads: int = Field(4, ge=1, description="Heads of both two-way transformers.")
    attention_downsample_rate: int = Field(
        2, ge=1, description="Cross-attention of both transformers has embed_dim over this many channels."
    )
    decoder_mlp_dim: int = Field(128, ge=1, description="MLP width of both two-way transformers.")
    iou_head_dim: int = Field(64, ge=1, description="Width of the IoU head.")
    codebook_size: int = Field(256, ge=2, description="Rows of each codebook.")
    multimask_output: bool = Field(False, description="Decode the best of three mask tokens instead of token 0.")


def read_all_sizes(path: Path) -> TokenizerSizes:
    """The sizes in a YAML file that names every one of them; ParamsError otherwise.

    The defaults are those of a small tokenizer that we train. A released one has others, and not all of them show in
    the shapes of its weights.
    """
    sizes = read_sections(path, TokenizerSizes)
    left_out = [name for name in TokenizerSizes.model_fields if name not in sizes.model_fields_set]
    if left_out:
        raise ParamsError(
            f"{printable_path(path)}: {', '.join(left_out)} left out; expected every size, because the shapes of the "
            "weights do not show all of them."
        )
    return sizes


PHASES = (
    "decode_start_ratio",
    "balance_end_ratio",
    "fade_start_ratio",
    "fade_end_ratio",
    "fine_loss_ratio",
    "quantize_start_ratio",
    "quantize_end_ratio",
)
FROM_NOTHING = (
    *("sizes", "torch_init", "attention_gain", "position_std"),
    *("shape_weight", "shape_end_ratio", "shape_side", "shape_hidden_dim"),
    *PHASES,
)
"""What says how a tokenizer begins and how it gets off the ground; one to go on from has that behind it."""


class TokenizerTraining(BaseModel):
    """How a mask tokenizer is trained.

    Losses and codebooks are those of the release, the phases ours, for training from nothing. Ratios of steps are
    shares of `num_steps`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    sizes: TokenizerSizes = TokenizerSizes()
    seed: int = Field(0, ge=0, description="Seed of the first weights and of every draw.")
    num_steps: int = Field(1000, ge=1, description="Optimizer steps.")
    images_per_step: int = Field(3, ge=1, description="Images in one step.")
    masks_per_image: int = Field(14, ge=1, description="Masks of each image in one step.")
    learning_rate: float = Field(2e-3, gt=0, description="Peak learning rate of AdamW.")
    weight_decay: float = Field(0.01, ge=0, description="Weight decay of AdamW.")
    warmup_ratio: float = Field(0.04, ge=0, lt=1, description="Share of steps with a rising learning rate.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")
    bce_weight: float = Field(2.0, ge=0, description="Weight of the mask cross-entropy.")
    dice_weight: float = Field(0.5, ge=0, description="Weight of the dice loss.")
    commitment_weight: float = Field(0.25, ge=0, description="Weight of the distance to the codes.")
    torch_init: bool = Field(True, description="Start layers as torch does instead of with Sam2's std of 0.02.")
    attention_gain: float = Field(
        3.0, gt=0, description="Factor of the first query and key weights of both two-way transformers."
    )
    position_std: float = Field(0.2, ge=0, description="Standard deviation of the image's first position embedding.")
    shape_weight: float = Field(1.0, ge=0, description="First weight of the losses of the head that is not kept.")
    shape_end_ratio: float = Field(0.45, ge=0, le=1, description="Here that weight has fallen to 0, in a line.")
    shape_side: int = Field(24, ge=1, description="Side of the masks that this head draws.")
    shape_hidden_dim: int = Field(256, ge=1, description="Width of this head.")
    decode_start_ratio: float = Field(0.12, ge=0, lt=1, description="Until here the mask decoder does not learn.")
    balance_end_ratio: float = Field(
        0.25, ge=0, le=1, description="Until here pixels inside a mask weigh more than others, less and less."
    )
    fade_start_ratio: float = Field(0.2, ge=0, le=1, description="Until here the image features are zero.")
    fade_end_ratio: float = Field(0.24, ge=0, le=1, description="From here the image features are whole.")
    fine_loss_ratio: float = Field(0.4, ge=0, le=1, description="From here the loss is on enlarged logits.")
    fine_loss_scale: int = Field(2, ge=1, description="So many times the logits are enlarged for the loss.")
    quantize_start_ratio: float = Field(0.45, ge=0, le=1, description="Until here embeddings are not quantised.")
    quantize_end_ratio: float = Field(0.6, ge=0, le=1, description="From here they are fully quantised.")
    codebook_decay: float = Field(0.99, ge=0, lt=1, description="Weight of the past in the codebooks' averages.")
    restart_ratio: float = Field(
        0.03, ge=0, lt=1, description="A code restarts below this share of an even count; 0 turns restarts off."
    )

    num_points: int = Field(
        0, ge=0, description="Points of each mask in the loss, most of them where it is uncertain; 0 takes all pixels."
    )
    bf16: bool = Field(False, description="Compute in bfloat16; weights, codebooks and losses stay float32.")
    save_steps: int = Field(200, ge=0, description="Steps between the states that a killed run goes on from; 0: none.")

    def without_phases(self) -> TokenizerTraining:
        """The same, for a tokenizer that is one already: quantised, decoded, on enlarged logits and with the image from
        the first step on, without the head for shapes.
        """
        return self.model_copy(update={"shape_weight": 0.0, **dict.fromkeys(PHASES, 0.0)})

    @model_validator(mode="after")
    def _phases_are_in_order(self) -> Self:
        for phase in ("fade", "quantize"):
            start, end = (getattr(self, f"{phase}_{name}_ratio") for name in ("start", "end"))
            if end < start:
                raise ValueError(f"{phase}_end_ratio is {end}; expected at least {phase}_start_ratio = {start}")
        return self
