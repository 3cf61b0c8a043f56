"""The public SAMTok checkpoint's names -> ours: `convert_state_dict` is a pure function of tensors and sizes.

The public model keeps SAM2's own names below `model.sam2_model.`, with the memory modules of video tracking, which
encoding and decoding never read. transformers renamed SAM2's parts; the rest of the table is ours.
"""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from cyclegrpo.errors import DataError
from cyclegrpo.tokenizer.config import MaskTokenizerConfig
from cyclegrpo.tokenizer.model import MaskTokenizer

REFERENCE_PREFIX = "model.sam2_model."
# Parts of SAM2's video memory and of the codebooks' training state, which are left behind.
DROPPED = re.compile(
    r"(memory_attention|memory_encoder|mask_downsample|obj_ptr_proj|obj_ptr_tpos_proj)(?=\.)"
    r"|(maskmem_tpos_enc|no_mem_pos_enc|no_obj_ptr|no_obj_embed_spatial)$"
    r"|quantizer\.codebooks\.\d+\.(cluster_size_ema|embed_ema)$"
)
# Only checkpoints with several mask tokens have these.
MULTI_TOKEN = re.compile(r"(^|\.)(concate_mask_embeds|deconcate_quant_embed)\.")

# (pattern of a public name without its prefix, our name); the first whole match counts, then `TWO_WAY` is applied.
RENAMES: tuple[tuple[str, str], ...] = (
    (r"image_encoder\.trunk\.patch_embed\.proj\.(.+)", r"sam2.vision_encoder.backbone.patch_embed.projection.\1"),
    (r"image_encoder\.trunk\.(pos_embed|pos_embed_window)", r"sam2.vision_encoder.backbone.\1"),
    (
        r"image_encoder\.trunk\.blocks\.(\d+)\.norm([12])\.(.+)",
        r"sam2.vision_encoder.backbone.blocks.\1.layer_norm\2.\3",
    ),
    (
        r"image_encoder\.trunk\.blocks\.(\d+)\.mlp\.layers\.0\.(.+)",
        r"sam2.vision_encoder.backbone.blocks.\1.mlp.proj_in.\2",
    ),
    (
        r"image_encoder\.trunk\.blocks\.(\d+)\.mlp\.layers\.1\.(.+)",
        r"sam2.vision_encoder.backbone.blocks.\1.mlp.proj_out.\2",
    ),
    (
        r"image_encoder\.trunk\.blocks\.(\d+)\.(attn\.qkv|attn\.proj|proj)\.(.+)",
        r"sam2.vision_encoder.backbone.blocks.\1.\2.\3",
    ),
    (r"image_encoder\.neck\.convs\.(\d+)\.conv\.(.+)", r"sam2.vision_encoder.neck.convs.\1.\2"),
    (r"no_mem_embed", r"sam2.no_memory_embedding"),
    (
        r"sam_prompt_encoder\.pe_layer\.positional_encoding_gaussian_matrix",
        r"sam2.prompt_encoder.shared_embedding.positional_embedding",
    ),
    (r"sam_prompt_encoder\.(not_a_point_embed|no_mask_embed)\.weight", r"sam2.prompt_encoder.\1.weight"),
    (r"sam_prompt_encoder\.mask_downscaling\.0\.(.+)", r"sam2.prompt_encoder.mask_embed.conv1.\1"),
    (r"sam_prompt_encoder\.mask_downscaling\.1\.(.+)", r"sam2.prompt_encoder.mask_embed.layer_norm1.\1"),
    (r"sam_prompt_encoder\.mask_downscaling\.3\.(.+)", r"sam2.prompt_encoder.mask_embed.conv2.\1"),
    (r"sam_prompt_encoder\.mask_downscaling\.4\.(.+)", r"sam2.prompt_encoder.mask_embed.layer_norm2.\1"),
    (r"sam_prompt_encoder\.mask_downscaling\.6\.(.+)", r"sam2.prompt_encoder.mask_embed.conv3.\1"),
    (r"sam_mask_decoder\.(iou_token|mask_tokens|obj_score_token)\.weight", r"sam2.mask_decoder.\1.weight"),
    (r"sam_mask_decoder\.(conv_s[01])\.(.+)", r"sam2.mask_decoder.\1.\2"),
    (r"sam_mask_decoder\.output_upscaling\.0\.(.+)", r"sam2.mask_decoder.upscale_conv1.\1"),
    (r"sam_mask_decoder\.output_upscaling\.1\.(.+)", r"sam2.mask_decoder.upscale_layer_norm.\1"),
    (r"sam_mask_decoder\.output_upscaling\.3\.(.+)", r"sam2.mask_decoder.upscale_conv2.\1"),
    (
        r"sam_mask_decoder\.(output_hypernetworks_mlps\.\d+|iou_prediction_head|pred_obj_score_head)\.layers\.0\.(.+)",
        r"sam2.mask_decoder.\1.proj_in.\2",
    ),
    (
        r"sam_mask_decoder\.(output_hypernetworks_mlps\.\d+|iou_prediction_head|pred_obj_score_head)\.layers\.1\.(.+)",
        r"sam2.mask_decoder.\1.layers.0.\2",
    ),
    (
        r"sam_mask_decoder\.(output_hypernetworks_mlps\.\d+|iou_prediction_head|pred_obj_score_head)\.layers\.2\.(.+)",
        r"sam2.mask_decoder.\1.proj_out.\2",
    ),
    (r"sam_mask_decoder\.transformer\.(.+)", r"sam2.mask_decoder.transformer.\1"),
    (r"sam_mask_encoder\.transformer\.(.+)", r"mask_encoder.transformer.\1"),
    (r"sam_mask_encoder\.mask_tokens\.weight", r"mask_encoder.mask_tokens.weight"),
)
TWO_WAY: tuple[tuple[str, str], ...] = (
    (r"\.norm([1-4])\.", r".layer_norm\1."),
    (r"\.norm_final_attn\.", r".layer_norm_final_attn."),
    (r"\.out_proj\.", r".o_proj."),
    (r"\.mlp\.layers\.0\.", r".mlp.proj_in."),
    (r"\.mlp\.layers\.1\.", r".mlp.proj_out."),
)
POINT = re.compile(r"sam_prompt_encoder\.point_embeddings\.([0-3])\.weight")
CODEBOOK = re.compile(r"quantizer\.codebooks\.(\d+)\.weight")
SHARED_POSITIONS = "sam2.shared_image_embedding.positional_embedding"
POINT_ROWS = "sam2.prompt_encoder.point_embed.weight"


