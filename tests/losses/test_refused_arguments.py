"""Arguments that no loss can take: each is refused with its name."""

from typing import Any

import jaxtyping
import pytest
import torch

from aurank.errors import UserError
from aurank.losses import LOSSES, MultipleLosses, SmoothAPLoss

NEEDED: dict[str, dict[str, Any]] = {
    "emc2": {"num_samples": 4},
    "fastclip": {"num_samples": 20},
    "isogclr": {"num_samples": 8},
    "negative_cache": {"num_samples": 4},
    "neuclip": {"embedding_size": 5},
    "sogclr": {"num_samples": 8},
    "soft_triple": {"num_classes": 3, "embedding_size": 5},
    "soprc": {"class_counts": [2, 2]},
}
# of each loss, values that its arguments refuse
REFUSED: dict[str, dict[str, list[Any]]] = {
    "auroc": {"temperature": [0]},
    "blackbox_ap": {"lambda_": [0], "margin": [-0.1], "flat_weight": [1]},
    "contrastive": {"reduction": ["avg"], "pos_margin": [float("nan")]},
    "cyclip": {"in_modal": [-1]},
    "dcl": {"temperature": [0], "weight_sigma": [-1]},
    "emc2": {"burn_in": [1.0], "temperature": [0]},
    "fast_ap": {"num_bins": [0], "range": [(0,)]},
    "fastclip": {"epsilon": [0]},
    "flat_nce": {"temperature": [-1]},
    "hierarchical_ap": {"super_labels": [[0.5, 1.0], [], [[0, 1], [0, 2]]], "alpha": [0]},
    "info_nce": {"temperature": [float("nan")]},
    "isogclr": {"rho": [0], "temperature_bounds": [(0.5, 0.1)], "temperature_beta": [2], "temperature_clip": [0]},
    "listwise_ap": {"num_bins": [1], "range": [(0, 0), (float("nan"), 1)]},
    "multi_similarity": {"alpha": [0]},
    "circle": {"gamma": [0]},
    "soft_triple": {"la": [0]},
    "negative_cache": {"temperature": [0], "refresh": [1.5]},
    "neuclip": {
        "num_prototypes": [0],
        "epsilon": ["small"],
        "rho": [0],
        "restart_every": [0],
        "inner_steps": [-1],
        "inner_lr": [0],
    },
    "pnp": {"variant": ["PNP-O"]},
    "recall_at_k": {"k": [(), (1.5,), 3], "temperature": [-1], "rank_temperature": [-1]},
    "semi_variance": {"weights": [(1, -1), (1.0,)]},
    "siglip": {"bias": [float("inf")]},
    "simco": {"inter_temperature": [-1]},
    "simo": {"alpha": [0]},
    "smooth_ap": {"temperature": [True, float("inf")]},
    "soprc": {
        "tau1": [0],
        "beta": [1.5],
        "prior_max": [1],
        "num_quantiles": [0],
        "semi_variance": [(1.0, -1.0)],
        "prior": ["uniform"],
        "interpolation": ["cubic"],
        "class_counts": [[], torch.ones(3), [3, -1], {0: 3, 1: 2}],
    },
    "spectral": {"mu": [0]},
    "sup_ap": {"calibration": [1], "slope": [-1], "delta": [True], "positive_margin": [float("inf")]},
    "sup_con": {"positives": ["meet", 0, 1.5, True, None]},
    "sup_recall": {"jump": [float("nan")]},
}
NUMBERS = [
    (name, {argument: value})
    for name, arguments in REFUSED.items()
    for argument, values in arguments.items()
    for value in values
]
TOGETHER = [  # the last one is refused beside the others, or beside the defaults
    ("clip", {"learn_temperature": False, "temperature_bounds": (0.02, None)}),
    ("cyclip", {"learn_temperature": False, "temperature_bounds": (0.02, None)}),
    ("emc2", {"official": True, "out_of_batch": "restart"}),
    ("emc2", {"official": True, "burn_in": 0.25}),
    ("fastclip", {"version": "v0", "rho": 1}),
    ("fastclip", {"version": "v3", "temperature_lr": 0.1}),
    ("fastclip", {"version": "v1", "temperature_bounds": (0.02, 1.0)}),
    ("fastclip", {"version": "v2", "official": True}),
    ("fastclip", {"version": "v2", "temperature": 2}),
    ("hierarchical_ap", {"super_labels": [0, 0, 1], "clustering": 0.1}),
    ("isogclr", {"individual": False, "temperature": 0.01}),
    ("isogclr", {"individual": False, "temperature_lr": 0.1}),
    ("isogclr", {"official": True, "two_way": True}),
    ("isogclr", {"temperature": 0.01}),
    ("negative_cache", {"refresh": 0.1}),
    ("neuclip", {"temperature": 0.001}),
    ("neuclip", {"learn_temperature": False, "rho": 2.0}),
    ("siglip", {"learnable": False, "temperature_bounds": [0.02, None]}),
    ("sogclr", {"official": True, "normalizer": "shared"}),
    ("soprc", {"official": True, "interpolation": "paper"}),
]


@pytest.fixture(autouse=True)
def without_type_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as everywhere but in these tests


@pytest.mark.parametrize(("name", "given"), NUMBERS + TOGETHER)
def test_an_argument_that_cannot_be_is_named(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=list(given)[-1]):
        LOSSES[name](**{**NEEDED.get(name, {}), **given})


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *((name, dict(list(given.items())[:-1])) for name, given in TOGETHER),
        ("clip", {"learn_temperature": False, "temperature_bounds": [0.01, None]}),  # what a configuration repeats
        ("fastclip", {"temperature_bounds": (0.02, 1.0)}),
        ("neuclip", {"rho": 2.0}),
        ("siglip", {"temperature_bounds": (0.02, None)}),
    ],
)
def test_an_argument_refused_beside_another_and_that_other_are_taken_alone(name: str, given: dict[str, Any]) -> None:
    LOSSES[name](**{**NEEDED.get(name, {}), **given})


@pytest.mark.parametrize(
    ("losses", "more", "word"),
    [
        ([SmoothAPLoss()], {"weights": [1, 2]}, "weights"),
        ([SmoothAPLoss()], {"weights": [float("nan")]}, "weights"),
        ([SmoothAPLoss()], {"weights": {"a": 1}}, "weights"),
        ({"a": SmoothAPLoss()}, {"weights": {"b": 1}}, "weights"),
        (SmoothAPLoss(), {}, "losses"),
        ({"a": SmoothAPLoss()}, {"widths": {"b": 2}}, "widths"),
    ],
)
def test_what_does_not_match_the_losses_is_named(losses: Any, more: dict[str, Any], word: str) -> None:
    with pytest.raises(UserError, match=word):
        MultipleLosses(losses, **more)
