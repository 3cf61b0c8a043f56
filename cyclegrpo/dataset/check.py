"""Stage check: every row validated. All problems are found and counted; printing alone is bounded.

    results/check/metrics.json   counts and statistics
    results/check/report.json    every finding: file, row, column, kind, sentence

The exit code is 1 if there is an error. Warnings (rotated images, null-typed columns) do not fail the check.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cyclegrpo.dataset.checks.files import read_checked
from cyclegrpo.dataset.checks.findings import Finding
from cyclegrpo.dataset.checks.images import ImageState, inspect_images
from cyclegrpo.dataset.checks.lists import check_lists
from cyclegrpo.dataset.checks.statistics import dataset_statistics
from cyclegrpo.dataset.checks.texts import answer_codes, check_texts, check_values
from cyclegrpo.dataset.crops import CROPS_FOLDER
from cyclegrpo.dataset.prompts import parse_answer, parse_question, question_key
from cyclegrpo.dataset.schema import CYCLE_SOURCES, list_files
from cyclegrpo.dataset.tables import read_work_rows
from cyclegrpo.errors import DataError
from cyclegrpo.files import write_json
from cyclegrpo.params import Params
from cyclegrpo.regions.geometry import rle_to_mask

RESULTS = Path("results/check")


@dataclass(slots=True)
class CheckReport:
    """What the check found.

    Attributes:
        num_files, num_rows: parquet files and rows that were read.
        num_errors, num_warnings: findings by severity.
        kinds: number of findings by kind, most frequent first.
        statistics: see `checks.statistics`.
        findings: all of them, in the order of files and rows.
    """

    num_files: int = 0
    num_rows: int = 0
    num_errors: int = 0
    num_warnings: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 only if there is no error."""
        return 1 if self.num_errors else 0


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A row of the dataset with its place; `values` has all columns of its file."""

    file: str
    number: int
    values: dict[str, Any]

    def finding(self, column: str, kind: str, message: str, *, warning: bool = False) -> Finding:
        """A finding at this row."""
        return Finding(self.file, self.number, column, kind, message, "warning" if warning else "error")


def run_check(params: Params, results: Path = RESULTS) -> CheckReport:
    """Check the dataset in `base.dataset_dir` and write `metrics.json` and `report.json` below `results`."""
    work_dir = params.base.work_dir
    has_manifest = (work_dir / "images.parquet").is_file()  # a released dataset has none
    links = [row["image"] for row in read_work_rows(work_dir, "images", ["image"])] if has_manifest else None
    report = check_dataset(
        params.base.dataset_dir,
        links=links,
        max_pixels=params.check.max_pixels,
        num_workers=params.base.num_workers,
    )
    numbers = asdict(report)
    findings = numbers.pop("findings")
    write_json(results / "metrics.json", numbers)
    write_json(results / "report.json", {**numbers, "findings": findings})
    return report


def check_dataset(
    dataset_dir: Path, *, links: list[str] | None = None, max_pixels: int = 100_000_000, num_workers: int = 0
) -> CheckReport:
    """Check every parquet file in `dataset_dir/data` and everything that its rows name.

    Args:
        links: as in `checks.images.inspect_images`.
        max_pixels: larger images are errors.
        num_workers: processes that decode images.

    Raises DataError where there is no parquet file at all.
    """
    paths = list_files(dataset_dir)
    report, rows = CheckReport(num_files=len(paths)), []
    for path in paths:
        name = path.relative_to(dataset_dir).as_posix()
        table, findings = read_checked(path, name)
        report.findings += findings
        if table is not None:
            rows += [CheckedRow(name, number, values) for number, values in enumerate(table.to_pylist())]
    report.num_rows = len(rows)
    complete = [row for row in rows if row.values["cap_problem"] and row.values["seg_answer"] and row.values["images"]]
    images = list(dict.fromkeys(image for row in complete for image in row.values["images"] if image))
    states = inspect_images(dataset_dir, images, links=links, max_pixels=max_pixels, num_workers=num_workers)
    for row in rows:
        report.findings += [row.finding(*problem) for problem in check_values(row.values)]
    for row in complete:
        report.findings += [row.finding(*problem) for problem in check_texts(row.values)]
        report.findings += _image_findings(row, states)
    report.findings += _shared(complete)
    report.findings += check_lists(dataset_dir, [image for image in images if not image.startswith(CROPS_FOLDER)])
    _count(report, complete, states)
    return report


def _image_findings(row: CheckedRow, states: dict[str, ImageState]) -> Iterator[Finding]:
    for image in filter(None, row.values["images"]):
        for kind, message, severity in states[image].problems:
            yield row.finding("images", kind, f"{image}: {message}", warning=severity == "warning")
    header = states[row.values["images"][0]].header if row.values["images"][0] else None
    for text in row.values.get("target_rle") or ():
        try:
            size = rle_to_mask(text).shape
        except DataError:
            continue  # found by check_texts
        if header is not None and size not in ((header.height, header.width), (header.width, header.height)):
            message = (
                f"a true mask is {size[1]}x{size[0]}, the image {header.width}x{header.height}; expected equal sizes"
            )
            yield row.finding("target_rle", "mask_size", message)


def _shared(rows: list[CheckedRow]) -> Iterator[Finding]:
    """Rows that repeat an earlier one, and crops that an earlier row shows already.

    Questions are compared by what they ask for, as `build` does it; those of foreign templates by their whole text.
    """
    first_row: dict[tuple[str, ...], CheckedRow] = {}
    first_user: dict[str, CheckedRow] = {}
    for row in rows:
        values = row.values
        asked = parse_question(values["cap_problem"]) or values["cap_problem"]
        question = "" if values["source"] in CYCLE_SOURCES else question_key(asked)
        earlier = first_row.setdefault((values["images"][0] or "", values["seg_answer"], question), row)
        if earlier is not row:
            same = "image and regions" if not question else "image, regions and question"
            message = f"the same {same} as in {earlier.file}, row {earlier.number}"
            yield row.finding("seg_answer", "duplicate_row", message)
        for crop in dict.fromkeys(filter(None, values["images"][1:])):
            user = first_user.setdefault(crop, row)
            if user is not row:
                message = f"{crop} is also a crop of {user.file}, row {user.number}; expected a file of its own"
                yield row.finding("images", "crop_shared", message)


def _count(report: CheckReport, rows: list[CheckedRow], states: dict[str, ImageState]) -> None:
    """Fill in the numbers of the report."""
    severities = Counter(finding.severity for finding in report.findings)
    report.num_errors, report.num_warnings = severities["error"], severities["warning"]
    kinds = Counter(finding.kind for finding in report.findings)
    report.kinds = dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0])))
    answers = [row.values["seg_answer"] for row in rows]
    regions = [len(parse_answer(answer) or ()) for answer in answers]
    whole_images = {row.values["images"][0]: None for row in rows if row.values["images"][0]}
    headers = [state.header for state in (states[image] for image in whole_images) if state.header is not None]
    report.statistics = dataset_statistics(
        [number for number in regions if number],
        [codes for answer in answers for codes in answer_codes(answer)],
        sum(len(row.values["images"]) - 1 for row in rows),
        headers,
    )
