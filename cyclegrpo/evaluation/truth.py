"""What is true of a scene: which annotated objects a caption fits. Only for data whose truth is known.

A truth file is JSON: `{"vocabulary": {class: [word, ...]}, "images": {file name: [{"ann_id": id, "words": [word,
...]}]}}`. A caption is read as the set of its words that are in the vocabulary; other words are ignored. It fits an
object when every known word is one of the object's words, so a caption without any known word fits every object of
the scene.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cyclegrpo.errors import DataError

WORD = re.compile(r"[a-z0-9]+(?:['-][a-z0-9]+)*")


@dataclass(frozen=True)
class TrueObject:
    """One annotated object: the id of its annotation and every vocabulary word that is true of it."""

    ann_id: int
    words: frozenset[str]


@dataclass(frozen=True)
class Judgement:
    """How a caption fits its scene: `true` of the target, `unambiguous` when it fits the target and nothing else."""

    true: bool
    unambiguous: bool


def known_words(text: str, vocabulary: Collection[str]) -> frozenset[str]:
    """The words of `text` that are in `vocabulary`, lower-cased; each once.

    >>> sorted(known_words("The Small red thing, at the TOP.", {"small", "red", "top", "blue"}))
    ['red', 'small', 'top']
    """
    return frozenset(WORD.findall(text.lower())) & frozenset(vocabulary)


def fitting_objects(words: Collection[str], objects: Sequence[TrueObject]) -> list[int]:
    """The annotation ids of the objects that have every one of `words`, in scene order; no words fit every object.

    >>> objects = [TrueObject(1, frozenset({"red", "circle"})), TrueObject(2, frozenset({"red", "square"}))]
    >>> fitting_objects({"red"}, objects), fitting_objects({"red", "square"}, objects)
    ([1, 2], [2])
    """
    return [obj.ann_id for obj in objects if frozenset(words) <= obj.words]


@dataclass(frozen=True)
class Truth:
    """The words known to the truth file and the objects of every image (by bare file name)."""

    vocabulary: frozenset[str]
    images: Mapping[str, tuple[TrueObject, ...]]

    @classmethod
    def load(cls, path: str | Path) -> Truth:
        """The truth of a JSON file (form: see the module). DataError names the file when it has another form."""
        try:
            raw = json.loads(Path(path).read_text(encoding="utf-8"))
            vocabulary = frozenset(word for words in raw["vocabulary"].values() for word in words)
            images = {
                str(name): tuple(TrueObject(int(obj["ann_id"]), frozenset(obj["words"])) for obj in objects)
                for name, objects in raw["images"].items()
            }
        except FileNotFoundError:
            raise DataError("there is no truth file here; set evaluate.truth, or remove it", file=str(path)) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"not a truth file ({type(error).__name__}: {error}); expected the keys vocabulary and images",
                file=str(path),
            ) from error
        return cls(vocabulary, images)

    def judge(self, caption: str, image: str, ann_id: int) -> Judgement | None:
        """How `caption` fits the object `ann_id` of `image` (a path; its name counts); None for an unknown object."""
        objects = self.images.get(PurePosixPath(image).name, ())
        if ann_id not in {obj.ann_id for obj in objects}:
            return None
        fits = fitting_objects(known_words(caption, self.vocabulary), objects)
        return Judgement(true=ann_id in fits, unambiguous=fits == [ann_id])

    def num_attributes(self, text: str) -> int:
        """How many different known words `text` names."""
        return len(known_words(text, self.vocabulary))
