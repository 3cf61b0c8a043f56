"""Configuration of the mask tokenizer: a Sam2 model, a second two-way transformer, and the codebooks.

`hiera_config` builds one from plain numbers, for any Hiera size; `sam2_config("large")` is the released
`mask_tokenizer_256x2`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig, Sam2Config
from transformers.models.sam2.configuration_sam2 import Sam2MaskDecoderConfig

from cyclegrpo.errors import ParamsError

if TYPE_CHECKING:
    from cyclegrpo.tokenizer.params import TokenizerSizes

COMPUTE_DTYPES = ("auto", "float32", "bfloat16")


@strict
class MaskTokenizerConfig(PreTrainedConfig):
    """Sizes of a mask tokenizer.

    Args:
        sam2_config: the Sam2 model that embeds images and prompts and decodes masks.
        mask_encoder_config: the two-way transformer that embeds a mask (only the transformer's fields are read).
        codebook_size: rows of each codebook.
        codebook_depth: number of residual codebooks, that is codes of one mask.
        multimask_output: True decodes the mask token with the highest predicted IoU of the last three (the release);
            False decodes mask token 0.
        mask_threshold: a pixel belongs to the mask where its logit is above this (the release: the logit, not the
            probability).
        compute_dtype: float32, bfloat16, or auto: bfloat16 on a GPU and float32 elsewhere. Both codes stay equal for
            88 to 90 % of masks.
    """

    model_type = "samtok"
    sub_configs_defaults: ClassVar[dict[str, Any]] = {
        "sam2_config": Sam2Config,
        "mask_encoder_config": Sam2MaskDecoderConfig,
    }

    # A dict or None when given, always a config afterwards; transformers' own field types say less than that.
    sam2_config: Any = None
    mask_encoder_config: Any = None
    codebook_size: int = 256
    codebook_depth: int = 2
    multimask_output: bool = True
    mask_threshold: float = 0.5
    compute_dtype: str = "auto"

    def validate_compute_dtype(self) -> None:
        """Refuse a type that the tokenizer does not compute in (called by `strict`)."""
        if self.compute_dtype not in COMPUTE_DTYPES:
            raise ValueError(f"compute_dtype is {self.compute_dtype!r}; expected one of {', '.join(COMPUTE_DTYPES)}.")

    @property
    def image_size(self) -> int:
        """Side in pixels of the square that every image is resized to before it is embedded."""
        return self.sam2_config.prompt_encoder_config.image_size

    @property
    def embed_dim(self) -> int:
        """Channels of the image map, of a mask embedding and of a codebook row."""
        return self.sam2_config.prompt_encoder_config.hidden_size


def hiera_config(
    *,
    image_size: int,
    embed_dim: int,
    stage_dims: Sequence[int],
    stage_blocks: Sequence[int],
    stage_heads: Sequence[int],
    stage_windows: Sequence[int],
    global_blocks: Sequence[int],
    top_down_levels: Sequence[int] = (2, 3),
    position_grid: int = 7,
    decoder_heads: int = 8,
    attention_downsample_rate: int = 2,
    decoder_mlp_dim: int = 2048,
    iou_head_dim: int = 256,
    codebook_size: int = 256,
    multimask_output: bool = True,
) -> MaskTokenizerConfig:
    """A mask tokenizer of any Hiera size, with the same two-way transformer for masks and for decoding.

    Args:
        image_size: side in pixels; a multiple of 32, and `stage_windows[0]` divides `image_size // 4`.
        embed_dim: channels D of the image map and of the codes.
        stage_dims, stage_blocks, stage_heads, stage_windows: channels, blocks, heads, window side of the four stages.
        global_blocks: indices of blocks that attend to the whole map; never the first block of a stage.
        top_down_levels: levels of the feature pyramid, 0 the finest, that the coarser ones are added to.
        position_grid: side of the background position embedding.
        decoder_heads, attention_downsample_rate, decoder_mlp_dim: heads, `embed_dim` over the channels of
            cross-attention, and MLP width of both two-way transformers.
        iou_head_dim: width of the head that predicts the IoU of each decoded mask.

    Raises ValueError for sizes that transformers' Hiera accepts and then fails on.
    """
    _check_sizes(image_size, stage_dims, stage_blocks, stage_windows, global_blocks)
    _check_heads([*stage_dims, embed_dim // attention_downsample_rate], [*stage_heads, decoder_heads])
    backbone: dict[str, Any] = {
        "model_type": "sam2_hiera_det_model",
        "hidden_size": stage_dims[0],
        "num_attention_heads": stage_heads[0],
        "image_size": [image_size, image_size],
        "window_positional_embedding_background_size": [position_grid, position_grid],
        "blocks_per_stage": list(stage_blocks),
        "embed_dim_per_stage": list(stage_dims),
        "num_attention_heads_per_stage": list(stage_heads),
        "window_size_per_stage": list(stage_windows),
        "global_attention_blocks": list(global_blocks),
    }
    decoder: dict[str, Any] = {
        "hidden_size": embed_dim,
        "mlp_dim": decoder_mlp_dim,
        "num_attention_heads": decoder_heads,
        "attention_downsample_rate": attention_downsample_rate,
        "iou_head_hidden_dim": iou_head_dim,
        "dynamic_multimask_via_stability": False,
    }
    return MaskTokenizerConfig(
        sam2_config={
            "vision_config": _vision_config(backbone, fpn_hidden_size=embed_dim, top_down_levels=top_down_levels),
            "prompt_encoder_config": {"hidden_size": embed_dim, "image_size": image_size, "patch_size": 16},
            "mask_decoder_config": decoder,
        },
        mask_encoder_config=dict(decoder),
        codebook_size=codebook_size,
        multimask_output=multimask_output,
    )


def _vision_config(backbone: dict[str, Any], *, fpn_hidden_size: int, top_down_levels: Sequence[int]) -> dict[str, Any]:
    """The image encoder's config: the backbone, and the feature pyramid on its four stages."""
    image_size = backbone["image_size"][0]
    return {
        "model_type": "sam2_vision_model",
        "backbone_config": backbone,
        "backbone_channel_list": list(reversed(backbone["embed_dim_per_stage"])),
        "backbone_feature_sizes": [[image_size // stride] * 2 for stride in (4, 8, 16)],
        "fpn_hidden_size": fpn_hidden_size,
        "fpn_top_down_levels": list(top_down_levels),
    }


SAM2_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "stage_dims": (96, 192, 384, 768),
        "stage_blocks": (1, 2, 7, 2),
        "stage_heads": (1, 2, 4, 8),
        "stage_windows": (8, 4, 14, 7),
        "global_blocks": (5, 7, 9),
    },
    "small": {
        "stage_dims": (96, 192, 384, 768),
        "stage_blocks": (1, 2, 11, 2),
        "stage_heads": (1, 2, 4, 8),
        "stage_windows": (8, 4, 14, 7),
        "global_blocks": (7, 10, 13),
    },
    "base_plus": {
        "stage_dims": (112, 224, 448, 896),
        "stage_blocks": (2, 3, 16, 3),
        "stage_heads": (2, 4, 8, 16),
        "stage_windows": (8, 4, 14, 7),
        "global_blocks": (12, 16, 20),
        "position_grid": 14,
    },
    "large": {
        "stage_dims": (144, 288, 576, 1152),
        "stage_blocks": (2, 6, 36, 4),
        "stage_heads": (2, 4, 8, 16),
        "stage_windows": (8, 4, 16, 8),
        "global_blocks": (23, 33, 43),
    },
}
"""The four published SAM 2.1 image encoders (sam2.1_hiera_t, _s, _b+, _l), as arguments of `hiera_config`."""


def config_of(sizes: "TokenizerSizes") -> MaskTokenizerConfig:
    """The config of the sizes in a params file; ParamsError where no model can have them."""
    try:
        return hiera_config(**sizes.model_dump())
    except ValueError as error:
        raise ParamsError(f"sizes of the tokenizer: {error}") from error


def sam2_config(size: str) -> MaskTokenizerConfig:
    """A mask tokenizer on a published SAM 2.1, with 1024 px and 256 channels; `large` is the released one.

    Args:
        size: one of `SAM2_SIZES`; KeyError for others.
    """
    return hiera_config(image_size=1024, embed_dim=256, **SAM2_SIZES[size])


def _check_sizes(
    image_size: int,
    stage_dims: Sequence[int],
    stage_blocks: Sequence[int],
    stage_windows: Sequence[int],
    global_blocks: Sequence[int],
) -> None:
    """Raise ValueError for a Hiera that transformers would build and then fail on or get wrong."""
    if image_size % 32:
        raise ValueError(f"image_size is {image_size}; expected a multiple of 32.")
    if (image_size // 4) % stage_windows[0]:
        raise ValueError(
            f"stage_windows[0] is {stage_windows[0]}; expected a divisor of image_size // 4 = {image_size // 4}."
        )
    if len(set(stage_dims)) != len(stage_dims):
        raise ValueError(f"stage_dims is {list(stage_dims)}; expected four different widths.")
    if beyond := [block for block in global_blocks if not 0 <= block < sum(stage_blocks)]:
        raise ValueError(f"global_blocks holds {beyond}; expected numbers in 0..{sum(stage_blocks) - 1}.")
    first_blocks = {sum(stage_blocks[:stage]) for stage in range(1, len(stage_blocks))}
    if wrong := sorted(first_blocks & set(global_blocks)):
        raise ValueError(f"global_blocks holds {wrong}, the first block of a stage; choose a later block.")


def _check_heads(widths: Sequence[int], heads: Sequence[int]) -> None:
    """Raise ValueError where attention's heads do not divide its channels: of the stages, then of the decoder."""
    for stage, (width, number) in enumerate(zip(widths, heads, strict=True)):
        name = f"stage_heads[{stage}]" if stage < len(heads) - 1 else "decoder_heads"
        if width % number:
            raise ValueError(f"{name} is {number}; expected a divisor of its {width} channels.")
