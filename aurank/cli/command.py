"""Commands made from the signatures and docstrings of the functions that they call, and from commands.toml."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aurank.cli.checks import check_images, check_values
from aurank.cli.drawing import console, draw_measuring, progress_line
from aurank.cli.signatures import Parameter, defining_module, read_parameters
from aurank.errors import OptionRule, check_options
from aurank.files import claimed

if TYPE_CHECKING:
    from aurank.distributed import ProcessGroup

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
_WITH_COMMAS = ("metrics", "precisions", "weights")  # one value with commas; any other list is given by repetition
_HIDDEN = ("usual", "command", "memory_map")  # fields that Python alone sets
_NO_CACHE = Parameter("no_cache", "bool", False, False, False, "Read no embeddings from the cache, and keep none.")

_SHORT = 11  # options that need no headings


class _List(click.ParamType[Any]):
    """Values with commas between them."""

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self.kind, self.name = kind, f"{kind.name},…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(self.kind.convert(part.strip(), param, ctx) for part in parts)


def _click_parameter(parameter: Parameter, flags: Mapping[str, str]) -> click.Parameter | None:
    """Return an option or an argument; None of what no text in a terminal can be, such as a function."""
    name, words = parameter.name, re.findall(r"\w+", parameter.annotation) or ["Any"]
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
    flag = flags.get(name, f"--{name.replace('_', '-')}")
    if kind is click.BOOL:
        names = f"{flag}/--no-{flag[2:]}" if parameter.default else flag
        return click.Option([name, names], is_flag=True, default=bool(parameter.default), help=parameter.help)
    if name == "token":
        settings |= {"envvar": "AURANK_TOKEN", "show_envvar": True}
    return click.Option([name, *flag.split()], multiple=is_list, show_default=True, **settings)


def typed_command() -> str:
    """Return the command with its folder, as the same words mean other files elsewhere."""
    words = shlex.join(["aurank", *(word for word in sys.argv[1:] if word != "--overwrite")])
    return f"cd {shlex.quote(str(Path.cwd()))} && {words}"


class Call(dict[str, Any]):
    """The arguments that were typed for a library function, by parameter; called, it calls the function with them."""

    def __init__(self, function: str, running: dict[str, Any] | None) -> None:
        super().__init__()
        self._function, self._running = function, running
        self.group: ProcessGroup | None = None

    def __call__(self, *, finished: Callable[[str, Any], None] | None = None, **further: Any) -> Any:
        """Return what the library function returns; `finished` is called with each result of a model that runs."""
        module, _, name = self._function.rpartition(".")
        function = getattr(import_module(module), name)
        if self._running is None:
            return function(**{**self, **further})
        with draw_measuring(self._running, finished, group=self.group) as running:
            return function(**{**self, **further}, running=replace(running, command=typed_command()))


def print_result(call: Call) -> None:
    lines = [result] if not isinstance(result := call(), Path) else []
    console.say(*lines, *([f"written to {call['out']}"] if "out" in call else []))


class Command(click.Command):
    """A command of commands.toml: its title, what it does, its entry there, and what all entries share."""

    def __init__(
        self, title: str, shell: Callable[..., None], entry: Mapping[str, Any], shared: Mapping[str, Mapping[str, Any]]
    ) -> None:
        text = re.sub(r"\n\n(?=aurank )", "\n\n\b\n", entry["help"])
        super().__init__(title.split()[-1], callback=self._run, help=text)
        self.shell, self.entry, self.headings = shell, entry, shared["headings"]
        self.flags = {**shared["flags"], **entry.get("flags", {})}
        self.rules = [OptionRule("--cache", excludes=("--no-cache",))]  # and those of the entry
        self.rules += [OptionRule(**rule) for rule in entry.get("rules", ())]

    @cached_property
    def sources(self) -> dict[str, dict[str, Parameter]]:
        """Parameters of the command's "own" function, of the library "function", and of the classes that it takes."""
        local = read_parameters(self.shell.__module__, self.shell.__name__)
        texts = {name: text[:1].upper() + text[1:] for name, text in self.entry.get("options", {}).items()}
        sources = {"own": {name: local[name]._replace(help=text) for name, text in texts.items()}, "function": {}}
        module, _, name = self.entry.get("function", "").rpartition(".")
        for parameter in read_parameters(module, name).values() if module else ():
            if match := re.search(r"\w+Options|ImageSelection|ImageIndex", parameter.annotation):
                definition = match[0].replace("ImageIndex", "ImageIndex.open")
                sources[parameter.name] = read_parameters(defining_module(module, match[0]), definition)
            else:
                sources["function"][parameter.name] = parameter
        if "running" in sources:
            sources["running"]["no_cache"] = _NO_CACHE
        hidden, required = {*_HIDDEN, *self.entry.get("without", ())}, self.entry.get("required", ())
        for source, parameters in sources.items():
            shown = [each for name, each in parameters.items() if name not in hidden]
            shown = [each._replace(is_required=each.is_required or each.name in required) for each in shown]
            sources[source] = {each.name: each for each in shown}
            hidden |= parameters.keys()
        return sources

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        if not self.params:
            parameters = [each for source in self.sources.values() for each in source.values()]
            parameters.sort(key=lambda each: each.name != "folder")  # it comes first
            self.params = list(filter(None, (_click_parameter(each, self.flags) for each in parameters)))
        return super().get_params(ctx)

    def invoke(self, ctx: click.Context) -> Any:
        with progress_line.told("the same command goes on" if self.entry.get("goes_on") else ""):
            return super().invoke(ctx)

    def _run(self, **values: Any) -> None:
        typed = {name: value for name, value in values.items() if value is not None and value != ()}
        names = {each.name: each.human_readable_name for each in self.params}
        names |= {each.name: each.opts[0] for each in self.params if isinstance(each, click.Option)}
        check_options({names[name]: value for name, value in typed.items()}, self.rules)
        check_values(typed)
        parts = {
            source: {name: typed[name] for name in parameters if name in typed}
            for source, parameters in self.sources.items()
        }
        call = Call(self.entry.get("function", ""), parts.get("running"))
        call.update(parts["function"] | parts.get("options", {}))
        if "index" in parts:
            call["index"] = parts["index"]
        out, claims = typed.get("out"), self.entry.get("claims")
        with ExitStack() as stack:
            if "images" in parts:
                from aurank.embedding import ImageSelection  # without torch, as all that is looked at before it

                call["images"] = ImageSelection(**parts["images"])
                check_images(call["images"])
            if claims and out is not None and os.environ.get("RANK", "0") == "0":
                stack.enter_context(claimed(out, is_file=claims == "file"))
            if self.entry.get("joined") and "MASTER_ADDR" in os.environ:  # else torch need not be imported
                from aurank.distributed import joined

                group = stack.enter_context(joined("6h"))
                call.group = group if group.size > 1 else None
            self.shell(call, **parts["own"])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        if len(options) <= _SHORT:
            super().format_options(ctx, formatter)
            return
        headings = {name: heading for heading, names in self.headings.items() for name in names}
        order = list(headings)
        options.sort(key=lambda each: order.index(each.name) if each.name in headings else len(order))
        for heading in self.headings:
            listed = [each for each in options if headings.get(each.name, "Options") == heading]
            if records := list(filter(None, (each.get_help_record(ctx) for each in listed))):
                with formatter.section(heading):
                    formatter.write_dl(records)
