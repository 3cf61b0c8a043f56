"""What is measured of a tokenizer: hand-computed scores, groups by area, and the files of an evaluation."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from cyclegrpo.errors import DataError
from cyclegrpo.tokenizer import MaskTokenizer, evaluate
from cyclegrpo.tokenizer.evaluate import _Worst, evaluate_tokenizer, run_evaluate_tokenizer
from cyclegrpo.tokenizer.examples import MaskExample, SourceExamples
from cyclegrpo.tokenizer.quality import AREA_NAMES, MaskScore, code_use, score_masks, summarise
from tests.dataset.support import make_params, write_world


class HalvesTokenizer:
    """Every mask is (1, 2); both codes decode to the left half of the image, the first alone to all of it."""

    compute_dtype = torch.float32

    class config:
        codebook_size = 4

    def embed_images(self, images):
        return list(images)

    def encode(self, features, masks):
        return torch.tensor([[1, 2]] * len(masks))

    def iterate_masks(self, features, codes, height, width):
        for _, second in torch.as_tensor(codes).tolist():
            mask = np.ones((height, width), bool)
            mask[:, width // 2 :] = second < 0
            yield mask

    def decode_masks(self, features, codes, height, width):
        return np.stack(list(self.iterate_masks(features, codes, height, width)))


def example(name="a.png", side=20) -> MaskExample:
    masks = np.zeros((2, side, side), bool)
    masks[0, :, : side // 2] = True
    masks[1, : side // 2, : side // 2] = True
    return MaskExample(name, np.full((side, side, 3), 90, np.uint8), masks, ("whole", "part"))


def test_scores_of_known_masks():
    whole, part = score_masks(HalvesTokenizer(), example())
    assert (whole.iou, whole.iou_first_code, whole.area_px, whole.area_ratio) == (1.0, 0.5, 200, 0.5)
    assert (part.iou, part.iou_first_code, part.kind, part.number, part.codes) == (0.5, 0.25, "part", 1, (1, 2))


def score(area_ratio: float, iou: float, codes: tuple[int, int] = (0, 0), kind: str = "") -> MaskScore:
    return MaskScore("a", 0, kind, 1, area_ratio, codes, iou, iou / 2)


def test_figures_by_area_and_kind():
    scores = [score(0.0005, 0.2), score(0.001, 0.4, (1, 0)), score(0.2, 0.9), score(0.2, 1.0, kind="whole")]
    summary = summarise(scores, 4)
    assert summary["all"] == {"num": 4, "mean": 0.625, "median": 0.65, "mean_first_code": 0.3125, "below_half": 0.5}
    assert {name: group["num"] for name, group in summary["by_area"].items()} == {
        AREA_NAMES[0]: 1,
        AREA_NAMES[1]: 1,
        AREA_NAMES[3]: 2,
    }
    assert list(summary["by_kind"]) == ["whole"]
    assert summary["codebooks"] == [{"used": 2, "entropy_bits": 0.8113}, {"used": 1, "entropy_bits": 0.0}]
    assert "by_kind" not in summarise(scores[:1], 4)


def test_an_even_use_of_the_codes_has_the_full_entropy():
    assert code_use(torch.arange(8)[:, None], 8) == [{"used": 8, "entropy_bits": 3.0}]


def test_the_worst_masks_are_kept_and_sorted():
    worst = _Worst([])
    for start in range(0, 40, 2):
        ious = [(37 * (start + k)) % 40 / 40 for k in range(2)]
        worst.add([MaskScore("a", k, "", 1, 0.1, (0, 0), iou, iou) for k, iou in enumerate(ious)], example())
    assert [entry[0].iou for entry in worst.sorted()] == [k / 40 for k in range(12)]


def test_an_evaluation_leaves_figures_a_table_and_a_picture(tmp_path):
    report = evaluate_tokenizer([example(), example("b.png", 30)], HalvesTokenizer(), tmp_path)
    assert (report.num_images, report.num_masks, report.iou_mean) == (2, 4, 0.75)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["skipped"] == {} and metrics["compute_dtype"] == "float32"
    with open(tmp_path / "masks.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], row["kind"], float(row["iou"])) for row in rows] == [
        ("a.png", "whole", 1.0),
        ("a.png", "part", 0.5),
        ("b.png", "whole", 1.0),
        ("b.png", "part", 0.5),
    ]
    picture = (tmp_path / "worst.png").read_bytes()
    with Image.open(tmp_path / "worst.png") as drawn:
        colors = {color for _, color in drawn.convert("RGB").getcolors(2**24)}
    assert {(90, 90, 90), (0xD0, 0x11, 0x5C)} <= colors  # the image and the decoded outline
    evaluate_tokenizer([example(), example("b.png", 30)], HalvesTokenizer(), tmp_path)
    assert (tmp_path / "worst.png").read_bytes() == picture


def test_nothing_to_measure_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no mask could be measured"):
        evaluate_tokenizer([], HalvesTokenizer(), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["a_$\\frac$_b.png", "dollar_$a_{b}$.png", "猫/猫.png", "x" * 300])
def test_any_name_can_be_drawn(name, tmp_path, recwarn):
    evaluate_tokenizer([example(name)], HalvesTokenizer(), tmp_path)
    assert (tmp_path / "worst.png").is_file() and not list(recwarn)


def test_one_pixel_of_a_large_image_can_be_seen(tmp_path):
    mask = np.zeros((1, 900, 1200), bool)
    mask[0, 450, 600] = True
    figure_of = MaskExample("a.png", np.full((900, 1200, 3), 90, np.uint8), mask)
    evaluate_tokenizer([figure_of], HalvesTokenizer(), tmp_path)
    with Image.open(tmp_path / "worst.png") as drawn:
        dark = (np.asarray(drawn.convert("L")) < 40)[60:, :330]  # below the title, the first panel
    assert dark.sum() > 20


def source_with_images_gone(tmp_path, num_gone, **base):
    params = make_params(tmp_path, sources=write_world(tmp_path))
    params = params.model_copy(update={"base": params.base.model_copy(update=base)})
    for image in SourceExamples(params).images[:num_gone]:
        (image.root / image.image).unlink()
    return params


def test_images_that_cannot_be_used_are_named_and_too_many_are_an_error(tmp_path):
    params = source_with_images_gone(tmp_path, 1)
    name = SourceExamples(params).images[0].image
    with pytest.raises(DataError, match=rf"no mask could be measured \(.*1 image_unusable; .*{name}.*no such file"):
        run_evaluate_tokenizer(params, HalvesTokenizer(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_figures_of_the_other_images_are_written(tmp_path, monkeypatch):
    params = make_params(tmp_path, sources=write_world(tmp_path))
    examples = SourceExamples(params)
    examples.images *= 2
    examples.images[0] = replace(examples.images[0], image="gone.jpg")
    monkeypatch.setattr(evaluate, "SourceExamples", lambda *_, **__: examples)
    with pytest.raises(DataError, match=r"1 of 2 images cannot be used, more than base\.max_skip_ratio .*gone\.jpg"):
        run_evaluate_tokenizer(params, HalvesTokenizer(), tmp_path / "out")
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["num_images"] == 1 and metrics["skipped"]["image_unusable"] == 1
    assert "gone.jpg" in metrics["unusable"][0]
    lenient = params.model_copy(update={"base": params.base.model_copy(update={"max_skip_ratio": 0.5})})
    assert run_evaluate_tokenizer(lenient, HalvesTokenizer(), tmp_path / "out").num_unusable == 1


def test_a_real_tokenizer_is_measured_with_one_pass_an_image(tiny_config, monkeypatch):
    torch.manual_seed(0)
    tokenizer = MaskTokenizer(tiny_config).eval()
    passes = []
    features = tokenizer.image_features
    monkeypatch.setattr(tokenizer, "image_features", lambda pixels: passes.append(len(pixels)) or features(pixels))
    scores = score_masks(tokenizer, example())
    assert passes == [1] and len(scores) == 2 and all(0 <= s.iou <= 1 for s in scores)
