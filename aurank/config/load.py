"""``load_config`` and its way back: a file or dict, overrides and tables in, one checked ``Config`` out."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from aurank.config.components import Choices, check_component
from aurank.config.cross_checks import contradictions, one_way_loss
from aurank.config.messages import HIGH, ConfigError, KeyPath, Problems, one_of, show, unknown_key, wrong_value
from aurank.config.reading import Tree, apply_overrides, parse_overrides, plain_tree, read_tree, write_yaml
from aurank.config.schema import DEFAULT_NAMES, Config, DataSection, known_keys
from aurank.errors import AurankWarning

_SECTIONS = ("data", "sampler", "model", "loss", "optim", "train", "evaluate")
_ABSENT = object()
_Schema = TypeVar("_Schema", Config, DataSection)


@overload
def load_config(
    source: Path | str | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    choices: Mapping[str, Choices],
    complaints: Callable[[Callable[[str], Any]], list[tuple[str, str]]] | None = None,
) -> Config: ...
@overload
def load_config(
    source: Path | str | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    choices: Mapping[str, Choices],
    complaints: Callable[[Callable[[str], Any]], list[tuple[str, str]]] | None = None,
    schema: type[_Schema],
) -> _Schema: ...
def load_config(
    source: Path | str | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    choices: Mapping[str, Choices],
    complaints: Callable[[Callable[[str], Any]], list[tuple[str, str]]] | None = None,
    schema: type[Any] = Config,
) -> Any:
    """The configuration in ``source`` with ``overrides``, every key and every component checked.

    Args:
        source: the path of a YAML file, or a dict of what it would hold.
        overrides: ``key.path=value``, the value read as YAML and put in place of what was there. Naming another
            component (``loss.name=smooth_ap``) drops the params that ``source`` gives to the one before it, with a
            warning that names them, and keeps those given by overrides.
        choices: the table of each component, by its dotted path (``"loss"``, ``"data.train_transform"``). A component
            whose path is absent is not checked. Arguments are returned as the constructor's annotations want them.
        complaints: given the value at any dotted path (None where it has a mistake), what else is wrong: paths, texts.
        schema: ``Config``, or ``DataSection`` for a data section alone.

    Raises:
        ConfigError: lists every mistake, one line each.
    """
    problems = Problems()
    if isinstance(source, dict):
        name, tree = None, plain_tree(source, (), problems)
    else:
        name = str(source)
        tree = plain_tree(read_tree(Path(source), problems, shipped=shipped_configs()), (), problems)
    changes = [(path, plain_tree(value, path, problems)) for path, value in parse_overrides(overrides, problems)]
    names = {path: DEFAULT_NAMES.get(path) for path in choices}
    right = [change for change in changes if not problems.covers(change[0])]
    dropped = apply_overrides(tree, right, problems, components=names)
    _fill(tree, schema)
    known = _known(tree, choices)
    config = _validate(tree, schema, choices, problems, known)
    if "loss" in choices:
        losses = choices["loss"]
        two_way = {one: "two_way" in losses.arguments(one) for one in losses.table}
        _add(problems, one_way_loss(_judged(tree, problems), two_way))
    if complaints is not None:
        _add(problems, complaints(_judged(tree, problems)))
    checked = {path: _check(tree, path, choices[path], problems, known) for path in choices}
    if config is None or problems:
        raise ConfigError(problems.lines(), name, count=len(problems))
    for line in dropped:
        warnings.warn(line, AurankWarning, stacklevel=2)
    for path, values in checked.items():
        # The config is new and nobody else's yet; after this its params are what constructors want.
        section = _attribute(config, path)
        if section is not None:
            section.params.update(values)
    return config


def _fill(tree: Tree, schema: type[Config] | type[DataSection]) -> None:
    """Write out what may be left out: empty sections, empty ``params``, the names of default components."""
    for path in (*_SECTIONS, *DEFAULT_NAMES, "miner"):
        *parents, last = path.split(".")
        if [*parents, last][0] not in schema.model_fields:
            continue
        holder = _node(tree, parents)
        if isinstance(holder, dict) and holder.get(last) is None and path != "miner":
            holder[last] = {}
        section = holder.get(last) if isinstance(holder, dict) else None
        if isinstance(section, dict):
            if path in DEFAULT_NAMES:
                section.setdefault("name", DEFAULT_NAMES[path])
                section.setdefault("params", {})
            if "params" in section and section["params"] is None:
                section["params"] = {}


def _known(tree: Tree, choices: Mapping[str, Choices]) -> list[KeyPath]:
    """Every key that there is, with the arguments of the components that are chosen."""
    known: list[KeyPath] = list(known_keys())
    for path, table in choices.items():
        section = tuple(path.split("."))
        node = _node(tree, section)
        name = node.get("name") if isinstance(node, dict) else None
        if isinstance(name, str) and name in table.table:
            known += [(*section, "params", argument) for argument in table.arguments(name)]
    return known


def _validate(
    tree: Tree,
    schema: type[Config] | type[DataSection],
    choices: Mapping[str, Choices],
    problems: Problems,
    known: Sequence[KeyPath],
) -> Config | DataSection | None:
    """The config that ``tree`` holds, or None; its mistakes and contradictions go to ``problems``."""
    try:
        return schema.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        for item in error.errors(include_url=False):
            problems.add(item["loc"], partial(_explain, item, choices, known))
    # pydantic compares keys only once each is right alone; here what can be compared is compared at once.
    _add(problems, contradictions(_judged(tree, problems)))
    return None


def _judged(tree: Tree, problems: Problems) -> Callable[[str], Any]:
    """The value at a dotted path of ``tree`` or its default, None where it has a mistake."""

    def look(path: str) -> Any:
        keys = tuple(path.split("."))
        if problems.within(keys) or problems.covers(keys):
            return None
        value = _node(tree, keys)
        return known_keys()[keys].default if value is None and keys in known_keys() else value

    return look


def _add(problems: Problems, found: list[tuple[str, str]]) -> None:
    for path, text in found:
        problems.add(tuple(path.split(".")), text)


def _explain(item: ErrorDetails, choices: Mapping[str, Choices], known: Sequence[KeyPath]) -> str:
    path, value, kind = item["loc"], item["input"], item["type"]
    if kind == "contradiction":
        return item["msg"]
    if kind == "extra_forbidden":
        return unknown_key(path, value, known)
    keys = tuple(key for key in path if isinstance(key, str))
    section = ".".join(keys[:-1])
    key = known_keys().get(keys)
    expected, options = (key.expected, key.options) if key is not None else (item["msg"], ())
    if keys[-1:] == ("name",) and section in choices:
        expected, options = one_of(choices[section].table), tuple(choices[section].table)
    if kind == "missing":
        return f"missing, expected {expected}"
    if kind == "less_than_equal" and item["ctx"]["le"] >= HIGH:
        expected = f"at most {item['ctx']['le']:g}"
    text = wrong_value(value, expected, options)
    if isinstance(value, str) and (".".join(keys) in choices):
        text += f"; write {'.'.join(keys)}.name={show(value)[1:-1]}"
    return text


def _check(tree: Tree, path: str, table: Choices, problems: Problems, known: Sequence[KeyPath]) -> dict[str, Any]:
    section = tuple(path.split("."))
    node = _node(tree, section)
    return check_component(section, node, table, problems, known=known) if isinstance(node, dict) else {}


def _node(tree: Tree, path: Sequence[str]) -> Any:
    value: Any = tree
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _attribute(config: Config | DataSection, path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = getattr(value, key)
    return value


def dump_config(config: Config) -> str:
    """``config`` as YAML with every key written out; loading it gives an equal config."""
    return write_yaml(config.model_dump(mode="json"))


def config_difference(first: Config, second: Config) -> list[str]:
    """One line for each key whose value differs, ``"optim.lr: 0.1 != 0.2"``, the first config's value first."""
    return _difference(first.model_dump(mode="json"), second.model_dump(mode="json"), ())


def _difference(first: Any, second: Any, path: tuple[str, ...]) -> list[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        return [
            line
            for key in dict.fromkeys([*first, *second])
            for line in _difference(first.get(key, _ABSENT), second.get(key, _ABSENT), (*path, key))
        ]
    if first == second:
        return []
    left, right = ("(absent)" if value is _ABSENT else show(value) for value in (first, second))
    return [f"{'.'.join(path)}: {left} != {right}"]


def shipped_configs() -> dict[str, Path]:
    """The configs that come with aurank, by name ("omniglot/soprc"): from the package, or from a checkout beside it."""
    package = Path(__file__).resolve().parent.parent
    folder = package / "configs"
    # Beside an installed package, "configs" would be somebody else's.
    if not folder.is_dir() and (package.parent / "pyproject.toml").is_file():
        folder = package.parent / "configs"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.glob("**/*.yaml"))}
