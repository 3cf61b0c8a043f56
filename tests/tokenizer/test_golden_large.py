"""The released sizes against the public code, with weights that follow from their names: slow, and 3 GB of memory."""

import importlib.util
import json
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from cyclegrpo.tokenizer import MaskTokenizer
from cyclegrpo.tokenizer.checkpoint import convert_checkpoint
from cyclegrpo.tokenizer.mask_prompts import normalised_boxes
from tests.tokenizer.test_golden import GOLDEN, read_mask

FOLDER = GOLDEN / "large_seeded"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="no golden vectors here"),
    # The script beside the vectors leaves a file open.
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def load_generator() -> ModuleType:
    """The script beside the vectors that makes the weights."""
    spec = importlib.util.spec_from_file_location("seeded_weights", GOLDEN / "seeded_weights.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> MaskTokenizer:
    """Made as a user makes it: a .pth with the public names, converted; the size is found out."""
    folder = tmp_path_factory.mktemp("large")
    state = {name: torch.from_numpy(np.asarray(value)) for name, value in load_generator().large_state(FOLDER).items()}
    for name, check in json.loads((FOLDER / "golden.json").read_text())["weights_check"].items():
        assert state[name].flatten()[:4].tolist() == check["first4"]
    torch.save(state, folder / "mask_tokenizer_256x2.pth")
    report = convert_checkpoint(folder / "mask_tokenizer_256x2.pth", folder / "tokenizer")
    assert (report.size, report.num_keys, report.num_kept, report.num_dropped) == ("large", 992, 828, 164)
    (folder / "mask_tokenizer_256x2.pth").unlink()
    return MaskTokenizer.from_pretrained(folder / "tokenizer").eval()


def test_the_large_tokenizer_gives_the_public_embeddings_codes_and_logits(tokenizer):
    description, vectors = json.loads((FOLDER / "golden.json").read_text()), load_file(FOLDER / "golden.safetensors")
    with Image.open(GOLDEN / "images" / f"{description['image']}.png") as image:
        features = tokenizer.embed_images([image])[0]
    for level, stride in enumerate((32, 16, 8)):
        expected = vectors[f"feat{level}_every{stride}"]
        torch.testing.assert_close(features.maps[level][0, :, ::stride, ::stride], expected, atol=1e-4, rtol=0)
    masks = torch.stack(
        [read_mask(f"masks/{description['image']}_{case['index']}.png") for case in description["cases"]]
    )
    codes = [case["codes"] for case in description["cases"]]
    assert tokenizer.encode(features, masks).tolist() == codes
    with torch.no_grad():
        owners = torch.zeros(len(masks), dtype=torch.long)
        embeddings = tokenizer.embed_masks(features, masks.float(), normalised_boxes(masks), owners)
    logits = tokenizer.decode(features, codes)
    for case in description["cases"]:
        index = case["index"]
        torch.testing.assert_close(embeddings[index], vectors[f"{index}/mask_embed"], atol=1e-4, rtol=0)
        torch.testing.assert_close(logits[index], vectors[f"{index}/logits"], atol=2e-3, rtol=0)
