"""Images with true masks from the sources: distinct masks, counted losses, draws for training."""

from dataclasses import replace

import numpy as np
import pytest

from cyclegrpo.errors import DataError, ParamsError
from cyclegrpo.tokenizer.examples import SourceExamples
from tests.dataset.support import make_params, write_world


@pytest.fixture
def params(tmp_path):
    return make_params(tmp_path, sources=write_world(tmp_path))


def test_an_image_comes_once_with_its_distinct_masks(params):
    examples = SourceExamples(params)
    (example,) = list(examples)
    assert example.image.shape == (60, 80, 3) and example.masks.shape == (2, 60, 80)
    assert example.masks.any(axis=(1, 2)).all() and not np.array_equal(*example.masks)
    assert examples.skipped["no_true_mask"] > 0  # DenseWorld spells its regions as tokens


def test_sources_without_true_masks_are_refused(params):
    names = [source.name for source in params.base.sources]
    with pytest.raises(DataError, match=rf"no image with a true mask in {names[0]} \(.*no_true_mask\)"):
        SourceExamples(params, names=names[:1])
    with pytest.raises(ParamsError, match="no source is named nobody; expected one of"):
        SourceExamples(params, names=["nobody"])


def test_an_image_that_is_gone_is_counted_and_left_out(params):
    examples = SourceExamples(params)
    path = examples.images[0].root / examples.images[0].image
    path.unlink()
    assert list(examples) == [] and examples.skipped["image_unusable"] == 1
    with pytest.raises(DataError, match="no usable image in a hundred draws"):
        examples.draw(np.random.default_rng(0), 3)


def test_a_training_example_has_the_asked_number_of_masks(params):
    image, masks = SourceExamples(params).draw(np.random.default_rng(0), 5)
    assert image.shape == (60, 80, 3) and masks.shape == (5, 60, 80) and masks.any(axis=(1, 2)).all()
    assert len({mask.tobytes() for mask in masks}) == 2


@pytest.mark.parametrize(
    ("rle", "reason", "message"),
    [
        ({"size": [60, 80], "counts": "]]]"}, "bad_rle", "mask 1: "),
        ({"size": [60, 80], "counts": [4800]}, "empty_mask", "mask 1: holds no pixel"),
    ],
)
def test_a_bad_mask_is_named_and_counted_once_however_often_it_is_drawn(params, rle, reason, message):
    examples = SourceExamples(params)
    (image,) = examples.images
    keys = list(image.rles)
    examples.images = [replace(image, rles={keys[0]: image.rles[keys[0]], keys[1]: rle})]
    for seed in range(3):
        assert len(examples.draw(np.random.default_rng(seed), 2)[1]) == 2
    assert examples.skipped[reason] == 1
    assert examples.load(0).numbers == (0,)
    again = SourceExamples(params)
    again.load_state_dict(examples.state_dict())
    assert (again.skipped, again.problems) == (examples.skipped, examples.problems)
    assert len(examples.problems) == 1 and message in examples.problems[0] and image.image in examples.problems[0]
    examples.require_usable(0.5, "")
    with pytest.raises(
        DataError, match=rf"1 of 2 masks cannot be used, more than .*{image.image}, mask 1: .* The rest"
    ):
        examples.require_usable(0.4, "The rest.")
