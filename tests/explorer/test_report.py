"""The page from made-up results: complete, self-contained, true to the numbers; missing files are named."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from cyclegrpo.errors import DataError
from cyclegrpo.explorer.charts import curve_svg, mask_to_svg_path
from cyclegrpo.explorer.report import (
    SPARKS,
    Results,
    load_results,
    read_curves,
    region_to_svg_path,
    render_report,
)
from cyclegrpo.explorer.story import make_paragraphs, make_tiles

from .made_up import made_up_metrics, write_made_up


@pytest.fixture
def found(tmp_path):
    write_made_up(tmp_path)
    return load_results(tmp_path)


class Tags(HTMLParser):
    """Counts start tags and remembers attributes that point somewhere; checks that tags are closed in order."""

    VOID = frozenset({"meta", "br", "img", "link", "input"})

    def __init__(self):
        super().__init__()
        self.open, self.counts, self.links = [], {}, []

    def handle_starttag(self, tag, attrs):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.links += [value for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_self_contained(found):
    page = render_report(found, title="A & B")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.counts["article"] == 12
    assert (tags.counts["image"], tags.counts["use"]) == (12, 12)  # a picture is there once and drawn twice
    assert all(link.startswith(("data:image/png;base64,", "#picture-")) for link in tags.links)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<title>A &amp; B</title>" in page
    assert "prefers-color-scheme: dark" in page


def test_numbers_stand_in_the_table(found):
    page = re.sub(r"<[^>]+>", " ", render_report(found, title="x"))
    rows = re.sub(r"\s+", " ", page)
    hint = "region \u2192 caption \u2192 region found back"
    assert f"Cycle IoU {hint} 0.289 &plusmn;&thinsp;0.024 0.744 &plusmn;&thinsp;0.022" in rows
    assert "+0.455 &plusmn;&thinsp;0.024" in rows
    assert "21.1 % &plusmn;&thinsp;2.6 91.7 %" in rows
    assert "\u22121.3 pt" in rows


def test_every_small_curve_is_drawn(found):
    """The columns of the real curve file are held against SPARKS in tests/test_whole_road.py."""
    page = render_report(found, title="x")
    assert [label for label in SPARKS.values() if f"<b>{label}</b><svg" not in page] == []
    assert page.count('<svg class="spark"') == len(SPARKS)


def test_text_of_a_policy_cannot_become_markup(found):
    found.examples["examples"][0]["after"]["caption"] = '<script>alert(1)</script> & "more"'
    page = render_report(found, title="x")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp;" in page


def test_without_examples_truth_or_samples_there_is_still_a_page(found):
    kept = {"cycle_iou", "cycle_iou_se", "num_regions", "num_expressions", "num_no_targets"}
    metrics = {
        role: {k: v for k, v in made_up_metrics()[role].items() if k in kept} for role in ("before", "after", "change")
    }
    page = render_report(Results(found.curves, metrics, {"examples": []}), title="x")
    assert "Unambiguous" not in page
    assert "<article" not in page


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [(0.3, 0.02, " rose "), (-0.3, 0.02, " fell "), (0.03, 0.02, " stayed within two standard errors, ")],
)
def test_the_story_says_what_the_numbers_say(change, error, word):
    metrics = made_up_metrics()
    metrics["change"] |= {"cycle_iou": change, "cycle_iou_se": error}
    assert word in make_paragraphs(metrics, 36)[0].split("Captions that fit")[0]


def test_a_private_language_is_named():
    metrics = made_up_metrics()
    assert "mean what they meant" in make_paragraphs(metrics, 36)[0]
    metrics["after"] = metrics["after"] | {"frozen_cycle_iou": 0.477}
    assert "only the new model understands" in make_paragraphs(metrics, 36)[0]


def test_the_words_say_what_fell_beside_the_cycle():
    metrics = made_up_metrics()
    metrics["change"] |= {"no_target_accuracy": -0.05, "no_target_accuracy_se": 0.01, "grounding_iou": 0.0}
    told = make_paragraphs(metrics, 36)[0].split("Beside the cycle, ")[1]
    assert "the overlap on given expressions stayed within two standard errors," in told
    assert "right refusals where nothing fits fell from" in told


@pytest.mark.parametrize(
    ("number", "said", "unsaid"),
    [
        (0, ["on held-out scenes<", "all of scenes that no training step saw."], ["Beware", "stand in the training"]),
        (1_200, ["Beware: 1,200 of the evaluated", "; 1,200 of their images stand in the"], ["held-out", "step saw"]),
        (None, ["on the evaluated scenes<"], ["held-out", "step saw", "Beware", "stand in the training"]),
    ],
)
def test_the_page_calls_scenes_held_out_only_where_that_is_known(found, number, said, unsaid):
    metrics = {name: value for name, value in found.metrics.items() if name != "num_images_in_training"}
    metrics |= {} if number is None else {"num_images_in_training": number}
    page = render_report(Results(found.curves, metrics, {"examples": []}), title="x")
    assert [text for text in said if text not in page] == []
    assert [text for text in unsaid if text in page] == []


def test_tiles_show_four_numbers():
    assert [(tile["label"], tile["before"], tile["after"]) for tile in make_tiles(made_up_metrics())] == [
        ("Cycle IoU", "0.29", "0.74"),
        ("Unambiguous captions", "21%", "92%"),
        ("True captions", "99%", "98%"),
        ("Grounding IoU", "0.69", "0.69"),
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("train/curves.csv", "run the train stage first"),
        ("evaluate/metrics.json", "run the evaluate stage first"),
        ("evaluate/examples.json", "run the evaluate stage first"),
    ],
)
def test_a_missing_file_is_named(tmp_path, name, message):
    write_made_up(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=f"{re.escape(name)}.*{message}"):
        load_results(tmp_path)


@pytest.mark.parametrize("content", ["", "cycle_score\n0.5\n", "step,caption/cycle_score\n"])
def test_a_curve_file_needs_its_columns_and_a_line(tmp_path, content):
    path = tmp_path / "curves.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=r"expected step among them, and at least one line"):
        read_curves(path)


def test_a_run_without_captions_has_a_page_without_the_curve(tmp_path):
    write_made_up(tmp_path)
    (tmp_path / "train/curves.csv").write_text("step,no_target/accuracy,kl\n1,0.5,0.1\n2,0.75,\n3,0.75,0.2\n")
    found = load_results(tmp_path)
    page = render_report(found, title="x")
    assert '<svg class="chart"' not in page and "Cycle score over training" not in page
    assert "<h2>Training</h2>" in page and "No-target accuracy: 0.5 to 0.75" in page
    assert "after 3 steps" in page and "no caption was rewarded" in page and "rewarded for" not in page
    (tmp_path / "train/curves.csv").write_text("step\n1\n")
    assert "<h2>Training</h2>" not in render_report(load_results(tmp_path), title="x")


def test_a_curve_with_gaps(found):
    curves = {"step": [1.0, 2.0, 3.0], "cycle_score": [0.5, float("nan"), 0.7]}
    assert "from 0.50 to 0.70" in render_report(Results(curves, found.metrics, found.examples), title="x")


def test_mask_outline_follows_the_pixel_edges():
    mask = np.zeros((4, 6), bool)
    mask[1:3, 2:5] = True  # a box from (2, 1) to (5, 3), to a quarter of a pixel
    numbers = np.array(re.findall(r"-?[0-9.]+", mask_to_svg_path(mask)), float).reshape(-1, 2)
    assert np.abs(numbers.min(axis=0) - (2, 1)).max() <= 0.25
    assert np.abs(numbers.max(axis=0) - (5, 3)).max() <= 0.25
    mask[:] = True
    mask[2, 2] = False
    assert mask_to_svg_path(mask).count("M") == 2  # the rim and its hole
    assert mask_to_svg_path(np.zeros((4, 6), bool)) == ""


def test_regions_of_both_spaces_are_drawn():
    assert region_to_svg_path(None, 10, 20) == ""
    assert region_to_svg_path([[0, 0, 500, 500], [500, 500, 1000, 1000]], 10, 20).count("M") == 2


def test_a_curve_of_one_step_is_drawn():
    assert 'cx="44.0"' in curve_svg([1.0], [0.5], label="one")
