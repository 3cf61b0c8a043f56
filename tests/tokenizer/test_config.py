"""Sizes: what transformers' Hiera would accept and then fail on is refused; the released size is the released size."""

import subprocess
import sys

import pytest
import torch

from cyclegrpo.tokenizer import MaskTokenizer, MaskTokenizerConfig, hiera_config
from cyclegrpo.tokenizer.config import sam2_config

GOOD = {
    "image_size": 64,
    "embed_dim": 32,
    "stage_dims": (8, 16, 24, 32),
    "stage_blocks": (1, 1, 2, 1),
    "stage_heads": (1, 1, 2, 2),
    "stage_windows": (8, 4, 4, 2),
    "global_blocks": (3,),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": 72}, "image_size is 72; expected a multiple of 32"),
        ({"stage_windows": (7, 4, 4, 2)}, r"stage_windows\[0\] is 7; expected a divisor of image_size // 4 = 16"),
        ({"stage_dims": (8, 16, 16, 32)}, r"stage_dims is \[8, 16, 16, 32\]; expected four different widths"),
        ({"global_blocks": (2,)}, r"global_blocks holds \[2\], the first block of a stage"),
    ],
)
def test_sizes_that_do_not_work_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        hiera_config(**{**GOOD, **change})


def test_a_config_survives_its_file(tiny_config, tmp_path):
    tiny_config.save_pretrained(tmp_path)
    loaded = MaskTokenizerConfig.from_pretrained(tmp_path)
    assert loaded.to_dict() == tiny_config.to_dict()
    assert (loaded.image_size, loaded.embed_dim, loaded.codebook_size, loaded.codebook_depth) == (64, 32, 16, 2)


def test_the_large_config_has_the_released_number_of_values():
    with torch.device("meta"):
        state = MaskTokenizer(sam2_config("large")).state_dict()
    # 220.3 million kept values, and the position code once more.
    assert round(sum(t.numel() for t in state.values()) / 1e6, 1) == 220.3


def test_the_package_is_imported_without_torch():
    code = "import sys, cyclegrpo.tokenizer, cyclegrpo.tokenizer.params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
