"""Where a tokenizer is trained, and what is said where too little of the sources could be used."""

import pytest
import torch

from cyclegrpo.errors import DataError, ParamsError
from cyclegrpo.tokenizer import run as run_module
from cyclegrpo.tokenizer.examples import SourceExamples
from cyclegrpo.tokenizer.folder import load_mask_tokenizer
from cyclegrpo.tokenizer.params import TokenizerTraining
from cyclegrpo.tokenizer.run import run_train_tokenizer
from tests.dataset.support import make_params, write_world
from tests.tokenizer.test_train import FEW_STEPS


@pytest.fixture
def train(tmp_path):
    """Trains for a few steps on a small world, with other `base` settings and images taken away."""

    def run(num_gone=0, **base):
        params = make_params(tmp_path, sources=write_world(tmp_path))
        params = params.model_copy(update={"base": params.base.model_copy(update=base)})
        for image in SourceExamples(params).images[:num_gone]:
            (image.root / image.image).unlink()
        return run_train_tokenizer(params, FEW_STEPS, tmp_path / "out", results=tmp_path / "results")

    return run


@pytest.mark.parametrize("name", ["sizes", "torch_init", "quantize_start_ratio", "fine_loss_ratio"])
def test_settings_of_a_new_tokenizer_are_refused_where_it_goes_on_from_one(tmp_path, name):
    params = make_params(tmp_path, sources=write_world(tmp_path))
    training = TokenizerTraining(num_steps=2, **{name: TokenizerTraining().model_dump()[name]})
    with pytest.raises(ParamsError, match=rf"^{name}: says how a new tokenizer begins"):
        run_train_tokenizer(params, training, tmp_path / "out", start=tmp_path, results=tmp_path / "results")


@pytest.mark.parametrize(
    ("device", "num_gpus", "message"),
    [
        ("cuda:1", 2, "set CUDA_VISIBLE_DEVICES=1 and base.device: cuda"),
        ("cuda:2", 2, "base.device is cuda:2, but 2 GPUs are visible"),
        ("cuda", 0, "0 GPUs are visible"),
    ],
)
def test_a_gpu_that_cannot_be_trained_on_is_refused_at_once(train, tmp_path, monkeypatch, device, num_gpus, message):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    with pytest.raises(ParamsError, match=message):
        train(device=device)
    assert not (tmp_path / "results").exists()


def test_a_training_on_the_cpu(train, tmp_path):
    report = train(device="cpu")
    assert (report.num_images, report.num_unusable) == (1, 0)
    assert load_mask_tokenizer(tmp_path / "out").config.image_size == FEW_STEPS.sizes.image_size


def test_a_run_that_goes_on_knows_what_was_bad_before(tmp_path, monkeypatch):
    """Killed when all is trained: the images are not looked at again, and one of the two masks was bad."""
    params = make_params(tmp_path, sources=write_world(tmp_path))
    params = params.model_copy(update={"base": params.base.model_copy(update={"device": "cpu"})})
    (image,) = SourceExamples(params).images
    key = list(image.rles)[1]
    image.rles[key] = {"size": [60, 80], "counts": "]]]"}

    def one_is_bad(*args, **options):
        examples = SourceExamples(*args, **options)
        examples.images = [image]
        return examples

    monkeypatch.setattr(run_module, "SourceExamples", one_is_bad)
    training = FEW_STEPS.model_copy(update={"save_steps": 2})
    with monkeypatch.context() as context:
        context.setattr(run_module, "write_curve", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_train_tokenizer(params, training, tmp_path / "out", results=tmp_path / "results")
    with pytest.raises(DataError, match="1 of 2 masks cannot be used"):
        run_train_tokenizer(params, training, tmp_path / "out", results=tmp_path / "results")


def test_images_that_are_gone_end_the_training(train, tmp_path):
    with pytest.raises(DataError, match="no usable image in a hundred draws"):
        train(num_gone=1, device="cpu")
    assert not (tmp_path / "out").exists()
