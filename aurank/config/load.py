"""``load_config`` and its way back: a file or dict, overrides and tables in, one checked ``Config`` out."""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from aurank.config.components import Choices, check_component, expectation
from aurank.config.cross_checks import EMBEDDINGS, NO_BACKBONE, Look, contradictions, lookup, one_way_loss
from aurank.config.messages import HIGH, ConfigError, KeyPath, Problems, dotted, one_of, show, unknown_key, wrong_value
from aurank.config.reading import Tree, parse_yaml, plain_tree, read_file, write_yaml
from aurank.config.schema import DEFAULT_NAMES, LIST, ONE, Config, DataConfig, DataSection, Sections, known_keys
from aurank.errors import AurankWarning, UserError

_SECTIONS = ("data", "sampler", "model", "loss", "optim", "train", "evaluate")
_ABSENT = object()

Complaints = Callable[[Look], Iterable[tuple[str, str]]]
"""Given the value at any dotted path (None where it has a mistake), says what else is wrong: paths and texts."""


def load_config(
    source: Path | str | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    choices: Mapping[str, Choices],
    complaints: Complaints = lambda _: (),
) -> Config:
    """Return the configuration in ``source`` with ``overrides``, every key and every component checked.

    Args:
        source: the path of a YAML file, or a dict of what it would hold.
        overrides: ``key.path=value``, the value read as YAML and put in place of what was there. Naming another
            component (``loss.name=smooth_ap``) drops the params that ``source`` gives to the one before it, with a
            warning that names them, and keeps those given by overrides.
        choices: the table of each component, by its dotted path (``"loss"``, ``"data.train_transform"``). A component
            whose path is absent is not checked. Arguments are returned as the constructor's annotations want them.
        complaints: further checks of keys against each other.

    Raises:
        ConfigError: lists every mistake, one line each.

    Example:
        >>> source = {"data": {"name": "any"}, "loss": {"name": "any"}, "optim": {"lr": 0.1}, "train": {"steps": 9}}
        >>> load_config(source, ["optim.lr=1e-4"], choices={}).optim.lr
        0.0001
        >>> load_config(source, ["optim.lrr=1"], choices={})
        Traceback (most recent call last):
        aurank.config.messages.ConfigError: override 'optim.lrr=1': optim.lrr: unknown key ...
    """
    config: Config = _load(source, overrides, choices, Config, complaints)
    return config


def load_data_config(
    section: dict[str, Any], overrides: Sequence[str] = (), *, choices: Mapping[str, Choices]
) -> DataConfig:
    """Return the data section of a configuration alone, checked like ``load_config`` does.

    Example:
        >>> load_data_config({"name": "any"}, ["data.workers=4"], choices={}).workers
        4
    """
    config: DataSection = _load({"data": section}, overrides, choices, DataSection)
    return config.data


def _load(
    source: Path | str | dict[str, Any],
    overrides: Sequence[str],
    choices: Mapping[str, Choices],
    schema: type[Sections],
    complaints: Complaints = lambda _: (),
) -> Any:
    name = None if isinstance(source, dict) else str(source)
    problems = Problems(name)
    given = source if isinstance(source, dict) else read_file(Path(source), problems, shipped=shipped_configs())
    tree = plain_tree(given, (), problems)
    dropped = _apply_overrides(tree, _parse_overrides(overrides, problems), problems, choices)
    _fill(tree, schema)
    known = _known(tree, choices)

    def look(path: str) -> Any:
        """The value at a dotted path of ``tree`` or its default, None where it has a mistake."""
        keys = tuple(path.split("."))
        if problems.within(keys) or problems.covers(keys) or keys[0] not in schema.model_fields:
            return None
        key, value = known_keys().get(keys), lookup(tree, keys)
        default = None if key is None or key.is_required() else key.get_default(call_default_factory=True)
        return default if value is None else value

    def add(found: Iterable[tuple[str, str]]) -> None:
        for path, text in found:
            problems.add(tuple(path.split(".")), text)

    config = _validate(tree, schema, choices, problems, known)
    if config is None:
        # pydantic compares keys only once each is right alone; here what can be compared is compared at once.
        add(contradictions(look))
    if "loss" in choices and look("model.text") is not None:
        losses = choices["loss"]
        add(one_way_loss(look("loss"), {one: "two_way" in losses.arguments(one) for one in losses.table}))
    add(complaints(look))
    checked = {}
    for section, table in _chosen(tree, choices):
        checked[section] = check_component(section, lookup(tree, section), table, problems, known=known)
    if config is None or problems:
        raise ConfigError(problems.lines(), name, count=len(problems))
    for line in dropped:
        warnings.warn(line, AurankWarning, stacklevel=3)
    for section, values in checked.items():
        config = _with_params(config, section, values)
    return config


