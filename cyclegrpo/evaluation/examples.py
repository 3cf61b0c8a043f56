"""The first held-out regions as the page shows them: picture, captions before and after, the regions found back."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

from cyclegrpo.evaluation.heldout import Heldout
from cyclegrpo.evaluation.metrics import Predictions, RegionPrediction

PICTURE_PX = 512
PNG_BELOW_PX = 256


def make_examples(heldout: Heldout, before: Predictions, after: Predictions, count: int) -> dict[str, Any]:
    """The first `count` regions of the set with pictures and both models' greedy captions and located regions.

    Regions are COCO RLEs in the image's frame, or boxes in 0..1000; None is an empty answer. Pictures are data URIs.
    """
    examples: list[dict[str, Any]] = []
    for target, old, new in zip(heldout.regions, before.regions, after.regions, strict=True):
        if len(examples) == count:
            break
        image = heldout.open_image(target.image, target.size)
        height, width = target.size
        examples.append(
            {
                "key": target.key,
                "image": target.image,
                "height": height,
                "width": width,
                "picture": picture_to_uri(image),
                "target": target.rle,
                "before": _said(old),
                "after": _said(new),
            }
        )
    rule = f"Not chosen by hand: the first {len(examples)} regions of the held-out set, in file order."
    return {"rule": rule, "examples": examples}


def picture_to_uri(image: Image.Image) -> str:
    """The picture as a data URI, at most 512 pixels long: PNG where it is small (drawings stay sharp), else JPEG."""
    small = image.copy()
    small.thumbnail((PICTURE_PX, PICTURE_PX))
    is_png = max(small.size) < PNG_BELOW_PX
    stream = io.BytesIO()
    small.save(stream, "PNG" if is_png else "JPEG", **({"optimize": True} if is_png else {"quality": 88}))
    kind = "png" if is_png else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


def _said(prediction: RegionPrediction) -> dict[str, Any]:
    said = prediction.greedy
    return {"caption": said.caption, "iou": said.located.iou, "found": prediction.found}
