"""What is shipped in `checkpoints/`: the tokenizer and the cold start, with the metrics that a test holds them to.

    python -m miniature.ship data/miniature/tokenizer data/miniature/policy

copies what `make demo-full` made and measures it on a few scenes of the validation split (never the test split).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from cyclegrpo.console import guarded, print_report
from cyclegrpo.files import write_json
from cyclegrpo.params_file import load_params
from miniature.params import MiniatureParams, load_miniature_params

CHECKPOINTS = Path(__file__).parent / "checkpoints"
METRICS = "metrics.json"
NUM_SCENES = 64
COMMANDS = {"tokenizer": "python -m miniature.stages.tokenizer", "policy": "python -m miniature.stages.coldstart"}
KEPT = ("cycle_iou", "true", "unambiguous", "grounding_iou", "no_target_accuracy", "format_errors", "caption_words")


def measure_checkpoints(tokenizer_dir: Path, policy_dir: Path) -> dict[str, Any]:
    """Held-out figures of a tokenizer and of a policy that speaks its tokens, on `NUM_SCENES` scenes each, greedy.

    `tokenizer.*` are IoUs after encode and decode by kind of region; `policy.*` are the figures of the stage evaluate.
    """
    from cyclegrpo.tokenizer.folder import load_mask_tokenizer
    from cyclegrpo.tokenizer.quality import score_masks, summarise
    from miniature.tokenizer import heldout_examples

    params, miniature = load_params(), load_miniature_params()
    scenes = miniature.scenes
    few = scenes.tokenizer_heldout.model_copy(update={"num_scenes": NUM_SCENES})
    tokenizer = load_mask_tokenizer(tokenizer_dir)
    small = miniature.model_copy(update={"scenes": scenes.model_copy(update={"tokenizer_heldout": few})})
    scores = [score for example in heldout_examples(small, params.crop) for score in score_masks(tokenizer, example)]
    kinds = summarise(scores, tokenizer.config.codebook_size)["by_kind"]
    figures = {f"tokenizer.{kind}": value["mean"] for kind, value in kinds.items()}
    for name, value in _measure_policy(tokenizer, policy_dir, miniature).items():
        figures[f"policy.{name}"] = round(value, 4)
    return figures


def _measure_policy(tokenizer: Any, policy_dir: Path, miniature: MiniatureParams) -> dict[str, float]:
    from cyclegrpo.evaluation.blocks import prepare_blocks
    from cyclegrpo.evaluation.heldout import read_heldout
    from cyclegrpo.evaluation.run import evaluate_policy
    from cyclegrpo.evaluation.truth import Truth
    from cyclegrpo.policy import Policy
    from cyclegrpo.regions.spaces import MASK
    from miniature.world import run_world

    params = load_params()
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw"
        counts = {"v3det": 1, "train": 1, "val": NUM_SCENES, "testA": 1}
        ranges = {
            split: miniature.scenes.range_of(split).model_copy(update={"num_scenes": count})
            for split, count in counts.items()
        }
        world = {
            "scenes": miniature.scenes.model_copy(update=ranges),
            "world": miniature.world.model_copy(update={"raw_dir": raw}),
        }
        run_world(miniature.model_copy(update=world))
        settings = params.evaluate.model_copy(
            update={
                "annotations": raw / "grefcoco" / "grefs(unc).json",
                "instances": raw / "grefcoco" / "instances.json",
                "image_root": raw / "coco" / "train2014",
                "truth": raw / "truth.json",
                "split": "val",
                "num_regions": NUM_SCENES,
                "num_samples": 0,
            }
        )
        blocks = list(
            prepare_blocks(read_heldout(settings), tokenizer, space=MASK, crop=params.crop, block_size=NUM_SCENES)
        )
        policy = Policy.load(policy_dir, "cpu")
        figures = evaluate_policy(policy, None, blocks, settings, truth=Truth.load(raw / "truth.json"))
    return {name: figures[name] for name in KEPT}


def ship(tokenizer_dir: Path, policy_dir: Path) -> dict[str, Any]:
    """Copy both folders to `checkpoints/` and write their figures beside them; returns the figures.

    A folder that is there already (the shipped tokenizer, say, beside a new policy) stays as it is.
    """
    for name, folder in (("tokenizer", tokenizer_dir), ("policy", policy_dir)):
        shipped, unfinished = CHECKPOINTS / name, CHECKPOINTS / f".{name}.unfinished"
        if folder.resolve() == shipped.resolve():
            continue
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(folder, unfinished)
        shutil.rmtree(shipped, ignore_errors=True)
        unfinished.rename(shipped)
    figures = measure_checkpoints(CHECKPOINTS / "tokenizer", CHECKPOINTS / "policy")
    miniature = load_miniature_params()
    seeds = {"tokenizer": miniature.tokenizer.seed, "policy": miniature.coldstart.seed}
    record = {"commands": COMMANDS, "seeds": seeds, "num_scenes": NUM_SCENES, "figures": figures}
    write_json(CHECKPOINTS / METRICS, record)
    return figures


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m miniature.ship TOKENIZER_DIR POLICY_DIR")
    folders = Path(sys.argv[1]), Path(sys.argv[2])
    sys.exit(guarded("ship", lambda: print_report("ship", ship(*folders))))
