"""The command line. Every command parses, loads the params, calls one function and prints a short table (or JSON).

Exit codes: 0 fine, 1 the data or a check failed, 2 wrong use or params, 130 Ctrl-C. Results go to standard output,
progress and log to standard error. Heavy packages are imported inside the commands, so that `--help` is instant.
"""

from __future__ import annotations

from typing import Annotated

import typer

from cyclegrpo import __version__
from cyclegrpo.cli import pipeline, predict, tokenizer

app = typer.Typer(
    name="cyclegrpo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(pipeline.app)
app.add_typer(predict.app, name="predict")
app.add_typer(tokenizer.app, name="tokenizer")


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Reinforcement learning of region captions: describe a region, locate it again from the words alone."""


def main() -> None:
    """The entry point."""
    app()
