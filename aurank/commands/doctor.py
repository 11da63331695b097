"""Looking at data before they are used: what ``aurank doctor`` calls."""

from collections.abc import Sequence

from aurank.data.checks.doctor import DoctorReport
from aurank.embedding.manifest_from_config import asks_about_classes, read_manifest
from aurank.embedding.select_images import read_data
from aurank.errors import UserError


def examine_data(data: str, overrides: Sequence[str] = ()) -> DoctorReport:
    """Return what is wrong with data: missing, broken or repeated images, lone classes, leaks between splits.

    Args:
        data: READER:PATH, a YAML file, or the name of a shipped configuration.
        overrides: dotted changes of the data section and the seed of its splits, or of the configuration.

    Example:
        >>> report = examine_data("digits:", ["data.validation_fraction=0.3", "seed=1"])
        >>> report.errors, report.counts["val images"]
        ([], 269)
    """
    seeds = [override.removeprefix("seed=") for override in overrides if override.startswith("seed=")]
    section = read_data(data, [override for override in overrides if not override.startswith("seed=")])
    if section is None:  # a configuration
        from aurank.training import read_config

        settings = read_config(data, overrides)
        section, seed = settings.data, settings.seed
    elif all(seed.isdecimal() for seed in seeds):
        seed = int(seeds[-1]) if seeds else 0
    else:
        raise UserError(f"seed={seeds[-1]}: expected a whole number >= 0")
    manifest = read_manifest(section, seed=seed)
    return manifest.doctor(
        train_labels=section.train_labels == "class",
        ask_classes=asks_about_classes(section, manifest),
        max_pixels=section.max_pixels,
    )
