"""Weights of a file in the parameters of a network: what fits, what is missing, what is left over."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from aurank.errors import UserError
from aurank.models.adapters.weight_files import Tensors, read_weights

Variants = Callable[[Tensors], Iterator[Tensors]]
"""Yields the tensors of a file, and the same under other names or in other shapes that a network may know them by."""

# Buffers that some versions of a library save and others make anew.
_MADE = re.compile(r"(^|\.)(num_batches_tracked|position_ids|inv_freq|relative_position_index|attn_mask)$")
_WRAPPERS = re.compile(r"^(_orig_mod|module|model|net|network|backbone|encoder|student|teacher)\.")


@dataclass(frozen=True)
class Fit:
    """How tensors of a file fit a network.

    Attributes:
        tensors: those that fit, by the network's names.
        missing: names of the network that nothing was found for.
        misshapen: those that something of another shape was found for, with both shapes.
        unexpected: names of the file that only a larger or another network of this kind has.
        left_over: the other names of the file that are not used: a classifier, a text tower.
        fresh: names of the network's classifier, which begins at random.
    """

    tensors: Tensors
    missing: list[str]
    misshapen: list[str]
    unexpected: list[str]
    left_over: list[str]
    fresh: list[str]

    @property
    def wrong(self) -> int:
        """How many tensors do not fit."""
        return len(self.missing) + len(self.misshapen) + len(self.unexpected)


def fit_tensors(own: Mapping[str, Tensor], weights: Tensors, *, classifier: Sequence[str] = ()) -> Fit:
    """Return how tensors fit those of a network, below whatever prefix most of the names have in common with it.

    Args:
        classifier: names, or beginnings of names, of the network's classifier, which may be missing or another one.

    Example:
        >>> import torch
        >>> fit_tensors({"conv.bias": torch.zeros(2)}, {"module.conv.bias": torch.ones(2), "fc.bias": torch.ones(1)})
        Fit(tensors={'conv.bias': tensor([1., 1.])}, missing=[], misshapen=[], ..., left_over=['fc.bias'], fresh=[])
    """
    prefix = _prefix(own, weights)
    inside = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    left_over = [name for name in weights if not name.startswith(prefix)]
    tensors, missing, misshapen, fresh = {}, [], [], []
    for name, value in own.items():
        found = inside.get(name)
        if found is not None and found.shape == value.shape:
            tensors[name] = found
        elif _is_within(name, classifier):
            fresh.append(name)
        elif found is not None:
            misshapen.append(f"{name} {list(found.shape)}, expected {list(value.shape)}")
        elif not _MADE.search(name):
            missing.append(name)
    parts = {name.split(".")[0] for name in own}
    unexpected: list[str] = []
    for name in inside:
        if name in own or _MADE.search(name):
            continue
        is_own = name.split(".")[0] in parts and not _is_within(name, classifier)
        (unexpected if is_own else left_over).append(name)
    return Fit(tensors, missing, misshapen, unexpected, left_over, fresh)


def load_weights_file(
    module: nn.Module,
    path: Path | str,
    *,
    name: str,
    classifier: Sequence[str] = (),
    variants: Variants = lambda weights: iter([weights]),
) -> str:
    """Load a file or folder of weights into a network; return what was taken and what was left over, in words.

    name: what the network is called in messages.

    Raises:
        UserError: no file, none of weights, or weights that do not fill the network.
    """
    own = module.state_dict()
    tried: list[tuple[str, Fit]] = []
    for container, weights in read_weights(path).items():
        for variant in variants(weights):
            tried.append((container, fit_tensors(own, variant, classifier=classifier)))
            if not tried[-1][1].wrong:
                break
    container, best = min(tried, key=lambda one: one[1].wrong)
    if best.wrong or not best.tensors:
        raise UserError(
            f"the weights of {path} do not fit {name}: {_mistakes(best, own)}; use weights of {name} itself"
        )
    module.load_state_dict(best.tensors, strict=False)
    others = {other for other, one in tried if not one.wrong and other != container}
    below = f", below {container!r}" if container else ""
    said = f"{len(best.tensors)} tensors of {path}{below} fill {name}"
    if others:
        said += f"; {', '.join(map(repr, sorted(others)))} would fit too"
    if best.left_over:
        said += f"; left over: {some(best.left_over)}"
    if best.fresh:
        said += f"; at random: {some(best.fresh)}"
    return said


def some(names: Sequence[str], most: int = 3) -> str:
    """Return how many names there are, and a few of them.

    Example:
        >>> some(["fc.weight", "fc.bias"])
        '2 (fc.weight, fc.bias)'
    """
    return f"{len(names)} ({', '.join(names[:most])}{', …' if len(names) > most else ''})"


def unwrapped(weights: Tensors) -> Iterator[Tensors]:
    """Yield the weights, then without each word that what wrapped the network put before all names."""
    yield weights
    while (found := _WRAPPERS.match(next(iter(weights)))) is not None:
        inside = {name.removeprefix(found[0]): value for name, value in weights.items() if name.startswith(found[0])}
        if 2 * len(inside) < len(weights):
            return
        yield (weights := inside)


def converted(weights: Tensors, conversions: Iterable[Callable[[Tensors], Tensors | None]]) -> Iterator[Tensors]:
    """Yield the weights without wrappers, then what each conversion makes of them; a failing one makes nothing."""
    whole = list(unwrapped(weights))
    yield from whole
    for convert in conversions:
        for one in whole:
            # A conversion is of one layout: of another it fails in its own way.
            with contextlib.suppress(Exception):
                if (found := convert(dict(one))) is not None:
                    yield found


def _prefix(own: Mapping[str, Tensor], weights: Tensors) -> str:
    counts: Counter[str] = Counter()
    for name in weights:
        parts = name.split(".")
        for start in range(len(parts)):
            if ".".join(parts[start:]) in own:
                counts["".join(f"{part}." for part in parts[:start])] += 1
    return min(counts, key=lambda prefix: (-counts[prefix], len(prefix)), default="")


def _is_within(name: str, beginnings: Sequence[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in beginnings)


def _mistakes(found: Fit, own: Mapping[str, Tensor]) -> str:
    said = []
    if found.missing:
        said.append(f"{len(found.missing)} of {len(own)} tensors are missing ({', '.join(found.missing[:3])})")
    if found.misshapen:
        said.append(f"{len(found.misshapen)} of another shape ({'; '.join(found.misshapen[:2])})")
    if found.unexpected:
        said.append(f"{len(found.unexpected)} unexpected ({', '.join(found.unexpected[:3])})")
    return ", ".join(said) or "no name of the file is one of its own"
