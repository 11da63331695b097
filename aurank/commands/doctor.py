"""Looking at data before they are used: what ``aurank doctor`` calls."""

from collections.abc import Sequence

from aurank.data.checks.doctor import DoctorReport
from aurank.embedding.read_manifest import asks_about_classes, read_manifest
from aurank.embedding.select_images import read_data


def examine_data(data: str, overrides: Sequence[str] = ()) -> DoctorReport:
    """Return what is wrong with data: missing, broken or repeated images, lone classes, leaks between splits.

    Args:
        data: READER:PATH, a YAML file, or the name of a shipped configuration.
        overrides: dotted changes of the data section, or of the configuration.
    """
    section, seed = read_data(data, overrides), 0
    if section is None:  # a configuration
        from aurank.training import read_config

        settings = read_config(data, overrides)
        section, seed = settings.data, settings.seed
    manifest = read_manifest(section, seed=seed)
    return manifest.doctor(
        train_labels=section.train_labels == "class",
        ask_classes=asks_about_classes(section, manifest),
        max_pixels=section.max_pixels,
    )
