"""The check's report as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from cyclegrpo.dataset.check import CheckReport


def print_problems(report: CheckReport, max_problems: int) -> None:
    """Print `report_tables` on standard output; stage and command share it."""
    Console().print(report_tables(report, max_problems))


def report_tables(report: CheckReport, max_problems: int) -> RenderableType:
    """The problems by kind, with at most `max_problems` of each in full, or a line that there are none.

    Args:
        report: what the check found.
        max_problems: bounds the printing, never the counting.
    """
    counts = f"{report.num_errors:,} errors, {report.num_warnings:,} warnings"
    head = f"{report.num_rows:,} rows in {report.num_files} files: {counts}"
    if not report.findings:
        return Group(head)
    table = Table(box=None, pad_edge=False)
    for column in ("severity", "kind", "where", "what"):
        table.add_column(column, overflow="fold")
    for kind, number in report.kinds.items():
        of_kind = [finding for finding in report.findings if finding.kind == kind]
        for finding in of_kind[:max_problems]:
            table.add_row(finding.severity, kind, escape(finding.place()), escape(finding.message))
        if number > max_problems:
            table.add_row("", kind, "", f"and {number - max_problems:,} more (results/check/report.json lists all)")
    return Group(head, table)