def _with_params(node: Any, path: Sequence[str | int], params: dict[str, Any]) -> Any:
    """Return a copy of a section with other ``params`` of the component at ``path``."""
    if not path:
        return node.model_copy(update={"params": params})
    key, *below = path
    if isinstance(node, tuple):
        return tuple(_with_params(item, below, params) if place == key else item for place, item in enumerate(node))
    return node.model_copy(update={str(key): _with_params(getattr(node, str(key)), below, params)})


def _parse_overrides(overrides: Sequence[str], problems: Problems) -> list[tuple[tuple[str, ...], Any]]:
    """Return (path, value) of each right ``key.path=value``, the value read as YAML."""
    found = []
    for text in [overrides] if isinstance(overrides, str) else overrides:
        label = f"override {show(text)}"
        name, equals, value = text.partition("=")
        path = tuple(part.strip() for part in name.split("."))
        try:
            if not equals or not all(path):
                raise UserError(f"{label}: expected key.path=value, for example optim.lr=1e-4")
            problems.origins = {key: origin for key, origin in problems.origins.items() if key[: len(path)] != path}
            problems.origins[path] = label
            tree = parse_yaml(value, path, problems, lambda mark, label=label: label)  # type: ignore[misc]
            found.append((path, plain_tree(tree, path, problems)))
        except UserError as error:
            problems.add((label,), str(error), bare=True)
    return [change for change in found if not problems.covers(change[0])]


def _apply_overrides(
    tree: Tree, overrides: Sequence[tuple[tuple[str, ...], Any]], problems: Problems, choices: Mapping[str, Choices]
) -> list[str]:
    """Set each path of ``tree`` to its value; return a line on each set of ``params`` that was dropped.

    Naming another component drops the ``params`` of ``tree``, which belonged to the one before; ``params`` given by
    overrides stay, before or after the name.
    """
    dropped = []
    # The last one where there are several.
    names = {path[:-1]: value for path, value in overrides if path[-1] == "name" and ".".join(path[:-1]) in choices}
    for path, value in names.items():
        component, section = ".".join(path), lookup(tree, path)
        before = section.get("name", DEFAULT_NAMES.get(component)) if isinstance(section, dict) else value
        params = section.pop("params", None) if before != value else None
        if isinstance(params, dict) and params:
            given = ", ".join(f"{key}={show(one)}" for key, one in params.items())
            of = f" of {before}" if before else ""
            dropped.append(f"{component}.name={value} leaves out the {component}.params{of}: {given}")
    for path, value in overrides:
        section = tree
        for depth, key in enumerate(path[:-1], start=1):
            if section.get(key) is None:
                section[key] = {}
            if not isinstance(section[key], dict):
                parent = dotted(path[:depth])
                problems.add(path, f"{parent} is {show(section[key])}, not a mapping; set {parent} as a whole")
                break
            section = section[key]
        else:
            section[path[-1]] = value
    return dropped


def _fill(tree: Tree, schema: type[Sections]) -> None:
    """Write out what may be left out: empty sections, the names of default components."""
    for path in (*_SECTIONS, *DEFAULT_NAMES):
        *parents, last = path.split(".")
        if path.split(".")[0] in schema.model_fields and isinstance(holder := lookup(tree, parents), dict):
            if holder.get(last) is None and known_keys()[*parents, last].default is not None:
                holder[last] = {}
            if isinstance(holder.get(last), dict) and path in DEFAULT_NAMES:
                holder[last].setdefault("name", DEFAULT_NAMES[path])
    if lookup(tree, ("data", "name")) == EMBEDDINGS and isinstance(model := tree.get("model"), dict):
        model.setdefault("backbone", NO_BACKBONE)


def _known(tree: Tree, choices: Mapping[str, Choices]) -> list[KeyPath]:
    """Return every key that there is, with the arguments of the components that are chosen."""
    known: list[KeyPath] = list(known_keys())
    for section, table in _chosen(tree, choices):
        name = lookup(tree, (*section, "name"))
        if isinstance(name, str) and name in table.table:
            known += [(*section, "params", argument) for argument in table.arguments(name)]
    return known


