"""Options, and what several commands share of them."""

import ctypes
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from aurank.cli.drawing import draw_measuring, progress_line
from aurank.errors import UserError
from aurank.extras import require_libraries
from aurank.files import claimed, require_writable

if TYPE_CHECKING:
    from aurank.distributed import ProcessGroup

Decorator = Callable[[Callable[..., None]], Callable[..., None]]
Drawn = Callable[..., AbstractContextManager[Any]]
"""Draws how a model is run, and gives its `RunOptions`; takes what is to be called with each result."""

_DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia", "xla")
Given = dict[str, Any]  # the options of a command by name

MODELS = (
    "aurank:DIR/best, hf-hub:OWNER/NAME, timm:NAME[,pretrained=false], open_clip:NAME, transformers:NAME, onnx:FILE, "
    "python:MODULE:FUNCTION"
)


def option(text: str, *names: str, default: Any = None, suffix: str | None = None, **limits: Any) -> Any:
    if suffix is not None:
        limits["callback"] = _writes(suffix)
    return typer.Option(default, *names, help=text, **limits)


def argument(text: str, metavar: str | None = None, *, default: Any = None, **limits: Any) -> Any:
    return typer.Argument(default, metavar=metavar, help=text, **limits)


# The `callback` of an option or argument looks at what it names, before the command imports anything heavy.


def reads(value: Any) -> Any:
    for path in value if isinstance(value, list | tuple) else [] if value is None else [value]:
        is_override = str(path).startswith("data.") and "=" in str(path)
        if not (is_override or _is_there(path)):
            raise UserError(f"{path}: there is no such file or folder in {Path.cwd()}; correct the path")
    return value


def reads_some(paths: Any) -> Any:
    if not any(path == "-" or _is_there(path) for path in paths):
        reads(paths)
    return paths


def _is_there(path: Path | str) -> bool:
    with suppress(OSError, ValueError):  # of a name that no file can have
        # An address is looked at by what reads it.
        return ":/" in str(path) or str(path).startswith("milvus:") or Path(path).exists()
    return False


def _writes(suffix: str) -> Callable[[TyperOption, Path | None], Path | None]:
    def check(option: TyperOption, value: Path | None) -> Path | None:
        if value is not None:
            require_writable(value, suffix=suffix, option=option.opts[0])
        return value

    return check


def _reads_model(model: str | None) -> str | None:
    kind, _, what = (model or "").partition(":")
    if model:
        from aurank.embedding.named import require_model_name

        require_model_name(model)
    if what and kind in ("embeddings", "onnx") and not _is_there(what):
        reads(what.partition(",")[0])  # options may follow
    for pair in what.split(",")[1:]:
        if pair.startswith("weights="):
            reads(pair.removeprefix("weights="))
    return model


def _reads_config(context: Any, overrides: list[str] | None) -> list[str] | None:
    if (config := context.params.get("config")) is not None and context.info_name != "config":  # which lists all errors
        from aurank.training.components import require_names

        require_names(config, overrides or [])
    return overrides


def _reads_index(folder: str) -> str:
    from aurank.embedding.named import require_index

    if not folder.startswith("milvus:"):
        require_index(Path(folder))
    return folder


def require_search(index: str) -> None:
    is_milvus = index.startswith("milvus:")
    require_libraries(*("a gallery in Milvus", "pymilvus") if is_milvus else ("a search by faiss", "faiss"))


def require_keys(data: str, overrides: Sequence[str]) -> None:
    """Raise UserError for overrides of images, READER:PATH or a configuration, that nobody knows."""
    from aurank.embedding.choices import require_data_keys
    from aurank.training.components import require_names

    if not require_data_keys(data, [override for override in overrides if not override.startswith("seed=")]):
        require_names(data, overrides)


