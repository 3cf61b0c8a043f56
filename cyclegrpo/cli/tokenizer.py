"""The commands of the mask tokenizer."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import typer

from cyclegrpo.cli.shared import PARAMS, AsJson, ParamsFile, one_line_errors, show_report

tokenizer_command = functools.partial(one_line_errors, group="tokenizer")
app = typer.Typer(no_args_is_help=True, help="The mask tokenizer: convert public weights, measure, train.")


@app.command()
@tokenizer_command
def convert(
    mask_tokenizer: Annotated[
        Path,
        typer.Option(
            "--mask-tokenizer",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="mask_tokenizer_256x2.pth, or .safetensors.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", file_okay=False, help="The folder to write.")],
    sam2: Annotated[
        Path | None,
        typer.Option(
            "--sam2",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="sam2.1_hiera_*.pt, for weights that FILE lacks.",
        ),
    ] = None,
    sizes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="YAML with all sizes, where they are not published ones."
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Turn the released weights into a folder that base.tokenizer can name. Every weight is accounted for."""
    from cyclegrpo.tokenizer.params import read_all_sizes

    given = None if sizes is None else read_all_sizes(sizes)
    from cyclegrpo.tokenizer.checkpoint import convert_checkpoint
    from cyclegrpo.tokenizer.config import config_of

    config = None if given is None else config_of(given)
    return show_report("convert", convert_checkpoint(mask_tokenizer, out, sam2=sam2, config=config), as_json)


@app.command()
@tokenizer_command
def info(
    folder: Annotated[Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="A tokenizer's folder.")],
    as_json: AsJson = False,
) -> int:
    """What a tokenizer's folder holds: sizes, codebooks, weights, where they come from."""
    from cyclegrpo.tokenizer.folder import read_info

    return show_report("info", read_info(folder), as_json)


Sources = Annotated[
    list[str] | None, typer.Option("--source", metavar="NAME", help="A source of the params, again for more; else all.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only so many images.")]


@app.command()
@tokenizer_command
def evaluate(
    folder: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer", metavar="DIR", exists=True, file_okay=False, help="Its folder; else base.tokenizer."
        ),
    ] = None,
    source: Sources = None,
    limit: Limit = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", file_okay=False, help="Where figures go.")] = Path(
        "results/tokenizer"
    ),
    params: ParamsFile = PARAMS,
    as_json: AsJson = False,
) -> int:
    """How well true masks of the sources come back: IoU by area, use of the codes, a picture of the worst.

    Of the params file only base and check count.
    """
    from cyclegrpo.params import SourceParams
    from cyclegrpo.params_file import read_sections

    settings = read_sections(params, SourceParams)
    from cyclegrpo.dataset.tokenizers import load_tokenizer
    from cyclegrpo.tokenizer.evaluate import run_evaluate_tokenizer

    base = settings.base
    tokenizer = load_tokenizer(folder or base.tokenizer, base.device, base.tokenizer_dtype)
    report = run_evaluate_tokenizer(settings, tokenizer, out, names=source, limit=limit)
    return show_report("tokenizer evaluate", report, as_json)


@app.command()
@tokenizer_command
def train(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", file_okay=False, help="The folder to write.")],
    settings: Annotated[
        Path | None,
        typer.Option(metavar="FILE", exists=True, dir_okay=False, help="YAML with sizes, losses and steps."),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", exists=True, file_okay=False, help="A tokenizer to go on from."),
    ] = None,
    source: Sources = None,
    limit: Limit = None,
    results: Annotated[
        Path, typer.Option("--results", metavar="DIR", file_okay=False, help="Where the curve goes.")
    ] = Path("results/tokenizer_train"),
    params: ParamsFile = PARAMS,
    as_json: AsJson = False,
) -> int:
    """Train a tokenizer on the true masks of the sources. An interrupted run goes on from its last kept state.

    Of the params file only base and check count.
    """
    from cyclegrpo.params import SourceParams
    from cyclegrpo.params_file import read_sections

    loaded = read_sections(params, SourceParams)
    from cyclegrpo.tokenizer.params import TokenizerTraining

    training = TokenizerTraining() if settings is None else read_sections(settings, TokenizerTraining)
    from cyclegrpo.tokenizer.run import run_train_tokenizer

    report = run_train_tokenizer(loaded, training, out, start=start, results=results, names=source, limit=limit)
    return show_report("tokenizer train", report, as_json)
