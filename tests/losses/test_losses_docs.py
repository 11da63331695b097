import re
from pathlib import Path

import pytest

from aurank.losses import (
    LOSSES,
    CrossBatchMemory,
    EMC2Loss,
    FastCLIPLoss,
    ISogCLRLoss,
    NegativeCacheLoss,
    NeuCLIPLoss,
    PairLoss,
    SogCLRLoss,
)
from aurank.names import signature

DOCS = Path(__file__).parents[2] / "docs" / "losses.md"
MADE = {
    "sogclr": SogCLRLoss(4),
    "isogclr": ISogCLRLoss(4),
    "fastclip": FastCLIPLoss(4),
    "emc2": EMC2Loss(4),
    "negative_cache": NegativeCacheLoss(4),
    "neuclip": NeuCLIPLoss(4, 4),
}


def documented() -> dict[str, tuple[set[str], set[str]]]:
    """Of each loss what can be read of it, and its names in `state_dict`."""
    section = DOCS.read_text(encoding="utf-8").split("### What is saved\n")[1].split("\n### ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    found = {}
    for loss, read, saved in rows:
        names = set(re.findall(r"`([\w.]+)`", saved.split("; v2")[0]))
        names |= found["sogclr"][1] if "as `sogclr`" in saved else set()
        found[loss.strip(" `")] = set(re.findall(r"`(\w+)", read)), names - {"sogclr"}
    return found


@pytest.mark.parametrize("name", MADE)
def test_what_is_saved_is_what_is_documented(name: str) -> None:
    loss: PairLoss = MADE[name]
    read, saved = documented()[name]
    assert {key for key in loss.state_dict() if ".1." not in key} == saved
    assert all(hasattr(loss, each) for each in read)
    assert documented().keys() == MADE.keys()


def test_every_loss_that_can_be_official_says_which_program_that_is() -> None:
    section = DOCS.read_text(encoding="utf-8").split("### What `official` means\n")[1].split("\nWhat a paper has")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    makers = {**{name: LOSSES[name] for name in LOSSES}, "CrossBatchMemory": CrossBatchMemory}
    official = [name for name, make in makers.items() if "official" in signature(make)[0]]
    assert sorted(listed) == sorted(official)
