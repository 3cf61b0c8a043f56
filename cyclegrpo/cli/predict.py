"""The commands that ask a policy about one image."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from cyclegrpo.cli.shared import PARAMS, POLICY, AsJson, ParamsFile, load, one_line_errors, picture_option, show_report

predict_command = functools.partial(one_line_errors, group="predict")
app = typer.Typer(no_args_is_help=True, help="Ask a policy about one image: describe a region, or locate a text.")

ImageFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="An image file.")]
PolicyDir = Annotated[Path, typer.Option("--policy", metavar="DIR", help="The policy to ask.")]


@app.command()
@predict_command
def describe(
    image: ImageFile,
    box: Annotated[
        str | None, typer.Option(metavar="X0,Y0,X1,Y1", help="In pixels of the upright image, half-open.")
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="The region as mask image, not black inside."),
    ] = None,
    policy: PolicyDir = POLICY,
    params: ParamsFile = PARAMS,
    as_json: AsJson = False,
) -> int:
    """What the policy says of a region."""
    if (box is None) == (mask is None):
        raise typer.BadParameter("give the region once, with either --box X0,Y0,X1,Y1 or --mask FILE.")
    settings = load(params)
    from cyclegrpo.predict import describe_region, parse_box

    found = describe_region(settings, policy, image, box=parse_box(box) if box else None, mask_path=mask)
    return show_report("describe", found, as_json)


@app.command()
@predict_command
def locate(
    image: ImageFile,
    text: Annotated[str, typer.Argument(help="What to find in it.")],
    out: Annotated[Path | None, picture_option("Draw the image with what was found.")] = None,
    policy: PolicyDir = POLICY,
    params: ParamsFile = PARAMS,
    as_json: AsJson = False,
) -> int:
    """Where the policy finds what a text describes."""
    settings = load(params)
    from cyclegrpo.predict import locate_text

    return show_report("locate", locate_text(settings, policy, image, text, picture=out), as_json)
