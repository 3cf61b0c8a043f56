"""Stage evaluate: the policy before and after training on the same held-out regions.

Writes `results/evaluate/metrics.json` (`before.*`, `after.*`, `change.*`, each number with its `_se`; and
`num_images_in_training`, the held-out images that the training table names too, where there is a table),
`predictions.jsonl` (one line per model and item, in the order of the set) and `examples.json` (the first regions,
with pictures, for the page). A model's predictions are kept block by block in `<work_dir>/evaluate`, and reused, also
after a kill, while the model, the data, the settings and the code are the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from tqdm import tqdm

from cyclegrpo.dataset.shards import code_digest
from cyclegrpo.dataset.tokenizers import load_tokenizer, resolve_dtype
from cyclegrpo.evaluation.blocks import Block, num_blocks, prepare_blocks
from cyclegrpo.evaluation.examples import make_examples
from cyclegrpo.evaluation.heldout import Heldout, num_images_in_training, read_heldout
from cyclegrpo.evaluation.metrics import Predictions, compare, join_predictions, summarise
from cyclegrpo.evaluation.predict import Generates, Interview
from cyclegrpo.evaluation.truth import Truth
from cyclegrpo.files import digest, require_writable, sha256_file, write_json, write_text
from cyclegrpo.loading import require_model, resolve_device
from cyclegrpo.params import Crop, Evaluate, Params
from cyclegrpo.regions.spaces import MASK, RegionSpace, space

TRAINED = Path("models/policy")
RESULTS = Path("results/evaluate")
PREDICTIONS = TypeAdapter(Predictions)
CODE = (
    "evaluation/*.py",
    "loading.py",
    "policy.py",
    "rewards/*.py",
    "sources/*.py",
    "tokenizer/folder.py",
    "vision.py",
)
"""What predictions depend on beside the code of the data stages."""


@dataclass(frozen=True)
class EvaluateReport:
    """The main numbers of a run: metrics by name without their errors, before and after.

    num_images_in_training: held-out images that the training table names too; None where there is no table.
    """

    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    num_images_in_training: int | None = None


def predict_policy(
    policy: Generates,
    frozen: Generates | None,
    blocks: Iterable[Block],
    settings: Evaluate,
    *,
    region_space: RegionSpace = MASK,
    seed: int = 0,
) -> Predictions:
    """What a policy says about all blocks, joined in their order; `frozen` (or None) locates its captions too."""
    interview = Interview(policy, frozen, settings, region_space, seed)
    return join_predictions([interview.predict(block) for block in blocks])


def evaluate_policy(
    policy: Generates,
    frozen: Generates | None,
    blocks: Iterable[Block],
    settings: Evaluate,
    *,
    region_space: RegionSpace = MASK,
    truth: Truth | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """The metrics of one policy in memory (see `metrics.summarise`), without any file written.

    heldout = read_heldout(params.evaluate)                        # or heldout_in_memory(images, regions, no_targets)
    blocks = list(prepare_blocks(heldout, tokenizer, space=MASK, crop=params.crop, block_size=256))
    numbers = evaluate_policy(policy, before, blocks, params.evaluate, truth=Truth.load(params.evaluate.truth))
    """
    said = predict_policy(policy, frozen, blocks, settings, region_space=region_space, seed=seed)
    return summarise(said, truth)


def run_evaluate(
    params: Params, *, trained: Path = TRAINED, results: Path = RESULTS, kept: Path | None = None
) -> EvaluateReport:
    """Evaluate `base.policy` (before) and the trained policy (after) and write the results.

    Args:
        trained: folder of the trained policy.
        results: the folder to write to.
        kept: where the models' predictions are kept; None: `<work_dir>/evaluate`.
    """
    settings = params.evaluate
    # Before anything else: the old policy is asked for minutes before the new one is loaded.
    require_model(trained, "the trained policy", "Run the train stage first.")
    kept = kept or params.base.work_dir / "evaluate"
    for folder in (results, kept):
        require_writable(folder)
    heldout = read_heldout(settings, max_skip_ratio=params.base.max_skip_ratio, max_pixels=params.check.max_pixels)
    num_known = num_images_in_training(heldout, params.base.work_dir)
    truth = Truth.load(settings.truth) if settings.truth is not None else None
    models = _Models(params, heldout, kept)
    before = models.predictions("before", params.base.policy)
    after = models.predictions("after", trained)
    metrics: dict[str, Any] = {
        "before": summarise(before, truth),
        "after": summarise(after, truth),
        "change": compare(before, after, truth),
        "num_samples": settings.num_samples,
        "temperature": settings.temperature,
    }
    if num_known is not None:
        metrics["num_images_in_training"] = num_known
    write_text(results / "predictions.jsonl", _lines({"before": before, "after": after}, truth))
    write_json(results / "examples.json", make_examples(heldout, before, after, settings.num_examples))
    write_json(results / "metrics.json", metrics)
    return EvaluateReport(_main_numbers(metrics["before"]), _main_numbers(metrics["after"]), num_known)


def _main_numbers(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not name.endswith(("_se", "_attributes"))}


def crop_as_trained(params: Params) -> Crop:
    """The `crop` section, switched off where training shows no crops (`train.zoom`)."""
    return params.crop.model_copy(update={"enabled": params.crop.enabled and params.train.zoom})


class _Models:
    """Loads what is needed when it is needed: nothing at all when both models' predictions are there already."""

    def __init__(self, params: Params, heldout: Heldout, kept: Path) -> None:
        self._params = params
        self._heldout = heldout
        self._kept = kept
        self._base: Generates | None = None

    def predictions(self, role: str, model: Path) -> Predictions:
        """The predictions of the model in a folder, from an earlier run if they are there, else made and kept."""
        key = self._key(model)
        total = num_blocks(self._heldout, self._params.evaluate.batch_size)
        paths = [self._kept / role / f"{number:05d}.json" for number in range(total)]
        parts: list[Predictions] = []
        for path in paths:
            kept = _read_kept(path, key)
            if kept is None:
                break
            parts.append(kept)
        if len(parts) < total:
            for path, made in zip(paths[len(parts) :], self._predict(role, model, len(parts)), strict=True):
                write_json(path, {"key": key, "predictions": PREDICTIONS.dump_python(made, mode="json")})
                parts.append(made)
        for other in {*(self._kept / role).glob("*.json")} - {*paths}:
            other.unlink()
        return join_predictions(parts)

    def _predict(self, role: str, model: Path, first: int) -> Iterator[Predictions]:
        """What a model says about the blocks from a number on, one after the other."""
        base, settings = self._params.base, self._params.evaluate
        region_space = space(base.region_space)
        tokenizer = (
            None if region_space.name == "box" else load_tokenizer(base.tokenizer, base.device, base.tokenizer_dtype)
        )
        codebook_size = None if tokenizer is None else tokenizer.config.codebook_size
        if role == "before":
            policy = self._base_policy(codebook_size)
        else:
            policy = load_policy(model, base.device, codebook_size)
        frozen = self._base_policy(codebook_size) if settings.frozen_grounder else None
        block_size = settings.batch_size
        crop = crop_as_trained(self._params)
        blocks = prepare_blocks(
            self._heldout, tokenizer, space=region_space, crop=crop, block_size=block_size, first=first
        )
        kinds = 4 if frozen is not None and frozen is not policy else 3
        interview = Interview(policy, frozen, settings, region_space, base.seed)
        with _progress(f"evaluate {role}", kinds * (num_blocks(self._heldout, block_size) - first)) as progress:
            for block in blocks:
                yield interview.predict(block, progress)

    def _base_policy(self, codebook_size: int | None) -> Generates:
        if self._base is None:
            self._base = load_policy(self._params.base.policy, self._params.base.device, codebook_size)
        return self._base

    def _key(self, model: Path) -> str:
        """A digest of everything that the predictions of a model depend on, the code included."""
        base, settings = self._params.base, self._params.evaluate
        files = [settings.annotations, settings.instances]
        folders = [model, base.tokenizer, *([base.policy] if settings.frozen_grounder else [])]
        files += [file for folder in folders for file in sorted(folder.glob("*")) if file.is_file()]
        sums = [sha256_file(file) for file in files if file.is_file()]
        crop = crop_as_trained(self._params).model_dump(mode="json")
        asked = settings.model_dump(mode="json", exclude={"num_examples", "truth"})
        code = code_digest(*CODE)
        computed = resolve_device(base.device).partition(":")[0], resolve_dtype(base.device, base.tokenizer_dtype)
        chosen = [base.region_space, base.seed, base.max_skip_ratio, *computed]
        return digest(sums, self._pixels, asked, crop, chosen, code)

    @cached_property
    def _pixels(self) -> str:
        """A digest of the held-out images as they are read."""
        sizes = {item.image: item.size for item in self._heldout.no_targets}
        sizes |= {region.image: region.size for region in self._heldout.regions}
        opened = ((name, self._heldout.open_image(name, size)) for name, size in sorted(sizes.items()))
        return digest([[name, image.size, sha256(image.tobytes()).hexdigest()] for name, image in opened])


