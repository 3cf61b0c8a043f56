"""What a stage did: how much it read and made, and everything that it left out, by reason.

Nothing is dropped in silence: what was read = what was made + what was skipped. A stage that skips more than
`base.max_skip_ratio` of its records (or regions, crops, images) fails before it writes its outputs; its report is
written all the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cyclegrpo.errors import DataError
from cyclegrpo.files import write_json
from cyclegrpo.sources.records import Skip, Unit

BY_RULE = frozenset({"below_min_area", "duplicate_row"})
"""Reasons that a setting or a rule asked for; they are counted, but no share of them makes a stage fail."""


@dataclass(slots=True)
class StageReport:
    """Counts and skips of one run of a stage.

    Attributes:
        stage: its name.
        read: how many of each unit the stage looked at; the base of the skip ratio.
        made: what came out, in the order to print.
        skips: what was left out, every single one.
        skipped: number of skips by `unit: reason`, most frequent first; `finish` counts them.
    """

    stage: str
    read: dict[Unit, int] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)
    skips: list[Skip] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    def finish(self, work_dir: Path, max_skip_ratio: float) -> StageReport:
        """Write `reports/<stage>.json` below `work_dir`, then raise DataError if too much was skipped."""
        counter = Counter(f"{skip.unit}: {skip.reason}" for skip in self.skips)
        self.skipped = dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))
        path = work_dir / "reports" / f"{self.stage}.json"
        write_json(path, asdict(self))
        for unit, num_read in self.read.items():
            skips = [skip for skip in self.skips if skip.unit == unit and skip.reason not in BY_RULE]
            reasons = Counter(skip.reason for skip in skips)
            num_skipped = len(skips)
            if num_skipped > max_skip_ratio * num_read:
                shown = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
                raise DataError(
                    f"{self.stage} skipped {num_skipped} of {num_read} {unit}s ({shown}); expected at most "
                    f"{max_skip_ratio:.1%}. The first: {_told(skips[0])} Mend the data ({path} lists all), or raise "
                    "base.max_skip_ratio."
                )
        return self


def _told(skip: Skip) -> str:
    """A skip in one sentence, which names its record or file."""
    message = skip.message.rstrip(".") or skip.reason
    return f"{message}." if skip.record_id in message else f"{skip.record_id}: {message}."
