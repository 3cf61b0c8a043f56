"""Parameters of the tokenizer's training, as a section of a params file; imports neither torch nor transformers."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TokenizerSizes(BaseModel):
    """Sizes of the tokenizer that is trained; see `hiera_config` for their meaning and limits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image_size: int = Field(192, ge=32, multiple_of=32, description="Side of the resized image, in pixels.")
    embed_dim: int = Field(64, ge=8, multiple_of=8, description="Channels of the image map and of the codes.")
    stage_dims: tuple[int, int, int, int] = Field((16, 32, 64, 128), description="Channels of the four Hiera stages.")
    stage_blocks: tuple[int, int, int, int] = Field((1, 1, 2, 1), description="Blocks of each stage.")
    stage_heads: tuple[int, int, int, int] = Field((1, 2, 4, 8), description="Attention heads of each stage.")
    stage_windows: tuple[int, int, int, int] = Field((8, 4, 6, 3), description="Window side of each stage.")
    global_blocks: tuple[int, ...] = Field((3,), description="Blocks that attend to the whole map.")
    position_grid: int = Field(6, ge=1, description="Side of the background position embedding.")
    decoder_heads: int = Field(4, ge=1, description="Heads of both two-way transformers.")
    decoder_mlp_dim: int = Field(128, ge=1, description="MLP width of both two-way transformers.")
    iou_head_dim: int = Field(64, ge=1, description="Width of the IoU head.")
    codebook_size: int = Field(256, ge=2, description="Rows of each codebook.")
    multimask_output: bool = Field(False, description="Decode the best of three mask tokens instead of token 0.")


class TokenizerTraining(BaseModel):
    """How a mask tokenizer is trained from nothing. Ratios of steps are shares of `num_steps`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sizes: TokenizerSizes = TokenizerSizes()
    seed: int = Field(0, ge=0, description="Seed of the first weights and of every draw.")
    num_steps: int = Field(500, ge=1, description="Optimizer steps.")
    images_per_step: int = Field(10, ge=1, description="Images in one step.")
    masks_per_image: int = Field(3, ge=1, description="Masks of each image in one step.")
    learning_rate: float = Field(1.5e-3, gt=0, description="Peak learning rate of AdamW.")
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
    balance_end_ratio: float = Field(
        0.4, ge=0, le=1, description="Until here the pixels of a mask weigh more than the others, less and less."
    )
    quantize_start_ratio: float = Field(0.15, ge=0, le=1, description="Until here embeddings are not quantised.")
    fade_start_ratio: float = Field(0.3, ge=0, le=1, description="Until here the image features are zero.")
    fade_end_ratio: float = Field(0.5, ge=0, le=1, description="From here the image features are whole.")
    no_image_ratio: float = Field(
        0.3, ge=0, lt=1, description="Share of the steps after the fade that see no image, so that codes keep the shape."
    )
    fine_loss_ratio: float = Field(0.5, ge=0, le=1, description="From here the loss is on enlarged logits.")
    fine_loss_scale: int = Field(2, ge=1, description="So many times the logits are enlarged for the loss.")
    codebook_decay: float = Field(0.97, ge=0, lt=1, description="Weight of the past in the codebooks' averages.")
    restart_ratio: float = Field(
        0.03, ge=0, lt=1, description="A code restarts below this share of an even count; 0 turns restarts off."
    )

    @model_validator(mode="after")
    def _fade_is_ordered(self) -> Self:
        if self.fade_end_ratio < self.fade_start_ratio:
            raise ValueError(
                f"fade_end_ratio is {self.fade_end_ratio}; expected at least fade_start_ratio = {self.fade_start_ratio}"
            )
        return self
