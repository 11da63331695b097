"""What makes no sense is refused in one line that names it."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image
from testing.inputs import held_bytes
from testing.refusals import refused
from testing.trees import array_manifest, pixels, png, write_tree

from aurank.data import TRANSFORMS, ArraySource, Manifest, build_manifest
from aurank.data.decode import decode
from aurank.data.readers.folders import read_folder
from aurank.data.samplers import HierarchicalSampler, PKSampler, ShuffledSampler

EIGHT = np.repeat(np.arange(8), 4)
NONE = np.zeros(0, np.int64)


def manifest(super_labels: Sequence[int] | None = None) -> Manifest:
    rows = {"paths": list("012345"), "labels": list("cdcodo"), "splits": ["train"] * 3 + ["test", "train", "test"]}
    return build_manifest("six", ArraySource({}), **rows, super_labels=super_labels)


def changed(**columns: Any) -> Manifest:
    return dataclasses.replace(manifest(), **columns)


def decoded(array: np.ndarray, channels: int) -> np.ndarray:
    return decode(ArraySource({"x": array}), "x", channels)


def transform(name: str, **params: Any) -> Any:
    return TRANSFORMS[name](**{"image_size": 32, "channels": 3} | params)


def held_out(fraction: float, classes: int = 6, super_labels: Sequence[int] | None = None) -> Manifest:
    whole = dataclasses.replace(array_manifest({"train": [2] * classes}), super_labels=super_labels)
    return whole.split_validation(fraction, seed=0, by="class" if classes < 4 else "super_category")


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: PKSampler(EIGHT, 16, per_class=5), "sampler.params.per_class"),
        (lambda: PKSampler(EIGHT[3:9], 16, remainder="drop"), "remainder=drop leaves 1 of 3 classes"),
        (lambda: PKSampler(EIGHT, 7), "batch must be at least 2 × per_class = 8"),
        (lambda: PKSampler(NONE, 16), "the training set has 0 classes"),
        (lambda: PKSampler(EIGHT, 16, per_class=1), "per_class must be at least 2"),
        (lambda: PKSampler(EIGHT, 15, world_size=2), "for each of 2 processes = 16"),
        (lambda: HierarchicalSampler(EIGHT, 16), "draws super-categories, and the data set has none; use pk"),
        (lambda: HierarchicalSampler(EIGHT, 16, super_labels=EIGHT // 8), "the training set has 1 super-categories"),
        (lambda: HierarchicalSampler(EIGHT, 16, super_labels=np.arange(32) // 3), "of label 0 have several super-c"),
        (lambda: HierarchicalSampler(EIGHT, 16, super_labels=EIGHT, categories=5), "= 4, got 5"),
        (lambda: ShuffledSampler(EIGHT, 1), "at least 2 images a batch are needed"),
        (lambda: next(ShuffledSampler(EIGHT[:10], 8, world_size=4).iterate()), "no batch of epoch 1 has 2 rows for"),
        (lambda: changed(labels=np.array([0, 1, 0, 3, 1, 3])), "labels must be 0 … 2"),
        (lambda: changed(splits=np.array(["train"] * 5 + ["query"])), "split 'query' is not known"),
        (lambda: changed(texts=("one", "two")), "2 texts for 6 images"),
        (lambda: manifest().split("val"), "no images in split 'val'; splits with images: train (4), test (2)"),
        (lambda: manifest([0, 2, 0, 4, 2, 9]).class_super_labels, "images of class 'o' have several super-categories"),
        (lambda: held_out(0.1, classes=3), "3 training classes, too few"),
        (lambda: held_out(0.25), "no super-categories to hold out: hold out classes"),
        (lambda: held_out(0.5, super_labels=np.zeros(12, np.int64)), "no super-categories have 2 to 3 classes"),
        (lambda: decoded(np.zeros((2, 2, 7), np.uint8), 3), "array of 7 channels cannot become 3; set data.channels=7"),
        (lambda: decoded(np.zeros((3, 8, 8), np.uint8), 3), "[height, width, channel]: array.transpose(1, 2, 0)"),
        (lambda: decoded(np.zeros((2, 2), np.float32), 1), "image 'x' in memory: expected a uint8 array"),
        (lambda: decoded(np.zeros((0, 2), np.uint8), 1), "expected a uint8 array"),
        (lambda: decoded(np.zeros(4, np.uint8), 1), "expected a uint8 array"),
        (lambda: decode(held_bytes(png(0)), "x", 2), "image 'x' in here: a PNG file gives 1, 3 or 4 channels"),
        (lambda: transform("crop_flip", scale=[0.5, 0.1]), "scale must be two numbers between 1e-06 and 1, smaller on"),
        (lambda: transform("crop_flip", ratio=[1.0]), "ratio must be two numbers"),
        (lambda: transform("crop_flip", flip=2), "flip must be between 0 and 1, got 2"),
        (lambda: transform("timm", crop_pct=0), "crop_pct must be between 0.01 and 2, got 0"),
        (lambda: transform("timm", crop_mode="middle"), "crop_mode must be one of center, squash, border"),
        (lambda: transform("resize", image_size=0), "image_size must be at least 1, got 0"),
        (lambda: transform("center", image_size=(8, 0)), "image_size must be at least 1, got (8, 0)"),
        (lambda: transform("center", resize="border"), "resize must be one of crop, pad, squash"),
        (lambda: transform("resize", mean=[123, 116, 103]), "mean must be 3 numbers between 0 and 1"),
        (lambda: transform("simclr", strength=3), "strength must be between 0 and 2.5, got 3"),
        (lambda: transform("resize")(pixels(0, 9, 8, 1)), "uint8 of shape [9, 8, 1]"),
        (lambda: transform("resize")(pixels(0, 9, 8, 3)[:0]), "uint8 of shape [0, 8, 3]"),
        (lambda: transform("resize")(pixels(0, 9, 8, 3) / 255), "float64 of shape [9, 8, 3]"),
        (lambda: transform("resize")(Image.new("I", (8, 8))), "of 32 bits (mode I) do not say which value is white"),
        (lambda: transform("resize", channels=2)(Image.new("L", (8, 8))), "an image of Pillow gives 1, 3 or 4"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], named: str) -> None:
    assert named in refused("", call)


@pytest.mark.parametrize(
    ("names", "params", "named"),
    [
        (["train/cat/1.png", "extra/cat/1.png"], {}, "if 'train' is a split, move 'extra' away; if it is a class, put"),
        (["train/1.png", "test/cat/1.png", "dog/1.png"], {}, "holds 'dog' beside 'test', which holds folders itself"),
        (["cat/1.png", "dog/1.heic", "dog/2.HEIC"], {}, "no file of the folder 'dog' in "),
        (["train/cat/1.png", "test/cat/1", "test/dog/1.png"], {}, "'test/cat' in "),
        (["cat/1.heic", "cat/notes.txt"], {}, "(1 .heic, 1 .txt are not read)"),
        (["train/1.png"], {}, "image 'train/1.png' in "),
        (["1.png"], {}, "is in no class folder; expected CLASS/1.png"),
        (["cat/1.txt"], {}, "; expected train/CLASS/IMAGE"),
        (["cat/1.png"], {"path": "dog"}, "dog does not exist; expected a folder or a zip archive"),
    ],
)
def test_a_folder_that_cannot_be_understood_is_refused(tmp_path, names, params, named):
    assert named in refused("", read_folder, write_tree(tmp_path, names), **params)
