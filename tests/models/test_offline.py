"""Without the network: one line says what is missing, and missing data are told first."""

from pathlib import Path

import huggingface_hub.constants as hub
import pytest
import timm  # noqa: F401 (its import is not what is timed)

from aurank.commands import evaluate_model
from aurank.embedding import ImageSelection
from aurank.errors import UserError
from aurank.models import Encoder
from aurank.models.adapters.by_name import load_model


def test_a_machine_that_is_offline_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)  # as the variable of that name does
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "empty"))
    for call in (lambda: load_model("timm:test_resnet"), lambda: Encoder("test_resnet", pretrained=True)):
        with pytest.raises(UserError, match="connect to the network once") as caught:
            call()
        assert "\n" not in str(caught.value)
    load_model("timm:test_resnet,pretrained=false")


def test_missing_data_are_told_before_weights_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aurank.models.adapters.timm.create", None)
    with pytest.raises(UserError, match=r"there is no .*nowhere"):
        evaluate_model("timm:test_resnet", ImageSelection(f"folder:{tmp_path}/nowhere"))