def _is_device(device: str | None) -> str | None:
    """Refuse what torch knows no device by, and a GPU without any driver, before torch is imported."""
    wrong = ""
    if device is not None and not re.fullmatch(rf"({'|'.join(_DEVICES)})(:\d+)?", device):
        wrong = f"expected {', '.join(_DEVICES)}, or one by its number, such as cuda:1"
    elif device is not None and device.startswith("cuda") and sys.platform == "linux" and not Path("/dev/kfd").exists():
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            wrong = "there is no driver of NVIDIA"
    if wrong:
        raise UserError(f"--device {device!r} cannot be used here ({wrong}); cpu always can")
    return device


def device_option(text: str) -> Any:
    return option(text, "--device", callback=_is_device)


def _shared(kind: Any, text: str, *names: str, **limits: Any) -> Any:
    return Annotated[kind, typer.Option(*names, help=text, **limits)]


ConfigFile = Annotated[str, typer.Argument(help="A YAML file, or the name of a shipped one (aurank ls).")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Dotted overrides, such as optim.lr=1e-4.", callback=_reads_config)
]
ModelOption = _shared(
    str, f"{MODELS}, or embeddings:FILE (.npz, or .npy with --labels).", "--model", callback=_reads_model
)
ModelToRun = _shared(str, f"{MODELS}.", "--model", callback=_reads_model)
Labels = _shared(Path | None, "Labels (.npy) of an .npy of embeddings.", callback=reads)
FitOn = _shared(Path | None, "Embeddings (.npz) to fit the steps on; default: the split train.", callback=reads)
Postprocess = _shared(str | None, 'Steps such as "whiten:dim=128, query_expansion:k=5", or a .safetensors of them.')
AsJson = _shared(bool, "Print JSON in place of a table.", "--json")
AllowIndexCode = _shared(bool, "Trust the model of the index: let its code run.", "--allow-code")
Baselines = _shared(
    bool, "Measure chance, raw pixels and the untrained network too, into baselines.json.", "--baselines"
)
Cache = _shared(Path | None, "Folder of the embedding cache; default $AURANK_CACHE, else ~/.cache/aurank/embeddings.")
IndexFolder = Annotated[
    str, typer.Argument(metavar="DIR", help="The folder, or milvus:FILE_OR_URL#COLLECTION.", callback=_reads_index)
]
MovedModel = _shared(str | None, "With milvus:…: where its model is now; default: where it was.", "--model")
Roots = _shared(
    list[Path] | None, "Where the images are now, if they were moved; again for each place they came from.", "--root"
)
# The fields of `ImageSelection`, and how they are given.
_IMAGES = {
    "data": _shared(
        str | None,
        "READER:PATH such as folder:photos, or a configuration; default: what an aurank: model was trained on.",
        "--data",
    ),
    "split": _shared(str | None, "train, val, test or all; default: test, to mine train, for an index all."),
    "protocol": _shared(str | None, "A named protocol, such as sop; its data is in --root."),
    "root": _shared(Path | None, "Folder of the protocol's data."),
}
# How a model is run.
_RUN = {
    "batch": _shared(int | None, "Images embedded at once; default: the configuration's, else by trial.", min=1),
    "device": _shared(str | None, "Such as cuda:1 or cpu; default: cuda where there is one.", callback=_is_device),
    "bf16": _shared(bool, "Embed in bfloat16, faster on GPUs and processors that have it.", "--bf16"),
    "cache": Cache,
    "no_cache": _shared(bool, "Read no embeddings from the cache, and keep none.", "--no-cache"),
    "allow_code": _shared(bool, "Trust --model: python: runs code, and so may options.", "--allow-code"),
}
RUN = ("batch", "device", "cache", "no_cache", "allow_code")
_OVERRIDES = Annotated[list[str] | None, typer.Argument(help="Changes of the data section, such as data.workers=4.")]


# The headings of a long --help and the options under each, in their order. The first has what people use most, and what
# none names.
_FIRST = "Options"
_HEADINGS = {
    "Arguments": (),
    _FIRST: ("model", "data", "split", "out", "k", "labels", "metrics", "recall_at", "baselines", "device", "batch"),
    "Which images": ("protocol", "root"),
    "How embeddings are compared": (
        *("distance", "ties", "postprocess", "fit_on", "index", "dims", "precision", "rescore"),
        *("intervals", "seed", "backend", "max_memory"),
    ),
    "What is written": ("report", "neighbours", "show_class", "shard_rows", "overwrite"),
    "Running": ("bf16", "cache", "no_cache", "allow_code", "help"),
}
_SHORT = 11  # options that need no headings


