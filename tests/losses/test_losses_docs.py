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


NORMALISER = {"tables.0.rows", "tables.0.seen", "gamma._extra_state"}
BALANCED = NORMALISER | {"levels._extra_state"}
SAVED = {  # a checkpoint holds these names: those that go make older ones unreadable
    "sogclr": BALANCED,
    "isogclr": BALANCED | {"temperature.tables.0.rows", "temperature.tables.0.seen"},
    "fastclip": NORMALISER | {"temperature.parameter"},
    "emc2": {f"chains.{name}" for name in ("table.tags", "table.rows", "table.seen", "random._extra_state")},
    "negative_cache": {"cache.rows", "cache.tags", "cache.seen", "random._extra_state", "_extra_state"},
    "neuclip": {f"networks.0.{name}" for name in ("weight_0", "squares_0", "queue", "_extra_state")}
    | {"temperature.parameter"},
}


@pytest.mark.parametrize("name", MADE)
def test_a_loss_saves_its_state_under_these_names(name: str) -> None:
    assert {key for key in MADE[name].state_dict() if ".1." not in key} == SAVED[name]


def test_what_can_be_read_of_a_loss_is_what_is_documented() -> None:
    section = DOCS.read_text(encoding="utf-8").split("### What is saved\n")[1].split("\n### ")[0]
    found = re.findall(r"`loss\.(\w+)(?:\[0\]\.\w+)?`\s+\(([^)]*)\)", section)
    assert [attribute for attribute, _ in found] == ["log_u", "temperatures", "states", "networks"]
    for attribute, losses in found:
        assert all(hasattr(MADE[name], attribute) for name in re.findall(r"`(\w+)`", losses))


def test_every_loss_that_can_be_official_says_which_program_that_is() -> None:
    section = DOCS.read_text(encoding="utf-8").split("### What `official` means\n")[1].split("\nWhat a paper has")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    makers = {**{name: LOSSES[name] for name in LOSSES}, "CrossBatchMemory": CrossBatchMemory}
    official = [name for name, make in makers.items() if "official" in signature(make)[0]]
    assert sorted(listed) == sorted(official)