def convert_state_dict(reference: Mapping[str, Tensor], config: MaskTokenizerConfig) -> dict[str, Tensor]:
    """Our state dict, float32, from the public one.

    Args:
        reference: public names -> tensors of any float type; the training-only ones are left out.
        config: the sizes that the result must have.

    Raises DataError that lists every missing, unknown and misshaped name, and for a checkpoint whose masks are several
    tokens, which this tokenizer does not have.
    """
    refuse_multi_token(reference)
    converted: dict[str, Tensor] = {}
    points: dict[int, Tensor] = {}
    unknown: list[str] = []
    for key, tensor in reference.items():
        name = without_prefix(key)
        if dropped_group(name) is not None:
            continue
        if match := POINT.fullmatch(name):
            points[int(match[1])] = tensor
        elif match := CODEBOOK.fullmatch(name):
            # The last row is padding, and no code.
            converted[f"codebooks.{match[1]}"] = tensor[:-1] if tensor.ndim else tensor
        elif our_name := rename_key(name):
            converted[our_name] = tensor
        else:
            unknown.append(key)
    if len(points) == 4 and all(tensor.ndim == 2 for tensor in points.values()):
        shapes = {tuple(tensor.shape) for tensor in points.values()}
        if len(shapes) == 1 and shapes.pop()[0] == 1:
            converted[POINT_ROWS] = torch.cat([points[row] for row in range(4)])
    positions = converted.get("sam2.prompt_encoder.shared_embedding.positional_embedding")
    if positions is not None:
        converted[SHARED_POSITIONS] = positions.clone()
    _check_names(converted, unknown, config)
    return {name: tensor.to(torch.float32).contiguous() for name, tensor in converted.items()}


def without_prefix(key: str) -> str:
    """A public name without the part that every weight of the model has.

    >>> without_prefix("model.sam2_model.no_mem_embed")
    'no_mem_embed'
    """
    return key.removeprefix(REFERENCE_PREFIX)


def dropped_group(key: str) -> str | None:
    """The part of the public model that a name belongs to if it is left behind, else None.

    >>> dropped_group("model.sam2_model.memory_encoder.fuser.layers.0.gamma"), dropped_group("no_mem_embed")
    ('memory_encoder', None)
    """
    match = DROPPED.match(without_prefix(key))
    return None if match is None else next(group for group in match.groups() if group is not None)


def rename_key(name: str) -> str | None:
    """Our name for a public one without its prefix, or None where the table has none.

    >>> rename_key("sam_mask_encoder.transformer.layers.0.norm1.bias")
    'mask_encoder.transformer.layers.0.layer_norm1.bias'
    """
    for pattern, replacement in RENAMES:
        match = re.fullmatch(pattern, name)
        if match:
            renamed = match.expand(replacement)
            if ".transformer." in renamed:
                for old, new in TWO_WAY:
                    renamed = re.sub(old, new, renamed)
            return renamed
    return None


def refuse_multi_token(reference: Mapping[str, Tensor]) -> None:
    """Raise DataError where the checkpoint spells a mask with more than one mask token."""
    names = sorted(key for key in reference if MULTI_TOKEN.search(key))
    name = "sam_mask_encoder.mask_tokens.weight"
    tokens = reference.get(name, reference.get(f"{REFERENCE_PREFIX}{name}"))
    if tokens is not None and tokens.ndim and tokens.shape[0] != 1:
        names.append(f"sam_mask_encoder.mask_tokens.weight with {tokens.shape[0]} rows")
    if names:
        raise DataError(
            f"the checkpoint has several mask tokens for one mask ({', '.join(names)}); expected one: "
            "convert a checkpoint trained with one mask token, such as mask_tokenizer_256x2."
        )


def _check_names(converted: Mapping[str, Tensor], unknown: list[str], config: MaskTokenizerConfig) -> None:
    """Raise DataError listing every name that is missing, unknown, or of another shape than the config's."""
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in MaskTokenizer(config).state_dict().items()}
    unknown = unknown + [name for name in converted if name not in expected]
    problems = [f"missing: {name}" for name in expected if name not in converted]
    problems += [f"unknown: {name}" for name in unknown]
    problems += [
        f"shape {tuple(converted[name].shape)}, expected {shape}: {name}"
        for name, shape in expected.items()
        if name in converted and tuple(converted[name].shape) != shape
    ]
    if problems:
        raise DataError(
            f"the checkpoint does not fit the config in {len(problems)} names; choose the config it was trained "
            "with: " + "; ".join(problems)
        )
