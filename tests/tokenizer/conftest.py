"""Small tokenizers for the tests."""

import pytest

from cyclegrpo.tokenizer import MaskTokenizerConfig, hiera_config


@pytest.fixture(scope="session")
def tiny_config() -> MaskTokenizerConfig:
    """The smallest that transformers' Hiera allows: 64 px, one block a stage but the third."""
    return hiera_config(
        image_size=64,
        embed_dim=32,
        stage_dims=(8, 16, 24, 32),
        stage_blocks=(1, 1, 2, 1),
        stage_heads=(1, 1, 2, 2),
        stage_windows=(8, 4, 4, 2),
        global_blocks=(3,),
        position_grid=4,
        decoder_heads=4,
        decoder_mlp_dim=32,
        iou_head_dim=32,
        codebook_size=16,
    )


@pytest.fixture(scope="session")
def nano_config() -> MaskTokenizerConfig:
    """The config of the golden vectors: 1024 px, 64 channels."""
    return hiera_config(
        image_size=1024,
        embed_dim=64,
        stage_dims=(16, 32, 64, 128),
        stage_blocks=(1, 1, 2, 1),
        stage_heads=(1, 2, 4, 8),
        stage_windows=(8, 4, 14, 7),
        global_blocks=(3,),
    )