def _chosen(tree: Tree, choices: Mapping[str, Choices]) -> Iterator[tuple[KeyPath, Choices]]:
    """Yield the path of every component that ``tree`` holds, with its table; of a list, of each item."""
    for path, table in choices.items():
        sections: list[KeyPath] = [()]
        for key in path.split("."):
            sections = [place for section in sections for place in _items(tree, (*section, key))]
        yield from ((section, table) for section in sections if isinstance(lookup(tree, section), dict))


def _items(tree: Tree, section: KeyPath) -> list[KeyPath]:
    found = lookup(tree, section)
    return [(*section, place) for place in range(len(found))] if isinstance(found, list) else [section]


def _validate(
    tree: Tree, schema: type[Sections], choices: Mapping[str, Choices], problems: Problems, known: Sequence[KeyPath]
) -> Sections | None:
    """Return the config that ``tree`` holds, or None; the mistakes of single keys go to ``problems``."""
    try:
        return schema.model_validate_json(json.dumps(tree))
    except ValidationError as error:
        for item in error.errors(include_url=False):
            item["loc"] = tuple(key for key in item["loc"] if key not in (ONE, LIST))
            if item["loc"]:
                problems.add(item["loc"], partial(_explain, item, choices, known))
    return None


def _explain(item: ErrorDetails, choices: Mapping[str, Choices], known: Sequence[KeyPath]) -> str:
    path, value, kind = item["loc"], item["input"], item["type"]
    if kind == "extra_forbidden":
        return unknown_key(path, value, known)
    keys = tuple(key for key in path if isinstance(key, str))
    section, key = ".".join(keys[:-1]), known_keys().get(keys)
    expected, options = (item["msg"], []) if key is None else expectation(Annotated[key.annotation, key])
    if keys[-1:] == ("name",) and section in choices:
        expected, options = one_of(choices[section].table), list(choices[section].table)
    if kind == "missing":
        return f"missing, expected {expected}"
    if kind == "less_than_equal" and item["ctx"]["le"] >= HIGH:
        expected = f"at most {item['ctx']['le']:g}"
    if is_item := keys == ("loss",) and len(path) > 1:
        expected = expected.partition(", or a list")[0]
    text = wrong_value(value, expected, options)
    if isinstance(value, str) and ".".join(keys) in choices:
        name = show(value)[1:-1]
        text += f"; write {{name: {name}}}" if is_item else f"; write {'.'.join(keys)}.name={name}"
    return text


def dump_config(config: Config) -> str:
    """Return ``config`` as YAML with every key written out; loading it gives an equal config.

    Example:
        >>> source = {"data": {"name": "any"}, "loss": {"name": "any"}, "optim": {"lr": 0.1}, "train": {"steps": 9}}
        >>> print(dump_config(load_config(source, choices={}))[:27])
        seed: 0
        data:
          name: any
    """
    return write_yaml(config.model_dump(mode="json"))


def config_difference(first: Config, second: Config) -> list[str]:
    """Return one line for each key whose value differs, the first config's value first.

    Example:
        >>> source = {"data": {"name": "any"}, "loss": {"name": "any"}, "optim": {"lr": 0.1}, "train": {"steps": 9}}
        >>> config_difference(load_config(source, choices={}), load_config(source, ["seed=3"], choices={}))
        ['seed: 0 != 3']
    """

    def differences(left: Any, right: Any, path: KeyPath) -> Iterable[str]:
        if isinstance(left, dict) and isinstance(right, dict):
            for key in dict.fromkeys([*left, *right]):
                yield from differences(left.get(key, _ABSENT), right.get(key, _ABSENT), (*path, key))
        elif left != right:
            shown = ["(absent)" if value is _ABSENT else show(value) for value in (left, right)]
            yield f"{dotted(path)}: {' != '.join(shown)}"

    return list(differences(first.model_dump(mode="json"), second.model_dump(mode="json"), ()))


def shipped_configs() -> dict[str, Path]:
    """Return the configs that come with aurank, by name: from the package, or from a checkout beside it.

    Example:
        >>> shipped_configs()["omniglot/soprc"].name
        'soprc.yaml'
    """
    package = Path(__file__).resolve().parent.parent
    folder = package / "configs"
    # Beside an installed package, "configs" would be somebody else's.
    if not folder.is_dir() and (package.parent / "pyproject.toml").is_file():
        folder = package.parent / "configs"
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.glob("**/*.yaml"))}
