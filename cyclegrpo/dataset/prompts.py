"""The texts of a row beside those of `cyclegrpo.regions.spaces`: questions about expressions, and row texts read
back.

`spaces` writes the captioning prompts and answers; the parsers here are made from the same templates, so the two
cannot drift apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cyclegrpo.files import digest
from cyclegrpo.regions.spaces import BOX, IMAGE, MASK, NO_TARGET_ANSWER, RegionSpace

QUESTIONS = {
    "mask": (
        "Can you segment the {description} in this image?",
        "Please segment {description} in this image.",
        "What is {description} in this image? Please respond with segmentation mask.",
        "What is {description} in this image? Please output segmentation mask.",
        "Could you provide a segmentation mask for the {description} in this image?",
        "Please identify and segment the {description} in this image.",
        "Where is the {description} in this picture? Please respond with a segmentation mask.",
        "Can you highlight the {description} in this image with a segmentation mask?",
    ),
    "box": (
        "Can you find the {description} in this image? Please respond with a bounding box.",
        "Where is the {description} in this picture? Please respond with a bounding box.",
    ),
}
"""Questions about an expression, by region space. Those for masks are the eight of the public gRefCOCO conversion;
those for boxes are ours."""

_CHAT_INSTRUCTION = " A conversation between User and Assistant."
_SEPARATOR = re.compile(r", and | and |, (?![^\[]*\])")
_ARTICLES = re.compile("^(?:the )+")
_ANSWER = re.compile(r"<answer>(.*)</answer>", re.DOTALL)
_END = r"(?= Zoom in|\Z)"


def ask_expression(expression: str, record_id: str, *, space: str = "mask") -> str:
    """The grounding prompt about an expression; which of `QUESTIONS` it is follows from the record's id.

    An article that the question brings is not repeated: "the left man" is asked for as "the left man".

    >>> ask_expression("the left man", "b")
    '<image>\\nPlease identify and segment the left man in this image.'
    """
    questions = QUESTIONS[space]
    question = questions[int(digest(record_id)[:8], 16) % len(questions)]
    if "the {description}" in question:
        expression = expression.removeprefix("the ")
    return question_prompt(question.replace("{description}", expression))


def question_key(expression: str) -> str:
    """What an expression asks for, equal for those that differ in white space, capitals or a leading article alone.

    >>> question_key("The left  man"), question_key("left man")
    ('left man', 'left man')
    """
    return _ARTICLES.sub("", " ".join(expression.lower().split()))


_QUESTION_PATTERNS = tuple(
    re.compile(re.escape(question).replace(re.escape("{description}"), "(.*)"), re.DOTALL)
    for questions in QUESTIONS.values()
    for question in questions
)


def parse_question(cap_problem: str) -> str | None:
    """The expression that a grounding question is about, as it stands there; None where no template of `QUESTIONS`
    fits.

    >>> parse_question(ask_expression("the left man", "b")), parse_question("<image>\\nWhere is it?")
    ('left man', None)
    """
    question = cap_problem.replace(IMAGE, "", 1).strip()
    found = (pattern.fullmatch(question) for pattern in _QUESTION_PATTERNS)
    return next((match[1] for match in found if match is not None), None)


def question_prompt(text: str) -> str:
    """A question as a prompt: one `<image>` in front where it has none, a trailing chat instruction cut off.

    >>> question_prompt("Where is it? A conversation between User and Assistant. The user asks")
    '<image>\\nWhere is it?'
    """
    text = text.split(_CHAT_INSTRUCTION, 1)[0]
    return text if IMAGE in text else f"{IMAGE}\n{text}"


@dataclass(frozen=True, slots=True)
class Zoom:
    """A zoom clause: the target as text (None in a prompt for one region), and the region in the crop (None for
    boxes)."""

    region: str | None
    crop: str | None


@dataclass(frozen=True, slots=True)
class Problem:
    """A captioning prompt, taken apart. Regions are as they stand in the text, not checked.

    Attributes:
        space: name of the region space whose prompt it is.
        regions: the target regions.
        zooms: the zoom clauses in their order; the i-th belongs to image i + 1 of the row.
        rest: what the grammar does not account for; empty in a well-formed prompt.
    """

    space: str
    regions: tuple[str, ...]
    zooms: tuple[Zoom, ...]
    rest: str = ""


def _pattern(template: str, *, last: bool) -> re.Pattern[str]:
    """A template as a pattern with the groups `region` and `crop`; up to the end of the clause where it is `last`."""
    pattern = re.escape(template)
    for placeholder in ("region", "crop"):
        pattern = pattern.replace(re.escape(f"{{{placeholder}}}"), f"(?P<{placeholder}>.*?)")
    return re.compile(pattern + (_END if last else ""), re.DOTALL)


def _grammars(space: RegionSpace) -> tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...]:
    return (
        (space.name, _pattern(space.row_template, last=False), _pattern(space.row_zoom_template, last=True)),
        (space.name, _pattern(space.single_template, last=True), _pattern(space.single_zoom_template, last=True)),
    )


_GRAMMARS = (*_grammars(MASK), *_grammars(BOX))


def parse_problem(cap_problem: str) -> Problem | None:
    """A row's captioning prompt taken apart; None where the text is no captioning prompt (a grounding question).

    >>> parse_problem(MASK.describe_row(["t1", "t2"], [None, "z2"]))
    Problem(space='mask', regions=('t1', 't2'), zooms=(Zoom(region='t2', crop='z2'),), rest='')
    >>> parse_problem(MASK.describe_single("t1", "z1"))
    Problem(space='mask', regions=('t1',), zooms=(Zoom(region=None, crop='z1'),), rest='')
    >>> parse_problem("<image>\\nWhere is it?") is None
    True
    """
    for name, head_pattern, zoom_pattern in _GRAMMARS:
        head = head_pattern.match(cap_problem)
        if head is None:
            continue
        tail = cap_problem[head.end() :]
        clauses = [clause.groupdict() for clause in zoom_pattern.finditer(tail)]
        zooms = tuple(Zoom(clause.get("region"), clause.get("crop")) for clause in clauses)
        return Problem(name, split_regions(head["region"]), zooms, zoom_pattern.sub("", tail))
    return None


def parse_answer(seg_answer: str) -> tuple[str, ...] | None:
    """The regions of a `seg_answer` as text: () for no target, None where the text has another shape.

    >>> parse_answer("<answer>t1, t2</answer>"), parse_answer("<answer>No target.</answer>"), parse_answer("t1")
    (('t1', 't2'), (), None)
    """
    if seg_answer == NO_TARGET_ANSWER:
        return ()
    match = _ANSWER.fullmatch(seg_answer)
    return None if match is None else split_regions(match[1])


def split_regions(text: str) -> tuple[str, ...]:
    """A list in a sentence, or in an answer, as its parts; commas inside a box do not divide.

    >>> split_regions("[1, 2, 3, 4], [5, 6, 7, 8], and [9, 9, 9, 9]")
    ('[1, 2, 3, 4]', '[5, 6, 7, 8]', '[9, 9, 9, 9]')
    """
    return tuple(_SEPARATOR.split(text))
