"""The public names: every one of ours is found, and what does not fit is listed by name."""

import re

import pytest
import torch

from cyclegrpo.errors import DataError
from cyclegrpo.tokenizer import MaskTokenizer, MaskTokenizerConfig
from cyclegrpo.tokenizer.convert import REFERENCE_PREFIX, convert_state_dict, rename_key

ENCODER_TOKEN = f"{REFERENCE_PREFIX}sam_mask_encoder.mask_tokens.weight"
OLD_NAMES = (
    (r"^sam2\.vision_encoder\.backbone\.patch_embed\.projection", "image_encoder.trunk.patch_embed.proj"),
    (r"^sam2\.vision_encoder\.backbone", "image_encoder.trunk"),
    (r"^sam2\.vision_encoder\.neck\.convs\.(\d)", r"image_encoder.neck.convs.\1.conv"),
    (r"(trunk\.blocks\.\d\.)layer_norm", r"\1norm"),
    (r"^sam2\.no_memory_embedding", "no_mem_embed"),
    (
        r"^sam2\.prompt_encoder\.shared_embedding\.positional_embedding",
        "sam_prompt_encoder.pe_layer.positional_encoding_gaussian_matrix",
    ),
    (r"^sam2\.prompt_encoder\.mask_embed\.conv1", "sam_prompt_encoder.mask_downscaling.0"),
    (r"^sam2\.prompt_encoder\.mask_embed\.layer_norm1", "sam_prompt_encoder.mask_downscaling.1"),
    (r"^sam2\.prompt_encoder\.mask_embed\.conv2", "sam_prompt_encoder.mask_downscaling.3"),
    (r"^sam2\.prompt_encoder\.mask_embed\.layer_norm2", "sam_prompt_encoder.mask_downscaling.4"),
    (r"^sam2\.prompt_encoder\.mask_embed\.conv3", "sam_prompt_encoder.mask_downscaling.6"),
    (r"^sam2\.prompt_encoder", "sam_prompt_encoder"),
    (r"^sam2\.mask_decoder\.upscale_conv1", "sam_mask_decoder.output_upscaling.0"),
    (r"^sam2\.mask_decoder\.upscale_layer_norm", "sam_mask_decoder.output_upscaling.1"),
    (r"^sam2\.mask_decoder\.upscale_conv2", "sam_mask_decoder.output_upscaling.3"),
    (r"^sam2\.mask_decoder", "sam_mask_decoder"),
    (r"^mask_encoder", "sam_mask_encoder"),
    (r"((?:hypernetworks_mlps\.\d|_head)\.)layers\.0\.", r"\1layers.1."),
    (r"((?:hypernetworks_mlps\.\d|_head)\.)proj_in\.", r"\1layers.0."),
    (r"((?:hypernetworks_mlps\.\d|_head)\.)proj_out\.", r"\1layers.2."),
    (r"\.mlp\.proj_in\.", ".mlp.layers.0."),
    (r"\.mlp\.proj_out\.", ".mlp.layers.1."),
    (r"(transformer\..*)layer_norm", r"\1norm"),
    (r"\.o_proj\.", ".out_proj."),
)


def public_state_dict(tokenizer: MaskTokenizer) -> dict[str, torch.Tensor]:
    """The tokenizer's weights under the public names, with what the public checkpoint has beside them."""
    public = {}
    for name, tensor in tokenizer.state_dict().items():
        if name.startswith("codebooks."):
            padding = torch.zeros(1, tensor.shape[1])
            public[f"quantizer.{name}.weight"] = torch.cat((tensor, padding))
            public[f"quantizer.{name}.embed_ema"] = tensor
            public[f"quantizer.{name}.cluster_size_ema"] = tensor[:, 0]
        elif name == "sam2.prompt_encoder.point_embed.weight":
            for row in range(4):
                key = f"{REFERENCE_PREFIX}sam_prompt_encoder.point_embeddings.{row}.weight"
                public[key] = tensor[row : row + 1]
        elif name != "sam2.shared_image_embedding.positional_embedding":
            old = name
            for pattern, replacement in OLD_NAMES:
                old = re.sub(pattern, replacement, old)
            public[REFERENCE_PREFIX + old] = tensor
    for name in ("maskmem_tpos_enc", "memory_encoder.fuser.layers.0.gamma", "no_obj_ptr", "obj_ptr_proj.layers.0.bias"):
        public[REFERENCE_PREFIX + name] = torch.zeros(1)
    return public


@pytest.fixture(scope="module")
def tokenizer(tiny_config: MaskTokenizerConfig) -> MaskTokenizer:
    torch.manual_seed(0)
    tokenizer = MaskTokenizer(tiny_config)
    positions = tokenizer.sam2.prompt_encoder.shared_embedding.positional_embedding
    tokenizer.sam2.shared_image_embedding.positional_embedding.copy_(positions)
    return tokenizer


def test_every_weight_arrives_under_our_name_as_float32(tokenizer):
    converted = convert_state_dict({k: v.double() for k, v in public_state_dict(tokenizer).items()}, tokenizer.config)
    expected = tokenizer.state_dict()
    assert converted.keys() == expected.keys()
    for name, tensor in converted.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name]), name


def test_missing_unknown_and_misshaped_names_are_all_listed(tokenizer):
    public = public_state_dict(tokenizer)
    del public[f"{REFERENCE_PREFIX}no_mem_embed"]
    del public[f"{REFERENCE_PREFIX}sam_prompt_encoder.point_embeddings.2.weight"]
    public["something.new"] = torch.zeros(1)
    public["quantizer.codebooks.2.weight"] = torch.zeros(17, 32)
    public["quantizer.codebooks.1.weight"] = torch.zeros(9, 32)
    with pytest.raises(DataError) as caught:
        convert_state_dict(public, tokenizer.config)
    message = str(caught.value)
    assert "in 5 names" in message
    for problem in (
        "missing: sam2.no_memory_embedding",
        "missing: sam2.prompt_encoder.point_embed.weight",
        "unknown: something.new",
        "unknown: codebooks.2",
        "shape (8, 32), expected (16, 32): codebooks.1",
    ):
        assert problem in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"model.concate_mask_embeds.0.weight": torch.zeros(1)}, "model.concate_mask_embeds.0.weight"),
        ({"deconcate_quant_embed.bias": torch.zeros(1)}, "deconcate_quant_embed.bias"),
        ({ENCODER_TOKEN: torch.zeros(2, 32)}, "with 2 rows"),
    ],
)
def test_a_checkpoint_with_several_mask_tokens_is_refused_by_name(tokenizer, extra, named):
    with pytest.raises(DataError, match=re.escape(named)) as caught:
        convert_state_dict({**public_state_dict(tokenizer), **extra}, tokenizer.config)
    assert "several mask tokens" in str(caught.value)


def test_names_outside_the_table_have_no_name():
    assert rename_key("image_encoder.trunk.blocks.0.extra") is None
    assert rename_key("sam_prompt_encoder.mask_downscaling.2.weight") is None
