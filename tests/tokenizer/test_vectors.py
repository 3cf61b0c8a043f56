"""The tokenizer against our own vectors, which are in the repository (`vectors.py`)."""

import pytest
import torch
from safetensors.torch import load_file

from tests.tokenizer.vectors import FILE, SIZES, make_vectors, seeded_tokenizer

TOLERANCES = {"image_map": 1e-4, "boxes": 1e-7, "embeddings": 1e-4, "logits": 2e-3, "logits_first_code": 2e-3}


@pytest.fixture(scope="module")
def kept() -> dict[str, torch.Tensor]:
    return load_file(FILE)


@pytest.fixture(scope="module")
def made(kept) -> dict[str, torch.Tensor]:
    return make_vectors(seeded_tokenizer([kept["codebooks.0"], kept["codebooks.1"]]))


def test_the_vectors_say_something(kept):
    """Codes and masks differ, logits lie on both sides of the threshold, and the second code matters."""
    codes = torch.cat([kept[f"{index}.codes"] for index in range(len(SIZES))])
    assert len(torch.unique(codes[:, 0])) >= 6 and len(torch.unique(codes[:, 1])) >= 6
    inside = [int((kept[f"{index}.logits"] > 0.5).sum()) for index in range(len(SIZES))]
    assert sum(inside) > 0 and any(0 < count < kept[f"{i}.logits"].numel() for i, count in enumerate(inside))
    for index in range(len(SIZES)):
        logits = kept[f"{index}.logits"]
        assert (logits[:, ::2, ::2] - kept[f"{index}.logits_first_code"]).abs().max() > 0.1


@pytest.mark.parametrize("index", range(len(SIZES)))
def test_the_tokenizer_gives_its_vectors(index, made, kept):
    names = [name for name in kept if name.startswith(f"{index}.")]
    assert len(names) == 8
    for name in names:
        tolerance = TOLERANCES.get(name.split(".")[1], 0)
        torch.testing.assert_close(made[name], kept[name], atol=tolerance, rtol=0)
