"""Commands made from the signatures and docstrings of the functions that they call."""

import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aurank import __version__
from aurank.cli.checks import check_images, check_values
from aurank.cli.drawing import draw_measuring, progress_line
from aurank.cli.signatures import Parameter, defining_module, read_parameters
from aurank.errors import OptionRule, check_options
from aurank.files import claimed

if TYPE_CHECKING:
    from aurank.distributed import ProcessGroup
    from aurank.embedding import ImageSelection

_TYPES = {
    "str": click.STRING,
    "int": click.INT,
    "float": click.FLOAT,
    "bool": click.BOOL,
    "Path": click.Path(path_type=Path),
    "PositiveInt": click.IntRange(min=1),
    "NonNegativeInt": click.IntRange(min=0),
}
_OPTIONS = ("model", "out", "to", "k")  # also where Python takes them by position
_FLAGS = {  # where the flag is not the parameter's name
    "as_json": "--json",
    "classes": "--class",
    "factory": "--index",
    "licence": "--license",
    "precisions": "--precision",
    "neighbours": "--neighbours --neighbors",
    "only_list": "--list",
    "protocols": "--protocol",
    "roots": "--root",
    "templates": "--prompt",
}
_VARIABLES = {"token": "AURANK_TOKEN"}
_WITH_COMMAS = ("metrics", "precisions")  # one value with commas; any other list is given by repetition
_EXPANDED = ("ImageSelection", "RunOptions", "EvaluateOptions", "SearchOptions")  # into their fields
_NO_CACHE = Parameter("no_cache", "bool", False, False, False, "Read no embeddings from the cache, and keep none.")
_RULES = (OptionRule("--cache", excludes=("--no-cache",)),)  # of all commands

# The headings of a long --help and the options under each, in their order. The first has what people use most, and what
# none names.
_HEADINGS = {
    "Options": ("model", "data", "split", "out", "k", "labels", "metrics", "recall_at", "baselines", "device", "batch"),
    "Which images": ("protocol", "root"),
    "How embeddings are compared": (
        *("distance", "ties", "postprocess", "fit_on", "index", "dims", "precisions", "rescore"),
        *("intervals", "seed", "backend", "max_memory"),
    ),
    "What is written": ("report", "neighbours", "show_class", "shard_rows", "overwrite"),
    "Running": ("bf16", "cache", "no_cache", "allow_code"),
}
_SHORT = 11  # options that need no headings
MOST = ("protocol", "root", "bf16")  # left out of most commands


