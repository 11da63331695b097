"""Making an index of images and changing it: what ``aurank index`` calls."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aurank.commands.galleries.postprocess import fitted_on_training, read_steps
from aurank.commands.galleries.search import ImageIndex
from aurank.commands.run_options import PreparedModel, RunOptions, prepare_model, refuse_preprocessing
from aurank.data import ImageSource
from aurank.embedding.collection import CollectionRows, is_collection
from aurank.embedding.embedded import Embedded
from aurank.embedding.image_selection import ALL, ImageSelection
from aurank.embedding.image_text_pairs import each_image_once
from aurank.embedding.index_folder import EXACT, Table, describe_source, index_rows, read_about
from aurank.embedding.locations import require_index_folder
from aurank.embedding.select_images import select
from aurank.errors import UserError
from aurank.evaluation.engine.scores import DISTANCES
from aurank.evaluation.index.neighbours import check_index
from aurank.evaluation.inputs import require_one_of
from aurank.files import claimed
from aurank.names import meant, nearest

MOST_COMPARED = 20_000  # paths among which one that was misspelt is looked for


def build_index(
    model: str,
    images: ImageSelection | None = None,
    *,
    out: str | Path,
    factory: str = EXACT,
    distance: str = "cosine",
    postprocess: str | None = None,
    fit_on: Path | None = None,
    overwrite: bool = False,
    seed: int = 0,
    running: RunOptions | None = None,
) -> ImageIndex | None:
    """Embed images, and write a folder in which they can be searched: embeddings, faiss index, paths and the model.

    Of several processes the first writes and returns the index; the others return None.

    Args:
        images: by default all images of the data that the model was trained on, of all splits.
        out: the folder to write, which must hold nothing else, or milvus:FILE_OR_URL#COLLECTION, such as
            milvus:gallery.db#photos.
        factory: a faiss index: Flat is exact; IVF64,Flat or HNSW32 are approximate, and their recall is measured; in
            Milvus HNSW,M=16; ef=64.
        distance: cosine, dot or euclidean.
        model, running, postprocess, fit_on: as for `evaluate_model`; the steps are applied to each photo.
        overwrite: replace an index that is there.
        seed: seed of the index's training, and of the images that its recall is measured with.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for colour in ("red", "green"):
        ...         Path(folder, "photos", colour).mkdir(parents=True)
        ...         Image.new("RGB", (8, 8), colour).save(f"{folder}/photos/{colour}/one.png")
        ...     photos = ImageSelection(f"folder:{folder}/photos")
        ...     index = build_index("timm:test_vit,pretrained=false", photos, out=Path(folder, "index"))
        ...     sorted(file.name.partition("-")[0] for file in Path(folder, "index").iterdir())
        ['index.json', 'model', 'rows']
    """
    running = running or RunOptions()
    images = images or ImageSelection()
    if images.protocol is None:
        images = replace(images, split=images.split or ALL)
    steps = read_steps(postprocess, fit_on, distance)
    is_first, folder = running.group.rank == 0, None if is_collection(out) else Path(out)
    if folder is not None:
        check_index(factory, distance, "cpu")
    require_one_of(DISTANCES, distance=distance)
    if folder is None and steps is not None:
        raise UserError(f"--postprocess {postprocess} is kept with an index in a folder: leave it out, or use --out")
    with claimed(folder) if is_first and folder is not None else nullcontext():
        if folder is not None:
            require_index_folder(folder, overwrite=overwrite)
        prepared = prepare_model(model, images, running)
        if steps is not None:
            steps = fitted_on_training(steps, prepared)
        source, digests = prepared.dataset.manifest.source, {}
        if is_first:  # before any is embedded: of a file that is replaced meanwhile, that of the old one
            digests = {path: _digest(source, path) for path in prepared.dataset.manifest.paths}
        about: dict[str, Any] = {"distance": distance, "sources": [describe_source(source)], "seed": seed}
        if folder is None and is_first:  # another model is refused before it embeds
            blank = np.zeros((1, 32, 32, prepared.model.channels), np.uint8)
            about |= {"dim": prepared.model.encode(blank).shape[1], "factory": factory}
            filling = CollectionRows.make(str(out), prepared.model, about, overwrite=overwrite)
        embedded, notes = prepared.embed()
        running.tell(*prepared.remarks, *notes[1:])
        if not is_first:
            return None
        table = _table(embedded, digests, number=0)
        if folder is None:
            filling.fill(table, embedded.embeddings, progress=running.stage("filling"))
        else:
            rows = index_rows(table, embedded.embeddings, steps, factory, distance=distance, seed=seed)
            about = rows.write(folder, about, prepared.model)
            return ImageIndex(folder, about, rows, device=running.torch_device, allow_code=running.allow_code)
    return ImageIndex.open(out, device=str(running.torch_device), allow_code=running.allow_code)


@dataclass(frozen=True)
class IndexChange:
    """What a change of an index did, by the paths of the images.

    `replaced`: their file or class has changed. `present`: already there, with the same bytes and class. `unreadable`:
    left out, as data.on_error=skip asks.

    Example:
        >>> print(IndexChange(count=7, added=["a.jpg", "b.jpg"], present=["c.jpg"]))
        2 added, 1 already there; the index holds 7
    """

    count: int
    added: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    present: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        changes = {"added": self.added, "replaced": self.replaced, "removed": self.removed}
        changes |= {"already there": self.present, "unreadable": self.unreadable}
        counts = [f"{len(names):,} {change}" for change, names in changes.items() if names]
        return f"{', '.join(counts) or 'nothing changed'}; the index holds {self.count:,}"


def add_images(
    folder: str | Path,
    images: ImageSelection,
    *,
    model: str | None = None,
    roots: Sequence[Path] = (),
    running: RunOptions | None = None,
) -> IndexChange:
    """Embed images and add them to an index; what is there is not embedded again, and what was learnt stays.

    An image that is there already, by its place, the bytes of its file and its class, stays; one whose file or class
    has changed is replaced. Until all is done the old index is what is there.

    Args:
        folder: as for `ImageIndex.open`.
        images: with `data`; without a split, those of all splits.
        model: as for `ImageIndex.open`.
        roots: as for `ImageIndex.open`; the index keeps them.

    Raises:
        UserError: for data that cannot be read, or where another process changes the index.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for colour in ("red", "green"):
        ...         Path(folder, colour, "photos").mkdir(parents=True)
        ...         Image.new("RGB", (8, 8), colour).save(f"{folder}/{colour}/photos/{colour}.png")
        ...     out, red = Path(folder, "index"), ImageSelection(f"unlabelled:{folder}/red")
        ...     _ = build_index("timm:test_vit,pretrained=false", red, out=out)
        ...     print(add_images(out, ImageSelection(f"unlabelled:{folder}/green")))
        ...     print(remove_images(out, ["photos/red.png"]))
        1 added; the index holds 2
        1 removed; the index holds 1
    """
    running = running or RunOptions()
    images = replace(images, split=images.split or ALL)
    if images.data is None:
        raise UserError("say which images to add: --data READER:PATH, such as folder:photos")
    with _changing(folder):
        index = ImageIndex.open(folder, model=model, roots=roots, device="cpu", allow_code=running.allow_code)
        selected = select(images, None)
        refuse_preprocessing(images, index.load_model().name)
        source, manifest = selected.images.source, each_image_once(selected.images)
        sources, described_source = list(index.about["sources"]), describe_source(source)
        if described_source not in sources:
            sources.append(described_source)
        number = sources.index(described_source)
        digests = {path: _digest(source, path) for path in manifest.paths}
        classes = _class_names(np.array(manifest.classes), manifest.labels, manifest.paths)
        before = index.rows.lookup(number, manifest.paths)
        is_new = np.ones(len(manifest), bool)
        for position, (path, name) in enumerate(zip(manifest.paths, classes.tolist(), strict=True)):
            _, digest, class_name = before.get(path, (0, "", ""))
            if digest and digest == digests[path]:  # "" of a file that could not be read
                is_new[position] = name not in ("", class_name)
        present = np.array(manifest.paths)[~is_new].tolist()
        if not is_new.any():
            if roots:
                index.rows.change(Path(index.folder), index.about, np.empty(0, np.int64), None)
            return IndexChange(len(index), present=present)
        if any(digest and digest != digests[path] for path, (_, digest, _) in before.items()):
            # The cache knows a file by its length and time, which a changed file may keep.
            running = replace(running, cache=None)
        embedder, data = index.load_model(), selected.data
        dataset_of = partial(embedder.dataset, on_error=data.on_error, max_pixels=data.max_pixels)
        prepared = PreparedModel(embedder, dataset_of(manifest.select(is_new)), data, dataset_of, running)
        embedded, notes = prepared.embed()
        running.tell(*notes[1:])
        new = _table(embedded, digests, number=number)
        paths = embedded.paths.tolist()
        replaced = [path for path in paths if path in before]
        gone = np.array([before[path][0] for path in replaced], np.int64)
        about, rows = {**index.about, "sources": sources}, np.asarray(embedded.embeddings)
        count = index.rows.change(Path(index.folder), about, gone, (new, rows))
    unreadable = sorted(set(prepared.dataset.manifest.paths) - set(paths))
    added = [path for path in paths if path not in before]
    return IndexChange(count, added, replaced, present, unreadable)


def remove_images(
    folder: str | Path,
    paths: Collection[str] = (),
    *,
    classes: Collection[str] = (),
    missing: bool = False,
    roots: Sequence[Path] = (),
) -> IndexChange:
    """Remove images from an index, by their paths as it shows them, by class, or where their files are gone.

    Args:
        folder: as for `ImageIndex.open`.
        paths: images as search shows them; the command reads them from stdin by -.
        classes: all images of a class; may be given repeatedly.
        missing: images whose files are gone.
        roots: as for `ImageIndex.open`; the index keeps them.

    Raises:
        UserError: for a path or class that is not in the index, or where no image would be left.

    Example:
        >>> remove_images(Path("no such folder"), missing=True)
        Traceback (most recent call last):
        aurank.errors.UserError: no index at no such folder; make one with aurank index build --out no such folder
    """
    with _changing(folder):
        index = ImageIndex.open(folder, roots=roots, device="cpu")
        named = index.rows.where("path", paths) if paths else np.empty(0, np.int64)
        present = set(index.rows.take(named)["path"].tolist())
        if unknown := [path for path in paths if path not in present]:
            more = f", nor are {len(unknown) - 1} more" if len(unknown) > 1 else ""
            names = index.images["path"].tolist() if len(index) <= MOST_COMPARED else []
            raise UserError(
                f"image {unknown[0]!r} is not in the index {folder}{more}{meant(nearest(unknown[0], names, most=3))}"
            )
        if classes:
            index.require_classes(classes)
            named = np.union1d(named, index.rows.where("class", classes))
        if missing:
            lost = [row for row in index.rows.ids.tolist() if not index.exists(row)]
            named = np.union1d(named, np.array(lost, np.int64))
        if len(named) == len(index):
            raise UserError(f"no image would be left in the index {folder}: remove the folder instead")
        removed = index.rows.take(named)["path"].tolist()
        count = len(index)
        if removed or roots:
            count = index.rows.change(Path(index.folder), index.about, named, None)
    return IndexChange(count, removed=removed)


@contextmanager
def _changing(folder: Path | str) -> Iterator[None]:
    if is_collection(folder):  # whose description says who was first
        yield
        return
    read_about(Path(folder))  # a folder that is none is not created
    with claimed(Path(folder), name="the index"):
        yield


def _digest(source: ImageSource, path: str) -> str:
    try:
        return hashlib.sha256(source.read_bytes(path)).hexdigest()
    except UserError:
        return ""


def _table(embedded: Embedded, digests: Mapping[str, str], *, number: int) -> Table:
    names = np.array([""]) if embedded.classes is None else embedded.classes
    classes = _class_names(names, embedded.labels, embedded.paths)
    sums = [digests[path] for path in embedded.paths.tolist()]
    sources = np.full(len(classes), number, np.int64)
    return {"path": embedded.paths, "class": classes, "source": sources, "sha256": np.array(sums, dtype=np.str_)}


def _class_names(names: np.ndarray, labels: np.ndarray, paths: Sequence[str] | np.ndarray) -> np.ndarray:
    classes = names[labels]
    return np.full(len(classes), "") if (classes == np.array(paths)).all() else classes  # unlabelled: each its own