def load_policy(path: Path, device: str, codebook_size: int | None) -> Generates:
    """The policy saved in a folder; DataError where it lacks the mask tokens (see `Policy.load`)."""
    from cyclegrpo.policy import Policy

    return Policy.load(path, device, codebook_size=codebook_size)


def _lines(models: dict[str, Predictions], truth: Truth | None) -> str:
    """predictions.jsonl: for every model its regions, then its no-target answers."""
    lines = []
    for model, said in models.items():
        for region in said.regions:
            line = {"model": model, "kind": "region", **asdict(region)}
            judgement = truth.judge(region.greedy.caption, region.image, region.ann_id) if truth else None
            lines.append(line | (asdict(judgement) if judgement else {}))
        lines += [{"model": model, "kind": "no_target", **asdict(item)} for item in said.no_targets]
    return "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)


def _read_kept(path: Path, key: str) -> Predictions | None:
    """The predictions kept in a file if it is whole and made under the same key."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return PREDICTIONS.validate_python(kept["predictions"]) if kept["key"] == key else None
    except (FileNotFoundError, ValueError, KeyError, TypeError, ValidationError):
        return None


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[str], None]]:
    """Shows each kind of question before it is asked: a bar on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():

        def write(kind: str) -> None:
            sys.stderr.write(f"{name}: {kind}\n")

        yield write
        return
    with tqdm(total=total, desc=name, leave=False) as bar:

        def step(kind: str) -> None:
            bar.set_postfix_str(kind)
            bar.update()

        yield step
