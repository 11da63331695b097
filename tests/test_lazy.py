"""Names that are imported when they are first used."""

import subprocess
import sys

import pytest

from aurank.lazy import LazyTable, without


def test_a_table_lists_its_names_without_importing_them_and_takes_further_ones() -> None:
    table: LazyTable[object] = LazyTable("json", {"dumps": "nowhere:dumps", "encoder": "encoder:JSONEncoder"})
    assert "dumps" in table
    assert list(table) == ["dumps", "encoder"]
    assert len(table) == 2
    assert table["encoder"].__name__ == "JSONEncoder"
    with pytest.raises(ImportError):
        table["dumps"]
    table["dumps"] = len
    assert table["dumps"] is len
    assert list(table) == ["dumps", "encoder"]
    del table["dumps"]
    assert "dumps" not in table
    with pytest.raises(KeyError):
        table["dumps"]


def test_a_module_that_is_spared_is_imported_when_it_is_used() -> None:
    with without("colorsys"):
        import colorsys

        spared = colorsys
        assert spared.rgb_to_hsv(1, 0, 0) == (0, 1, 1)  # imported here
    assert sys.modules["colorsys"].__spec__ is not None
    sys.modules.pop("wave", None)
    with without("wave"):
        import wave
    assert wave.__spec__ is None
    assert "wave" not in sys.modules
    assert callable(wave.open)


@pytest.mark.slow
def test_listing_losses_imports_no_torch_and_using_one_no_scipy_stats() -> None:
    code = """
import sys
import aurank.losses
assert "soprc" in aurank.losses.LOSSES and "hdc" in aurank.losses.MINERS and "SOPRCLoss" in dir(aurank.losses)
assert "torch" not in sys.modules
assert {name: getattr(aurank.losses, name) for name in aurank.losses.__all__}
assert not {"scipy.stats", "scipy.special", "timm", "torchvision"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
