"""What can only be seen on a GPU: bfloat16 keeps most codes, float32 keeps them all."""

import pytest
import torch

from tests.tokenizer.vectors import SIZES, draw_example, seeded_tokenizer, spread_codebooks

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]


def codes_on(device: str, dtype: str) -> torch.Tensor:
    tokenizer = seeded_tokenizer(spread_codebooks()).to(device)
    tokenizer.config.compute_dtype = dtype
    assert tokenizer.compute_dtype == (torch.bfloat16 if (device, dtype) == ("cuda", "auto") else torch.float32)
    codes = []
    for index in range(len(SIZES)):
        image, masks = draw_example(index)
        codes.append(tokenizer.encode(tokenizer.embed_images([image])[0], masks).cpu())
    return torch.cat(codes)


def test_float32_on_a_gpu_gives_the_codes_of_the_cpu():
    assert torch.equal(codes_on("cuda", "float32"), codes_on("cpu", "auto"))


def test_bfloat16_keeps_most_first_codes_and_a_missing_code_decodes():
    same = (codes_on("cuda", "auto")[:, 0] == codes_on("cpu", "auto")[:, 0]).float().mean()
    assert same >= 0.75
    tokenizer = seeded_tokenizer(spread_codebooks()).to("cuda")
    features = tokenizer.embed_images([draw_example(0)[0]])[0]
    logits = tokenizer.decode(features, [[1, -1]])
    assert logits.dtype == torch.float32 and bool(torch.isfinite(logits).all())
    assert tokenizer.decode_masks(features, [[1, 2]], 30, 40).shape == (1, 30, 40)
