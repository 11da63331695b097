"""iNaturalist 2018 in the retrieval split of Smooth-AP."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from aurank.data.manifest import Manifest
from aurank.data.readers import published
from aurank.data.readers._rows import Row, read_lines, read_text
from aurank.data.sources import ImageSource
from aurank.errors import UserError
from aurank.files import reading

_ORIGIN = "https://github.com/visipedia/inat_comp/tree/master/2018#Data"
_SPLITS_ORIGIN = (
    "https://github.com/Andrew-Brown1/Smooth_AP, section Data (a zip of the split lists, unpacked into the same folder)"
)
_LISTS = {split: f"Inat_dataset_splits/Inaturalist_{split}_set1.txt" for split in ("train", "test")}

# Sizes: Brown et al. (ECCV 2020) for the split, the competition's page for the annotations.
INATURALIST = published.Benchmark(
    name="inaturalist2018",
    title="iNaturalist 2018",
    folders=("Inaturalist", "."),
    layout="Inaturalist/{train_val2018/Plantae/6000/HASH.jpg, train2018.json, val2018.json, "
    f"{_LISTS['train']}, {_LISTS['test']}}}",
    origin=f"{_ORIGIN} (train_val2018.tar.gz, 120 GB, train2018.json.tar.gz, val2018.json.tar.gz) and {_SPLITS_ORIGIN}",
    terms="non-commercial research and education only, images may not be passed on",
    files=(
        published.OfficialFile(_LISTS["train"], "the training split", _SPLITS_ORIGIN),
        published.OfficialFile(_LISTS["test"], "the test split", _SPLITS_ORIGIN),
        published.OfficialFile("train2018.json", "the annotations", f"{_ORIGIN} (train2018.json.tar.gz)"),
        published.OfficialFile("val2018.json", "the validation annotations", f"{_ORIGIN} (val2018.json.tar.gz)"),
    ),
    sizes={_LISTS["train"]: published.SplitSize(325_846, 5_690), _LISTS["test"]: published.SplitSize(136_093, 2_452)},
    lines={"train2018.json": 437_513, "val2018.json": 24_426},
    archives={
        "train_val2018.tar.gz": "b1c6952ce38f31868cc50ea72d066cc3",
        "train2018.json.tar.gz": "bfa29d89d629cbf04d826a720c0a68b0",
        "val2018.json.tar.gz": "f2ed8bfe3e9901cdefceb4e53cd3775d",
    },
)


def read_inaturalist(root: Path, *, path: str | None = None, complete: bool = True) -> Manifest:
    """Return iNaturalist 2018: the class is "SUPERCATEGORY/CATEGORY"; `super_labels` number the super-categories.

    Args:
        path: without it, `Inaturalist` and `root` itself are tried.
        complete: True insists on the published sizes and on both annotation files, train2018.json and val2018.json,
            and that they agree with the split; False reads a part, with the annotations where they are there.

    The split's lists name images only, so the class is read from the path.

    Source: Van Horn et al. (CVPR 2018), https://arxiv.org/abs/1707.06642, for the images; Brown et al., Smooth-AP (ECCV
        2020), https://arxiv.org/abs/2007.12163, for the split.
    """
    return published.read_published(INATURALIST, root, path, examine_inaturalist, complete=complete)


def examine_inaturalist(place: published.Place) -> published.Reading:
    """Return the split of iNaturalist 2018 as found, and what differs."""
    numbers: dict[str, int] = {}

    def rows_of(source: ImageSource, split: str, file: str) -> Iterator[Row]:
        for where, path in read_lines(source, file):
            parts = path.split("/")
            if len(parts) < 3:
                raise UserError(f"{where}: expected train_val2018/SUPERCATEGORY/CATEGORY/IMAGE.jpg, got {path!r}")
            super_label = numbers.setdefault(parts[-3], len(numbers))
            yield Row(where, path, f"{parts[-3]}/{parts[-2]}", split, super_label)

    return published.examine_lists(place, _LISTS, INATURALIST.files, rows_of, compare=_compare_annotations)


def _compare_annotations(place: published.Place, rows: Sequence[Row]) -> list[str]:
    """Return how the annotation files, those that are there, differ from their published size and from the lists."""
    present = {file: _annotations(place.source, file) for file in INATURALIST.lines if place.source.exists(file)}
    problems = []
    for file, classes in present.items():
        problems += published.wrong_lines(file, len(classes), INATURALIST.lines[file])
    if len(present) == 2:  # one alone does not know all images
        class_of = {path: label for classes in present.values() for path, label in classes.items()}
        unknown = [row.path for row in rows if row.path not in class_of]
        others = [row.path for row in rows if class_of.get(row.path, row.label) != row.label]
        different = [f"{path} is {class_of[path]}" for path in others]
        problems += published.summarise("images of the split lists that neither annotation file holds", unknown)
        problems += published.summarise("images of another class in the annotation files", different)
    return problems


def _annotations(source: ImageSource, file: str) -> dict[str, str]:
    """Return the class "SUPERCATEGORY/CATEGORY" of each image in an annotation file of the competition, by path."""
    what = "the competition's annotation file"
    with reading(f"{file} in {source.where}", what, remedy=f"unpack {file}.tar.gz again"):
        content = json.loads(read_text(source, file))
        names = {category["id"]: f"{category['supercategory']}/{category['id']}" for category in content["categories"]}
        name_of = {note["image_id"]: names[note["category_id"]] for note in content["annotations"]}
        return {str(image["file_name"]): name_of[image["id"]] for image in content["images"]}