class Command(TyperCommand):
    """A command that says how far it is, and whose --help has its options under headings, where there are many."""

    def invoke(self, ctx: Any) -> Any:
        with progress_line.told():
            return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        places = [(heading, name) for heading, names in _HEADINGS.items() for name in names]
        groups: dict[str, list[Any]] = {heading: [] for heading in _HEADINGS}
        for one in self.get_params(ctx):
            heading = next((heading for heading, name in places if name == one.name), _FIRST)
            groups["Arguments" if one.param_type_name == "argument" else heading].append(one)
        if sum(map(len, groups.values())) <= _SHORT:
            super().format_options(ctx, formatter)
            return
        order = [name for _, name in places]
        for heading, listed in groups.items():
            listed.sort(key=lambda one: order.index(one.name) if one.name in order else len(order))
            if records := list(filter(None, (one.get_help_record(ctx) for one in listed))):
                with formatter.section(heading):
                    formatter.write_dl(records)


def measuring(*chosen: str, run: Sequence[str] = RUN, joined: bool = False) -> Decorator:
    """Give a command the options that say which images are measured and how the model is run.

    The command is called with an `ImageSelection` as `images`, of the fields `chosen` and overrides, and a `Drawn` as
    `drawn` in their place; without `run` it has neither overrides nor `drawn`.

    Args:
        joined: several processes that are launched for the command share its images, and rank 0 alone prints.
    """
    shared = {**{name: _IMAGES[name] for name in chosen}, **{name: _RUN[name] for name in run}}
    shared |= {"overrides": _OVERRIDES} if run else {}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def parsed(**given: Any) -> None:
            with _launched() if joined else nullcontext() as group:
                from aurank.embedding import ImageSelection  # without torch, as all that is looked at before it

                fields = {name: given.pop(name) for name in chosen}
                images = ImageSelection(**fields, overrides=given.pop("overrides", None) or [])
                images.require_there()
                if isinstance(images.data, str) and images.overrides:
                    require_keys(images.data, images.overrides)
                if run:
                    given["drawn"] = partial(draw_measuring, {name: given.pop(name) for name in run}, group=group)
                command(images=images, **given)

        own = [one for one in inspect.signature(command).parameters.values() if one.name not in ("images", "drawn")]
        for name, kind in shared.items():
            default = False if name in ("bf16", "no_cache", "allow_code") else None
            own.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
        parsed.__name__, parsed.__doc__ = command.__name__, command.__doc__
        parsed.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        parsed.__annotations__ = {one.name: one.annotation for one in own}
        return parsed

    return decorate


@contextmanager
def _launched() -> Iterator["ProcessGroup | None"]:
    """A context with the group of the processes that were launched, None for one alone."""
    if "MASTER_ADDR" not in os.environ:  # torch need not be imported
        yield None
        return
    from aurank.distributed import joined

    with joined("6h") as group:
        yield group if group.size > 1 else None


def claiming(
    free: Callable[[Given], object] = lambda given: None,
    *,
    is_file: bool | Callable[[Given], bool | None] | None = False,
) -> Decorator:
    """Let a command begin only where no other command writes to its --out; of several processes the first claims it.

    Args:
        free: raises UserError where --out holds what may not be replaced; called before anything heavy is imported.
        is_file: whether --out is a file, or what tells by the options; None where the command claims its --out itself.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def alone(**given: Any) -> None:
            with ExitStack() as stack:
                if os.environ.get("RANK", "0") == "0":
                    free(given)
                    kind = is_file(given) if callable(is_file) else is_file
                    if given["out"] is not None and kind is not None:
                        stack.enter_context(claimed(given["out"], is_file=kind))
                command(**given)

        return alone

    return decorate


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{name} {text!r}: expected whole numbers and commas, such as 1,10,100") from None
