"""Sizes: what transformers' Hiera would accept and then fail on is refused; the released size is the released size."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cyclegrpo.errors import ParamsError
from cyclegrpo.params_file import read_sections
from cyclegrpo.tokenizer import MaskTokenizer, MaskTokenizerConfig, hiera_config
from cyclegrpo.tokenizer.config import config_of, sam2_config
from cyclegrpo.tokenizer.params import TokenizerTraining, read_all_sizes

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


LARGE = """
image_size: 1024
embed_dim: 256
stage_dims: [144, 288, 576, 1152]
stage_blocks: [2, 6, 36, 4]
stage_heads: [2, 4, 8, 16]
stage_windows: [8, 4, 16, 8]
global_blocks: [23, 33, 43]
top_down_levels: [2, 3]
position_grid: 7
decoder_heads: 8
attention_downsample_rate: 2
decoder_mlp_dim: 2048
iou_head_dim: 256
codebook_size: 256
multimask_output: true
"""


def test_the_sizes_that_the_docs_show_are_those_of_the_release(tmp_path):
    docs = (Path(__file__).parents[2] / "docs" / "tokenizer.md").read_text(encoding="utf-8")
    assert LARGE.strip() in docs
    (tmp_path / "sizes.yaml").write_text(LARGE)
    assert config_of(read_all_sizes(tmp_path / "sizes.yaml")).to_dict() == sam2_config("large").to_dict()


def test_sizes_that_are_left_out_are_named(tmp_path):
    """Some do not show in the shapes of the weights, and the defaults are those of another tokenizer."""
    (tmp_path / "sizes.yaml").write_text(
        LARGE.replace("multimask_output: true\n", "").replace("decoder_heads: 8\n", "")
    )
    with pytest.raises(
        ParamsError, match=r"sizes\.yaml: decoder_heads, multimask_output left out; expected every size"
    ):
        read_all_sizes(tmp_path / "sizes.yaml")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("decoder_heads: 7", r"sizes of the tokenizer: decoder_heads is 7; expected a divisor of its 128 channels"),
        ("stage_heads: [5, 4, 8, 16]", r"stage_heads\[0\] is 5; expected a divisor of its 144 channels"),
        ("global_blocks: [99]", r"global_blocks holds \[99\]; expected numbers in 0\.\.47"),
        ("global_blocks: [2]", "the first block of a stage"),
        ("stage_windows: [7, 4, 16, 8]", r"stage_windows\[0\] is 7"),
        ("stage_windows: [0, 4, 16, 8]", r"stage_windows\[0\] is 0; expected"),
        ("stage_dims: [0, 1, 2, 3]", r"stage_dims\[0\] is 0; expected"),
        ("top_down_levels: [9]", r"top_down_levels\[0\] is 9; expected"),
    ],
)
def test_sizes_that_no_model_has_are_one_line(line, message, tmp_path):
    key = line.split(":")[0]
    changed = [line if old.startswith(f"{key}:") else old for old in LARGE.splitlines()]
    (tmp_path / "sizes.yaml").write_text("\n".join(changed))
    with pytest.raises(ParamsError, match=message) as caught:
        config_of(read_all_sizes(tmp_path / "sizes.yaml"))
    assert "\n" not in str(caught.value)


def test_a_rate_is_a_finite_number(tmp_path):
    (tmp_path / "settings.yaml").write_text("learning_rate: .inf\n")
    with pytest.raises(ParamsError, match="learning_rate is inf; expected a finite number"):
        read_sections(tmp_path / "settings.yaml", TokenizerTraining)