class _List(click.ParamType[Any]):
    """Values with commas between them."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self.kind, self.name = kind, f"{kind.name},…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(self.kind.convert(part.strip(), param, ctx) for part in parts)


def _click_parameter(parameter: Parameter) -> click.Parameter | None:
    """Return an option or an argument; None of what no text in a terminal can be, such as a function."""
    name, words = parameter.name, re.findall(r"\w+", parameter.annotation)
    kind: click.ParamType[Any] | None = next((_TYPES[word] for word in words if word in _TYPES), None)
    if words[0] == "Literal":
        kind = click.Choice([word for word in words[1:] if word != "None"])
    if kind is None or words[0] == "Callable":
        return None
    is_list = words[0] in ("Sequence", "Collection", "Iterable")
    if is_list and (kind is click.INT or name in _WITH_COMMAS):
        kind, is_list = _List(kind), False
    settings: dict[str, Any] = {"type": kind, "required": parameter.is_required, "help": parameter.help}
    if parameter.default not in (None, (), ""):
        settings["default"] = parameter.default
    if name == "overrides" or (parameter.is_positional and name not in _OPTIONS and kind is not click.BOOL):
        return click.Argument([name], nargs=-1 if is_list else 1, **settings)
    flag = _FLAGS.get(name, f"--{name.replace('_', '-')}")
    if kind is click.BOOL:
        names = f"{flag}/--no-{flag[2:]}" if parameter.default else flag
        return click.Option([name, names], is_flag=True, default=bool(parameter.default), help=parameter.help)
    return click.Option(
        [name, *flag.split()], multiple=is_list, show_default=True, envvar=_VARIABLES.get(name), **settings
    )


class Call(dict[str, Any]):
    """The arguments that were typed for a library function, by parameter; called, it calls the function with them."""

    def __init__(self, target: str, arguments: dict[str, Any], running: dict[str, Any] | None) -> None:
        super().__init__(arguments)
        self._target, self._running = target, running
        self.group: ProcessGroup | None = None

    @property
    def images(self) -> "ImageSelection":
        images: ImageSelection = self["images"]
        return images

    @contextmanager
    def running(self, finished: Callable[[str, Any], None] | None = None) -> Iterator[Any]:
        """Give the `RunOptions` that were typed, which draw how far the model is."""
        with draw_measuring(self._running or {}, finished, group=self.group) as running:
            yield running

    def __call__(self, *, finished: Callable[[str, Any], None] | None = None, **further: Any) -> Any:
        """Return what the library function returns."""
        module, _, name = self._target.rpartition(".")
        function, arguments = getattr(import_module(module), name), {**self, **further}
        if self._running is None or "running" in further:
            return function(**arguments)
        with self.running(finished) as running:
            return function(**arguments, running=running)


class Command(click.Command):
    """A command with the options of a library function, and those that the docstring of its own function describes."""

    def __init__(
        self,
        function: Callable[..., None],
        target: str,
        *,
        name: str,
        without: Sequence[str],
        joined: bool,
        claims: str,
        rules: Sequence[OptionRule],
    ) -> None:
        text = inspect.cleandoc(function.__doc__ or "").partition("\nArgs:")[0]
        super().__init__(name, callback=self._run, help=re.sub(r"\n\n(?=aurank )", "\n\n\b\n", text))
        self.function, self.target, self.without = function, target, ("usual", *without)
        self.joined, self.claims, self.rules = joined, claims, (*rules, *_RULES)

    @cached_property
    def sources(self) -> dict[str, dict[str, Parameter]]:
        """The parameters: the command's "own", those of the "function", and those of the option classes it takes."""
        own = read_parameters(self.function.__module__, self.function.__name__)
        sources = {"own": {name: parameter for name, parameter in own.items() if parameter.help}}
        if not self.target:
            return sources
        module, _, name = self.target.rpartition(".")
        parameters = dict(read_parameters(module, name))
        sources["function"] = parameters
        for parameter in [*parameters.values()]:
            if match := re.search("|".join(_EXPANDED), parameter.annotation):
                del parameters[parameter.name]
                sources[parameter.name] = read_parameters(defining_module(module, match[0]), match[0])
                if match[0] == "RunOptions":
                    sources[parameter.name] |= {"no_cache": _NO_CACHE}
        taken = {*sources["own"]}
        for source in ("function", *(sources.keys() - {"own", "function"})):
            parameters = sources[source]
            left = {name: each for name, each in parameters.items() if name not in {*taken, *self.without}}
            sources[source], taken = left, taken | left.keys()
        return sources

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.params:
            parameters = [each for source in self.sources.values() for each in source.values()]
            self.params = list(filter(None, map(_click_parameter, parameters)))
        return super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        with progress_line.told():
            return super().invoke(ctx)

    def _run(self, **values: Any) -> None:
        typed = {name: value for name, value in values.items() if value is not None and value != ()}
        names = {
            each.name: each.opts[0] if isinstance(each, click.Option) else each.name.upper() for each in self.params
        }
        check_options({names[name]: value for name, value in typed.items()}, self.rules)
        check_values(typed)
        parts = {
            source: {name: typed[name] for name in parameters if name in typed}
            for source, parameters in self.sources.items()
        }
        own, running = parts.pop("own"), parts.pop("running", None)
        fields = parts.pop("images", None)
        call = Call(self.target, {name: value for part in parts.values() for name, value in part.items()}, running)
        with ExitStack() as stack:
            if self.joined:
                call.group = stack.enter_context(_launched())
            if fields is not None:
                from aurank.embedding import ImageSelection  # without torch, as all that is looked at before it

                call["images"] = ImageSelection(**fields)
                check_images(call.images)
            out = {**call, **own}.get("out")
            if self.claims and out is not None and os.environ.get("RANK", "0") == "0":
                stack.enter_context(claimed(out, is_file=self.claims == "file"))
            self.function(call, **own)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        if len(options) <= _SHORT:
            super().format_options(ctx, formatter)
            return
        headings = {name: heading for heading, names in _HEADINGS.items() for name in names}
        order = list(headings)
        options.sort(key=lambda each: order.index(each.name) if each.name in headings else len(order))
        for heading in _HEADINGS:
            listed = [each for each in options if headings.get(each.name, "Options") == heading]
            if records := list(filter(None, (each.get_help_record(ctx) for each in listed))):
                with formatter.section(heading):
                    formatter.write_dl(records)


@contextmanager
def _launched() -> Iterator["ProcessGroup | None"]:
    """A context with the group of the processes that were launched, None for one alone."""
    if "MASTER_ADDR" not in os.environ:  # torch need not be imported
        yield None
        return
    from aurank.distributed import joined

    with joined("6h") as group:
        yield group if group.size > 1 else None


def command(
    group: click.Group,
    target: str = "",
    *,
    name: str | None = None,
    without: Sequence[str] = (),
    joined: bool = False,
    claims: str = "",
    rules: Sequence[OptionRule] = (),
) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator that adds a command to a group.

    The function is called with a `Call` and with its own options, those that its docstring describes; what is not typed
    is not passed, so that the default of the function holds.

    Args:
        target: the library function that gives the other options, with its module.
        without: parameters of the library function that are no options.
        joined: several processes that are launched for the command share its images, and rank 0 alone prints.
        claims: "folder" or "file" where the command keeps others from writing to its --out; else its function does so.
        rules: of options that need or exclude each other.
    """

    def add(function: Callable[..., None]) -> Command:
        title = name or function.__name__
        made = Command(function, target, name=title, without=without, joined=joined, claims=claims, rules=rules)
        group.add_command(made)
        return made

    return add


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # as they were added


@click.group(name="aurank", cls=_Group, context_settings={"max_content_width": 120})
@click.version_option(__version__, message="aurank %(version)s", help="Print the version and exit.")
def app() -> None:
    """Train image-retrieval embeddings for average precision, and measure any embedding exactly."""


@click.group(name="data", cls=_Group)
def data_app() -> None:
    """Look after data sets."""


@click.group(name="index", cls=_Group)
def index_app() -> None:
    """Make an index of images, and change it."""
