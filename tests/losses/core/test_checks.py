import pytest

from aurank.errors import UserError
from aurank.losses import CLIPLoss, CyCLIPLoss, FastCLIPLoss, ISogCLRLoss, NeuCLIPLoss, PairLoss, SigLIPLoss, SogCLRLoss


@pytest.mark.parametrize(
    ("loss", "given", "choice", "unused"),
    [
        (CLIPLoss, {}, {"learn_temperature": False}, {"temperature_bounds": (0.02, None)}),
        (CyCLIPLoss, {}, {"learn_temperature": False}, {"temperature_bounds": (0.02, None)}),
        (SigLIPLoss, {}, {"learnable": False}, {"temperature_bounds": (0.02, None)}),
        (FastCLIPLoss, {"num_samples": 8}, {"version": "v1"}, {"temperature_bounds": (0.02, 1.0)}),
        (FastCLIPLoss, {"num_samples": 8}, {"gamma_schedule": "constant"}, {"gamma_decay": 0.3}),
        (SogCLRLoss, {"num_samples": 8}, {"gamma_schedule": "constant"}, {"gamma_decay": 0.3}),
        (ISogCLRLoss, {"num_samples": 8}, {"gamma_schedule": "constant"}, {"gamma_every": "step"}),
        (NeuCLIPLoss, {"embedding_size": 4}, {"learn_temperature": False}, {"rho": 2.0}),
        (NeuCLIPLoss, {"embedding_size": 4}, {"learn_temperature": False}, {"temperature_bounds": [0.02, None]}),
    ],
)
def test_an_option_without_effect_is_refused_with_the_one_that_takes_it_away(
    loss: type[PairLoss], given: dict[str, object], choice: dict[str, object], unused: dict[str, object]
) -> None:
    (chosen,), (name,) = choice, unused
    with pytest.raises(UserError, match=rf"{name}=.* has no effect with {chosen}=.*: leave out one of them"):
        loss(**given, **choice, **unused)
    loss(**given, **choice)
    if chosen != "gamma_schedule":
        loss(**given, **unused)


def test_what_a_configuration_repeats_of_the_defaults_is_not_refused() -> None:
    CLIPLoss(learn_temperature=False, temperature_bounds=[0.01, None])
    NeuCLIPLoss(4, 4096, learn_temperature=False, rho=6.5, restart_every=None)
