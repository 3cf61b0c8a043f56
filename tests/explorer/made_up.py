"""Made-up results of a run, in the form of train and evaluate: drawn scenes, invented captions and numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cyclegrpo.evaluation.examples import picture_to_uri
from cyclegrpo.regions.geometry import mask_iou, mask_to_rle
from miniature.scene import caption_of, draw_scene

BEFORE = {
    "cycle_iou": 0.289, "cycle_iou_se": 0.024, "unambiguous": 0.211, "unambiguous_se": 0.026, "true": 0.988,
    "true_se": 0.007, "leaks": 0.0, "leaks_se": 0.0, "format_errors": 0.004, "format_errors_se": 0.004,
    "caption_words": 3.1, "caption_words_se": 0.05, "frozen_cycle_iou": 0.289, "frozen_cycle_iou_se": 0.024,
    "cycle_iou_sampled": 0.237, "cycle_iou_sampled_se": 0.013,
    "unambiguous_sampled": 0.23, "unambiguous_sampled_se": 0.014,
    "grounding_iou": 0.687, "grounding_iou_se": 0.024, "question_iou": 0.66, "question_iou_se": 0.025,
    "no_target_accuracy": 0.816, "no_target_accuracy_se": 0.021, "target_accuracy": 0.97, "target_accuracy_se": 0.01,
    "num_regions": 256, "num_expressions": 256, "num_no_targets": 256,
}  # fmt: skip
AFTER = BEFORE | {
    "cycle_iou": 0.744, "cycle_iou_se": 0.022, "unambiguous": 0.917, "unambiguous_se": 0.017, "true": 0.975,
    "caption_words": 5.6, "frozen_cycle_iou": 0.738, "frozen_cycle_iou_se": 0.022, "cycle_iou_sampled": 0.494,
    "unambiguous_sampled": 0.71, "grounding_iou": 0.694, "no_target_accuracy": 0.806,
}  # fmt: skip


def made_up_metrics() -> dict[str, Any]:
    """The content of metrics.json."""
    change = {name: AFTER[name] - BEFORE[name] for name in BEFORE if not name.startswith("num_")}
    change |= {name: BEFORE[name] for name in BEFORE if name.endswith("_se")}
    return {
        "before": BEFORE,
        "after": AFTER,
        "change": change,
        "num_samples": 4,
        "temperature": 1.0,
        "num_images_in_training": 0,
    }


def made_up_examples(count: int = 12) -> dict[str, Any]:
    """The content of examples.json: before, captions are short and often lead elsewhere; after, most lead back."""
    examples = []
    for number in range(count):
        scene = draw_scene(number)
        target = scene.objects[number % len(scene.objects)]
        other = scene.objects[(number + 1) % len(scene.objects)]
        found = [target.mask if number % 3 == 0 else other.mask, np.roll(target.mask, 1, axis=1)]
        if number == 4:
            found = [np.zeros_like(target.mask), other.mask]
        short = caption_of({"color": target.color, "shape": target.shape})
        words = {name: target.word(name) for name in ("size", "color", "shape", "row", "column")}
        said = [
            {
                "caption": caption,
                "iou": mask_iou(mask, target.mask),
                "found": mask_to_rle(mask) if mask.any() else None,
            }
            for caption, mask in zip((short, caption_of(words)), found, strict=True)
        ]
        examples.append(
            {
                "key": f"heldout/{number}-0",
                "image": f"{number}.jpg",
                "height": 96,
                "width": 96,
                "picture": picture_to_uri(Image.fromarray(scene.image)),
                "target": mask_to_rle(target.mask),
                "before": said[0],
                "after": said[1],
            }
        )
    return {"rule": f"Not chosen by hand: the first {count} regions of the held-out set.", "examples": examples}


def write_made_up(results: Path, *, num_steps: int = 36) -> None:
    """Files of train and evaluate below a results folder."""
    rng = np.random.default_rng(0)
    lines = [
        "step,caption/cycle_score,caption/num_words,no_target/accuracy,kl,expression/overlap,caption/no_signal,"
        "grounding/unparsable,note"
    ]
    for step in range(1, num_steps + 1):
        share = 1 - np.exp(-step / 12)
        score = 0.25 + 0.3 * share + rng.normal(0, 0.04)
        words = 3 + 2.5 * share + rng.normal(0, 0.1)
        lines.append(
            f"{step},{score:.4f},{words:.3f},{0.8 + rng.normal(0, 0.05):.3f},{0.1 * share:.4f},{1 + rng.random():.3f},"
            f"{0.2 * share:.3f},{0.1 - 0.1 * share:.3f},x"
        )
    (results / "train").mkdir(parents=True)
    (results / "evaluate").mkdir()
    (results / "train" / "curves.csv").write_text("\n".join(lines) + "\n")
    (results / "evaluate" / "metrics.json").write_text(json.dumps(made_up_metrics()))
    (results / "evaluate" / "examples.json").write_text(json.dumps(made_up_examples()))
