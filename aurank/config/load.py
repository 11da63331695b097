"""A YAML file or dict, overrides and tables of components in, one checked and frozen ``Config`` out; and back."""

import io
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import implicit_resolvers

from aurank.config.components import Choices
from aurank.config.messages import ConfigError, KeyPath, dotted, lines_of, one_line, show
from aurank.config.schema import EMBEDDINGS, NO_BACKBONE, Config, DataSection, known_keys
from aurank.errors import AurankWarning, UserError
from aurank.files import reading, require_ordinary
from aurank.names import meant, nearest

Tree = dict[str, Any]
_TAG = "tag:yaml.org,2002:"
_VALUES = tuple(f"{_TAG}{name}" for name in ("int", "float", "bool", "null"))
_TEXTS = tuple(f"{_TAG}{name}" for name in ("str", "timestamp", "merge", "value"))
_COLLECTIONS = (f"{_TAG}seq", f"{_TAG}map")
_ABSENT = object()


def load_config(
    source: Path | str | dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    choices: Mapping[str, Choices],
    complaints: Callable[[Any], Iterable[tuple[str, str]]] = lambda _: (),
    schema: type[Any] = Config,
) -> Any:
    """Return the configuration in ``source`` with ``overrides``, every key and every component checked.

    Args:
        source: the path of a YAML file, or a dict of what it would hold.
        overrides: ``key.path=value``, the value read as YAML and put in place of what was there. Naming another
            component (``loss.name=smooth_ap``) drops the params that ``source`` gives to the one before it, with a
            warning that names them, and keeps those given by overrides.
        choices: the table of components of each kind ("data", "data.train_transform", "sampler", "loss", "miner",
            "optim", "optim.schedule"). Components without a table are not checked.
        complaints: says what else is wrong where each key is right: dotted paths and texts.
        schema: the model of what ``source`` holds; ``DataSection`` is ``Config`` where there are more sections.

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
    name = None if isinstance(source, dict) else str(source)
    origins: dict[KeyPath, str] = {} if name is None else {(): name}
    is_config = schema in (Config, DataSection)
    try:
        tree = to_jsonable_python(source) if isinstance(source, dict) else read_mapping(Path(source), origins)
        schema = Config if schema is DataSection and tree.keys() - schema.model_fields else schema
        dropped = _apply_overrides(tree, [overrides] if isinstance(overrides, str) else overrides, origins)
        tree = {section: value for section, value in tree.items() if value is not None}
        if schema is Config and _lookup(tree, "data.name") == EMBEDDINGS and isinstance(tree.get("model", {}), dict):
            tree["model"] = {"backbone": NO_BACKBONE, **tree.get("model", {})}
        text = json.dumps(tree)
    except (UserError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError([one_line(str(error))], name) from error
    try:
        context = {"choices": choices, "complaints": complaints}
        config = schema.model_validate_json(text, context=context)
    except ValidationError as error:
        keys = _all_keys(tree, choices) if is_config else list(schema.model_fields)
        raise ConfigError(lines_of(error.errors(include_url=False), tree, origins, keys), name) from error
    for line in dropped:
        warnings.warn(line, AurankWarning, stacklevel=2)
    return config


def _all_keys(tree: Tree, choices: Mapping[str, Choices]) -> list[str]:
    keys = list(known_keys())
    for path, table in choices.items():
        section = _lookup(tree, path)
        for component in section if isinstance(section, list) else [section]:
            name = (component if isinstance(component, dict) else {}).get("name", known_keys()[f"{path}.name"].default)
            if isinstance(name, str) and name in table.table:
                keys += [f"{path}.params.{argument}" for argument in table.arguments(name)]
    return keys


def _lookup(tree: Any, path: str) -> Any:
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _apply_overrides(tree: Tree, overrides: Sequence[str], origins: dict[KeyPath, str]) -> list[str]:
    """Set each key of ``tree`` to its value, in place; return a line on each set of ``params`` that was dropped."""
    changes: dict[tuple[str, ...], Any] = {}
    for text in overrides:
        label, (name, equals, value) = f"override {show(text)}", text.partition("=")
        path = tuple(part.strip() for part in name.split("."))
        if not equals or not all(path):
            raise UserError(f"{label}: expected key.path=value, for example optim.lr=1e-4")
        changes.pop(path, None)
        with reading(label, "YAML", remedy="quote the value"):
            changes[path] = _parse(value, label, {})
        for below in [key for key in origins if key[: len(path)] == path]:
            del origins[below]
        origins[path] = label
    dropped = []
    for path, value in changes.items():
        section = _lookup(tree, ".".join(path[:-1]))
        if path[-1] == "name" and isinstance(section, dict) and section.get("params"):
            holder = dotted(path[:-1])
            before = section.get("name", getattr(known_keys().get(f"{holder}.name"), "default", None))
            if before != value:
                params = ", ".join(f"{key}={show(argument)}" for key, argument in section.pop("params").items())
                dropped.append(f"{holder}.name={value} leaves out the {holder}.params of {before}: {params}")
    for path, value in changes.items():
        section = tree
        for depth, key in enumerate(path[:-1], start=1):
            if section.get(key) is None:
                section[key] = {}
            if not isinstance(section[key], dict):
                holder = dotted(path[:depth])
                raise UserError(f"{origins[path]}: {holder} is {show(section[key])}, not a mapping; set it as a whole")
            section = section[key]
        section[path[-1]] = value
    return dropped


def override_text(text: str, overrides: Sequence[str], check: Callable[[Tree, Sequence[str]], object]) -> str:
    """Return the YAML text of a configuration with overrides written into it; comments stay."""
    yaml: Any = YAML()
    yaml.width, stream = sys.maxsize, io.StringIO()
    tree = yaml.load(text)
    check(tree, overrides)
    _apply_overrides(tree, overrides, {})
    yaml.dump(tree, stream)
    return stream.getvalue()


def read_mapping(path: Path, origins: dict[KeyPath, str]) -> Tree:
    with reading(path, "a configuration", remedy="mend it"):
        if not path.exists():
            files = [*shipped_configs(), *map(str, path.parent.glob("*.yaml"))]
            raise UserError(f"{path}: no such file{meant(nearest(str(path), files))}")
        require_ordinary(path)
        tree = _parse(path.read_bytes().decode("utf-8-sig"), str(path), origins)
        if not isinstance(tree, dict):
            raise UserError(f"{path}: got {show(tree)}, expected a mapping")
        return tree


def _parse(text: str, source: str, origins: dict[KeyPath, str]) -> Any:
    def where(mark: Any) -> str:
        return f"{source}:{mark.line + 1}:{mark.column + 1}"

    def value_of(node: Any, path: KeyPath) -> Any:
        if node.anchor is not None or node.tag not in (*_VALUES, *_TEXTS, *_COLLECTIONS):
            raise UserError(f"{where(node.start_mark)}: tags, anchors and aliases are refused; write plain values")
        if path:
            origins.setdefault(path, where(node.start_mark))
        if isinstance(node, ScalarNode):
            return yaml.constructor.construct_object(node) if node.tag in _VALUES else node.value
        if not isinstance(node, MappingNode):
            return [value_of(item, (*path, number)) for number, item in enumerate(node.value)]
        tree: Tree = {}
        for key_node, value_node in node.value:
            key, origin = key_node.value, where(key_node.start_mark)
            if not isinstance(key, str) or key in tree:
                mistake = f"{key} is given twice" if isinstance(key, str) else "a key must be text"
                raise UserError(f"{origin}: {mistake}")
            origins.setdefault((*path, key), origin)
            tree[key] = value_of(value_node, (*path, key))
        return tree

    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
        return None if node is None else value_of(node, ())
    except MarkedYAMLError as error:
        problem = one_line(error.problem or error.context or "not YAML")
        raise UserError(f"{where(error.problem_mark or error.context_mark)}: {problem}") from error


class _Representer(SafeRepresenter):
    """Mappings in blocks, lists on one line; text without quotes where YAML 1.1 and 1.2 agree that it is text."""

    def represent_str(self, value: str) -> Any:
        is_other = any(rule.match(value) for _, _, rule, _ in implicit_resolvers)
        is_key = value.startswith("?")  # to ruamel's reader, though text to YAML 1.2
        style = '"' if not value.isprintable() else "'" if is_other or is_key else None
        return self.represent_scalar(f"{_TAG}str", value, style=style)


_Representer.add_representer(dict, lambda it, value: it.represent_mapping(f"{_TAG}map", value, flow_style=False))
_Representer.add_representer(list, lambda it, value: it.represent_sequence(f"{_TAG}seq", value, flow_style=True))
_Representer.add_representer(str, _Representer.represent_str)


def dump_config(config: Config) -> str:
    """Return ``config`` as YAML 1.1 and 1.2 with every key written out; loading it gives an equal config.

    Example:
        >>> source = {"data": {"name": "any"}, "loss": {"name": "any"}, "optim": {"lr": 0.1}, "train": {"steps": 9}}
        >>> print(dump_config(load_config(source, choices={}))[:27])
        seed: 0
        data:
          name: any
    """
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer, yaml.width, yaml.sort_base_mapping_type_on_output = _Representer, sys.maxsize, False
    stream = io.StringIO()
    yaml.dump(config.model_dump(mode="json"), stream)
    return stream.getvalue()


def config_difference(first: Config, second: Config) -> list[str]:
    """Return one line for each key whose value differs, the first config's value first.

    Example:
        >>> source = {"data": {"name": "any"}, "loss": {"name": "any"}, "optim": {"lr": 0.1}, "train": {"steps": 9}}
        >>> config_difference(load_config(source, choices={}), load_config(source, ["seed=3"], choices={}))
        ['seed: 0 != 3']
    """

    def differences(left: Any, right: Any, path: KeyPath) -> Iterator[str]:
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
