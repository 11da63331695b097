"""Arguments of losses: by their own names, by those of papers and repositories, and misspelt."""

import inspect
from typing import Any

import pytest
import torch
from testing.runs import tiny_config

from aurank.losses import LOSSES, PNPLoss, SupAPLoss, SupRecallLoss
from aurank.names import signature
from aurank.training import read_config


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_misspelt_argument_of_any_loss_is_told_with_the_one_that_was_meant(name: str) -> None:
    known, is_open = signature(LOSSES[name])
    assert not is_open
    argument = max(known, key=len)
    misspelt = argument[:3] + argument[4:]
    with pytest.raises(TypeError, match=f"takes no argument '{misspelt}'; did you mean '.*'") as refused:
        LOSSES[name](**{misspelt: 1})
    assert argument in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("loss", "own", "others"),
    [
        ("pnp", {"temperature": 0.2}, [{"tau": 0.2}, {"anneal": 0.2}]),
        (
            "sup_ap",
            {"temperature": 0.2, "slope": 9.0, "calibration": 0.3, "positive_margin": 0.8, "negative_margin": 0.5},
            [
                {"tau": 0.2, "rho": 9.0, "lambda_": 0.3, "alpha": 0.8, "beta": 0.5},
                {"tau": 0.2, "rho": 9.0, "calibration": 0.3, "pos_margin": 0.8, "neg_margin": 0.5},
            ],
        ),
        ("sup_recall", {"jump": 0.0, "slope": 9.0}, [{"start": 0.0, "rho": 9.0}]),
        ("sup_ap", {"temperature": 0.2, "delta": 0.3}, [{"temp": 0.2, "margin": 0.3}]),
    ],
)
def test_names_of_papers_and_repositories_mean_the_same(
    loss: str, own: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    torch.manual_seed(0)
    rows, labels = torch.randn(12, 5), torch.arange(4).repeat_interleave(3)
    expected = LOSSES[loss](**own)(rows, labels)
    assert not expected.isclose(LOSSES[loss]()(rows, labels))
    for other in others:
        assert LOSSES[loss](**other)(rows, labels).equal(expected)
        config = read_config(tiny_config(loss={"name": loss, "params": other}))
        assert config.loss.params == other


def test_an_argument_by_two_names_is_refused() -> None:
    for call in (
        lambda: PNPLoss(tau=0.1, temperature=0.2),
        lambda: SupAPLoss(rho=1, slope=2),
        lambda: SupAPLoss(temp=0.01, tau=100.0),  # as the authors call it: their tau is the slope
        lambda: SupRecallLoss(pos_margin=0.9, alpha=0.9),
    ):
        with pytest.raises(TypeError, match="by two names; leave one out"):
            call()


def test_a_class_below_a_loss_has_the_names_of_both() -> None:
    class Mine(PNPLoss):
        def __init__(self, *, sharpness: float = 1.0, **options: Any) -> None:
            super().__init__(**options)
            self.sharpness = sharpness

    assert Mine(sharpness=2.0, anneal=0.3).temperature == 0.3
    assert list(inspect.signature(Mine).parameters) == ["sharpness", "options"]
    with pytest.raises(TypeError, match="Mine takes no argument 'sharpnes'; did you mean 'sharpness'"):
        Mine(sharpnes=2.0)
