"""Making an index of images and changing it: what ``aurank index`` calls."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from aurank.commands.galleries.align import mapped_rows
from aurank.commands.galleries.postprocess import fitted_on_training, read_steps
from aurank.commands.galleries.search import ImageIndex
from aurank.commands.run_options import PreparedModel, RunOptions, prepare_model, refuse_preprocessing
from aurank.data import Manifest
from aurank.embedding.collection import CollectionRows, is_collection
from aurank.embedding.embedded import described
from aurank.embedding.image_selection import ALL, ImageSelection
from aurank.embedding.image_text_pairs import each_image_once
from aurank.embedding.index_folder import EXACT, Table, describe_source, index_rows, read_about
from aurank.embedding.locations import require_index_folder
from aurank.embedding.select_images import select
from aurank.errors import UserError
from aurank.evaluation.engine.scores import DISTANCES
from aurank.evaluation.index.neighbours import check_index
from aurank.files import claimed
from aurank.names import meant, nearest, require_choice

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
    gallery_embeddings: Path | None = None,
    map_file: Path | None = None,
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
        gallery_embeddings, map_file: as for `evaluate_model`; no image is embedded.
        overwrite: replace an index that is there.
        seed: seed of the index's training, and of the images that its recall is measured with.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (8, 8), "red").save(f"{folder}/red.png")
        ...     photos = ImageSelection(f"unlabelled:{folder}")
        ...     index = build_index("timm:test_vit,pretrained=false", photos, out=f"{folder}/index")
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
    require_choice("distance", distance, DISTANCES)
    if folder is None and steps is not None:
        raise UserError(f"--postprocess {postprocess} is kept with an index in a folder: leave it out, or use --out")
    with claimed(folder) if is_first and folder is not None else nullcontext():
        if folder is not None:
            require_index_folder(folder, overwrite=overwrite)
        prepared = prepare_model(model, images, running)
        if steps is not None:
            steps = fitted_on_training(steps, prepared)
        manifest, table = prepared.dataset.manifest, Table()
        if is_first:  # before any is embedded: a file that is replaced meanwhile has the digest of the old one
            table = _table(manifest, number=0)
        about: dict[str, Any] = {"distance": distance, "sources": [describe_source(manifest.source)], "seed": seed}
        width = prepared.model.encode(np.zeros((1, 32, 32, prepared.model.channels), np.uint8)).shape[1]
        if folder is None and is_first:  # another model is refused before it embeds
            about |= {"dim": width, "factory": factory}
            about |= {"multi_label": True} if manifest.multi_label else {}
            filling = CollectionRows.make(str(out), prepared.model, about, overwrite=overwrite)
        if gallery_embeddings is None:
            embedded, notes = prepared.embed()
        else:
            mapped = mapped_rows(gallery_embeddings, map_file, manifest.regions)[1]
            if mapped.shape[1] != width:
                raise UserError(f"{gallery_embeddings}: {mapped.shape[1]} wide, the model {width}: map by aurank align")
            embedded, notes = described(manifest, np.arange(len(manifest)), mapped), []
        running.tell(*prepared.remarks, *notes[1:])
        if not is_first:
            return None
        table = {name: values[embedded.ids] for name, values in table.items()}
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
    with _changing(folder):
        index = ImageIndex.open(folder, model=model, roots=roots, device="cpu", allow_code=running.allow_code)
        selected = select(images, None)
        refuse_preprocessing(images, index.load_model().name)
        manifest = each_image_once(selected.images)
        sources, described_source = list(index.about["sources"]), describe_source(manifest.source)
        if described_source not in sources:
            sources.append(described_source)
        number = sources.index(described_source)
        table = _table(manifest, number=number)
        before = index.rows.lookup(number, manifest.paths)
        is_new, is_changed = np.ones(len(manifest), bool), False
        columns = zip(manifest.paths, table["class"].tolist(), table["sha256"].tolist(), strict=True)
        for position, (path, name, digest) in enumerate(columns):
            _, digest_before, class_before = before.get(path, (0, "", ""))
            if digest_before and digest_before == digest:  # "" of a file that could not be read
                is_new[position] = name not in ("", class_before)
            is_changed |= digest_before not in ("", digest)
        present = np.array(manifest.paths)[~is_new].tolist()
        if not is_new.any():
            if roots:
                index.rows.change(Path(index.folder), index.about, np.empty(0, np.int64), None)
            return IndexChange(len(index), present=present)
        if is_changed:
            # The cache knows a file by its length and time, which a changed file may keep.
            running = replace(running, cache=None)
        embedder, data = index.load_model(), selected.data
        dataset_of = partial(embedder.dataset, on_error=data.on_error, max_pixels=data.max_pixels)
        prepared = PreparedModel(embedder, dataset_of(manifest.select(is_new)), data, dataset_of, running)
        embedded, notes = prepared.embed()
        running.tell(*notes[1:])
        new = {name: values[is_new][embedded.ids] for name, values in table.items()}
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
        if (unknown := next((path for path in paths if path not in present), None)) is not None:
            names = index.images["path"].tolist() if len(index) <= MOST_COMPARED else []
            raise UserError(f"image {unknown!r} is not in the index {folder}{meant(nearest(unknown, names, most=3))}")
        if classes:
            index.require_classes(classes)
            named = np.union1d(named, index.rows.where("class", classes))
        if missing:
            table = index.images
            is_there = [
                (source := index.sources[number]) is not None and source.exists(path)
                for path, number in zip(table["path"].tolist(), table["source"].tolist(), strict=True)
            ]
            named = np.union1d(named, index.rows.ids[~np.array(is_there)])
        if len(named) == len(index):
            raise UserError(f"no image would be left in the index {folder}: remove the folder instead")
        removed, count = index.rows.take(named)["path"].tolist(), len(index)
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


def _table(manifest: Manifest, *, number: int) -> Table:
    paths, digests = np.array(manifest.paths), list[str]()
    classes = np.array(manifest.classes)[manifest.labels]
    for path in manifest.paths:
        try:
            digests.append(hashlib.sha256(manifest.source.read_bytes(path)).hexdigest())
        except UserError:
            digests.append("")
    if (classes == paths).all():  # unlabelled: each is a class of its own
        classes = np.full(len(paths), "")
    sources = np.full(len(paths), number, np.int64)
    return {"path": paths, "class": classes, "source": sources, "sha256": np.array(digests, dtype=np.str_)}
