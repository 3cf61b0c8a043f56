"""The small policy before any training: a real Qwen3-VL, its processor and chat template, from a small config.

The tokenizer is a byte-level BPE over the miniature's captions. The fixed sentences of the prompts are single
(non-special) tokens, so that the exact prompts of the released models stay short for a model of two million
parameters. Mask tokens are non-special too, or decoding would delete them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AddedToken,
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessor,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLProcessor,
    Qwen3VLVideoProcessor,
)

from cyclegrpo.regions.tokens import all_token_strings
from miniature.scene import SIDE_PX

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content is string -%}{{ message.content }}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>"
    "{%- else -%}{{ part.text }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{ '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
PATCH_PX = 16
MERGE = 2


def build_tokenizer(
    captions: Iterable[str], sentences: Sequence[str], num_merges: int = 160
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: bytes, `num_merges` merges learned from captions, prompts, mask tokens.

    Args:
        captions: text to learn merges from.
        sentences: fixed parts of prompts; each becomes one token.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + num_merges, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(captions, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[t for t in SPECIAL if t not in ("<|im_end|>", "<|endoftext|>")],
        padding_side="left",
    )
    fast.add_tokens([AddedToken(t, special=False, normalized=False) for t in all_token_strings()])
    fast.add_tokens([AddedToken(s, special=False, normalized=False) for s in sentences])
    return fast


def build_processor(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLProcessor:
    """Qwen3-VL's processor at the miniature's size: every image is brought to at most one scene's pixels."""
    pixels = SIDE_PX * SIDE_PX
    size = {"shortest_edge": pixels, "longest_edge": pixels}
    patches = {"patch_size": PATCH_PX, "merge_size": MERGE, "temporal_patch_size": 2, "size": size}
    norm = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(**patches, **norm),
        tokenizer=tokenizer,
        video_processor=Qwen3VLVideoProcessor(**patches, **norm),
        chat_template=CHAT_TEMPLATE,
    )


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, hidden: int = 128, layers: int = 3, vision_depth: int = 2, seed: int = 0
) -> Qwen3VLForConditionalGeneration:
    """A randomly initialised small Qwen3-VL (about 2 million parameters), float32."""
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 3 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": hidden // 4,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "depth": vision_depth,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_heads": 4,
        "patch_size": PATCH_PX,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "out_hidden_size": hidden,
        "num_position_embeddings": (SIDE_PX // PATCH_PX) ** 2,
        "deepstack_visual_indexes": [0],
    }
    ids = {
        "image_token_id": tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    }
    torch.manual_seed(seed)
    config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    model = Qwen3VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model
