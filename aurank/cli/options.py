"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from aurank.errors import UserError
from aurank.sizes import size_in_bytes

ConfigFile = Annotated[str, typer.Argument(help="A YAML file, or the name of a shipped one (aurank ls).")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Dotted overrides, such as optim.lr=1e-4.")]
DataOverrides = Annotated[list[str] | None, typer.Argument(help="Changes of the data section: data.workers=4.")]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        help="aurank:DIR/best, timm:NAME[,pretrained=false], open_clip:, transformers:, onnx:FILE, "
        "python:package.module:function, or embeddings:FILE (.npz, or .npy with --labels).",
    ),
]
DataOption = Annotated[
    str | None, typer.Option("--data", help="READER:PATH such as folder:photos; default: the data it was trained on.")
]
SplitOption = Annotated[str | None, typer.Option(help="Which split to embed: train, val or test (the default).")]
ProtocolOption = Annotated[
    str | None, typer.Option(help="A named protocol, such as sop; --root says where its data is.")
]
RootOption = Annotated[Path | None, typer.Option(help="Folder of a protocol's data, or that table paths start from.")]
QueryOption = Annotated[Path | None, typer.Option(help="Table (csv, parquet) of the queries; needs --gallery.")]
GalleryOption = Annotated[Path | None, typer.Option(help="Table (csv, parquet) of the gallery.")]
BaselinesOption = Annotated[
    bool, typer.Option("--baselines", help="Measure chance, raw pixels and the untrained network too: baselines.json.")
]
BatchOption = Annotated[int | None, typer.Option(min=1, help="Images embedded at once.")]
DeviceOption = Annotated[str | None, typer.Option(help="Such as cuda:1 or cpu; default: CUDA where there is one.")]
CacheOption = Annotated[
    Path | None,
    typer.Option(help="Folder of the embedding cache; default $AURANK_CACHE, else ~/.cache/aurank/embeddings."),
]
NoCacheOption = Annotated[bool, typer.Option("--no-cache", help="Neither read nor keep embeddings.")]
AllowCodeOption = Annotated[
    bool, typer.Option("--allow-code", help="Let --model run code: python:…, or options that may.")
]


def size(option: str, text: str) -> int:
    """The bytes in "20GiB"; UserError naming the option for anything else."""
    try:
        return size_in_bytes(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The numbers in "1,10,100"; UserError naming the option for anything else."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} {text!r}: expected whole numbers and commas, such as 1,10,100") from None
