"""Searching an index with words, and with photos and words in one query."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.mixtures import mixed_cosines
from oracles.postprocessing import expanded
from PIL import Image
from safetensors.torch import load_file
from testing.galleries import small_index, words_index
from testing.runs import pairs_config, write_table

import aurank
from aurank.commands import ImageIndex, build_index, evaluate_pairs, mixed_query, search_photos
from aurank.commands.galleries.search import results_json, results_page
from aurank.embedding import ImageSelection
from aurank.errors import UserError
from aurank.names import text_key

TEXTS = ["red mug", "blue mug", "green but blue", "", "<img src=x onerror=alert(1)>", "כחול mug", "mug " * 25_000]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos, a model of transformers with both towers, and an index by it."""
    folder = tmp_path_factory.mktemp("words")
    words_index(folder)
    return folder


@pytest.fixture(scope="module")
def index(made: Path) -> ImageIndex:
    return ImageIndex.open(made / "index")


def ranking(index: ImageIndex, **query: Any) -> list[list[tuple[int, float]]]:
    return [[(hit.row, hit.score) for hit in hits] for hits in index.search(k=len(index), **query)]


def test_an_index_remembers_the_text_tower_and_ranks_as_the_model_of_transformers(made: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.CLIPModel.from_pretrained(made / "clip").eval()
    processor = transformers.AutoImageProcessor.from_pretrained(made / "clip")
    tokeniser = transformers.AutoTokenizer.from_pretrained(made / "clip")
    shutil.copytree(made / "index", tmp_path / "index")  # alone: the model's folder is not there
    about = json.loads((made / "index/index.json").read_text())
    assert "tokenizer.json" in {Path(name).name for name in about["files"]}
    index = ImageIndex.open(tmp_path / "index")
    photos = [index.read_image(row) for row in range(len(index))]
    tokens = tokeniser(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        pixels = processor(images=photos, return_tensors="pt")["pixel_values"]
        outputs = model(pixel_values=pixels, **{name: tokens[name] for name in ("input_ids", "attention_mask")})
    cosine = (outputs.text_embeds @ outputs.image_embeds.T).double().numpy()
    assert np.ptp(cosine, axis=0).max() > 0.1  # the texts differ
    for text, hits in enumerate(ranking(index, texts=TEXTS)):
        assert [row for row, _ in hits] == np.argsort(-cosine[text], kind="stable").tolist()
        np.testing.assert_allclose([score for _, score in hits], np.sort(cosine[text])[::-1], atol=1e-5)
    assert np.array_equal(index.embed_texts([TEXTS[-1]]), index.embed_texts(["mug " * 10]))  # and start and end


def test_an_index_of_open_clip_ranks_as_open_clip_does(made: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("open_clip")
    sizes = {"layers": 2, "width": 64}
    settings = {
        "embed_dim": 12,
        "vision_cfg": {**sizes, "head_width": 32, "image_size": 32, "patch_size": 16},
        "text_cfg": {**sizes, "heads": 2, "context_length": 77, "vocab_size": 49408},
    }
    (tmp_path / "tiny-words.json").write_text(json.dumps(settings))
    library.add_model_config(tmp_path / "tiny-words.json")
    images = ImageSelection(f"folder:{made}/photos")
    build_index("open_clip:tiny-words,pretrained=false", images, out=tmp_path / "index")
    index = ImageIndex.open(tmp_path / "index")
    (kept,) = (tmp_path / "index").glob("model-*")
    model, _, transform = library.create_model_and_transforms(f"local-dir:{kept}", load_weights=False)
    model.load_state_dict(load_file(kept / "model.safetensors"))
    photos = torch.stack([transform(Image.fromarray(index.read_image(row))) for row in range(len(index))])
    with torch.inference_mode():
        tokens = library.get_tokenizer("tiny-words")([*TEXTS[:-1], "mug " * 1000])
        texts = model.eval().encode_text(tokens, normalize=True)
        cosine = (texts @ model.encode_image(photos, normalize=True).T).double().numpy()
    for text, hits in enumerate(ranking(index, texts=[*TEXTS[:-1], "mug " * 1000])):
        assert [row for row, _ in hits] == np.argsort(-cosine[text], kind="stable").tolist()
        np.testing.assert_allclose([score for _, score in hits], np.sort(cosine[text])[::-1], atol=1e-5)


def test_photos_and_words_are_one_query_by_their_weights(made: Path, index: ImageIndex) -> None:
    """The oracle adds unit vectors in float64, one number at a time."""
    near, far, gallery = "red/5.png", "blue/3.png", np.asarray(index.rows.embeddings)
    rows = [index.images["path"].tolist().index(path) for path in (near, far)]
    parts = [gallery[rows[0]], index.embed_texts(["red mug"])[0], index.embed_texts(["but blue"])[0], gallery[rows[1]]]
    for weights in (None, [1.0, 0.5, 0.25, 2.0], [1.0, -1.0, 0.0, 0.5]):
        signed = np.array([1, 1, 1, -1]) * (np.ones(4) if weights is None else weights)
        expected = np.array(mixed_cosines(np.array(parts).tolist(), signed.tolist(), gallery.tolist()))
        given = {"texts": ["red mug", "but blue"], "without": [f"{made}/photos/{far}"], "weights": weights}
        (result,) = search_photos(index, k=30, with_photos=[f"{made}/photos/{near}"], **given)
        assert [hit.row for hit in result.hits] == np.argsort(-expected, kind="stable").tolist()
        np.testing.assert_allclose([hit.score for hit in result.hits], np.sort(expected)[::-1], atol=1e-6)
        again = index.search(mixed_query(np.array(parts), signed.tolist()), k=30)[0]
        np.testing.assert_allclose([hit.score for hit in again], [hit.score for hit in result.hits], atol=1e-6)
    assert result.photo.path == f"{made}/photos/{near} -1 × “red mug” +0 × “but blue” -0.5 × {made}/photos/{far}"
    (words,) = search_photos(index, texts=["red mug"])
    assert [hit.row for hit in words.hits] == [hit.row for hit in index.search(texts=["red mug"])[0]]
    both = search_photos(index, [f"{made}/photos/{near}"], texts=["red mug"])
    assert [result.photo.path for result in both] == ["“red mug”", f"{made}/photos/{near}"]


def test_photos_stand_before_texts_in_one_search(index: ImageIndex) -> None:
    photo = index.read_image(3)
    alone = [ranking(index, **query)[0] for query in ({"queries": [photo]}, {"texts": ["red"]}, {"texts": ["blue"]})]
    together = ranking(index, queries=[photo], texts=["red", "blue"])
    assert [[row for row, _ in hits] for hits in together] == [[row for row, _ in hits] for hits in alone]
    assert len({str(hits) for hits in together}) == 3


def test_steps_of_an_index_change_words_as_they_change_photos(made: Path) -> None:
    images, name = ImageSelection(f"folder:{made}/photos"), f"transformers:{made}/clip"
    build_index(name, images, out=made / "steps", postprocess="query_expansion:k=3")
    index = ImageIndex.open(made / "steps")
    gallery = np.asarray(index.rows.embeddings)
    mixed = mixed_query(np.stack([gallery[3], index.embed_texts(["blue"])[0]]))
    for query, options in ((index.embed_texts(["red mug"]), {"texts": ["red mug"]}), (mixed, {})):
        (moved,) = expanded(query, gallery, k=3, alpha=3.0)
        expected = mixed_cosines([moved.tolist()], [1.0], gallery.tolist())
        (hits,) = ranking(index, **options) if options else ranking(index, queries=query)
        assert [row for row, _ in hits] == np.argsort(-np.array(expected), kind="stable").tolist()
        np.testing.assert_allclose([score for _, score in hits], np.sort(expected)[::-1], atol=1e-6)


def test_queries_that_are_none(made: Path, index: ImageIndex, tmp_path: Path) -> None:
    photo = f"{made}/photos/red/5.png"
    for message, given in {
        "3 weights for 2 photos and texts: give one for each": {"texts": ["a", "b"], "weights": [1.0, 2.0, 3.0]},
        "row 0 .*(length 0|zero)": {"with_photos": [photo], "without": [photo]},
        "gone.png": {"with_photos": ["gone.png"], "texts": ["a"]},
        "there is no photo to search with": {},
    }.items():
        with pytest.raises(UserError, match=message):
            search_photos(index, **given)
    with pytest.raises(UserError, match="photos as a list, and texts too"):
        index.search(texts="red mug")
    with pytest.raises(UserError, match=r"^timm:test_vit\S* has no text tower for words: open_clip, transf"):
        small_index(made / "photos", tmp_path / "plain").search(texts=["red mug"])
    shutil.copytree(made / "clip", tmp_path / "clip", ignore=shutil.ignore_patterns("tokenizer*"))
    images = ImageSelection(f"folder:{made}/photos")
    wordless = build_index(f"transformers:{tmp_path}/clip", images, out=tmp_path / "wordless")
    assert wordless is not None
    assert wordless.search([photo], k=1)[0][0].path == "red/5.png"
    with pytest.raises(UserError, match="has no tokeniser beside its weights"):
        ImageIndex.open(tmp_path / "wordless").search(texts=["red mug"])


def test_words_stay_text_in_a_page_and_in_json(index: ImageIndex) -> None:
    results = search_photos(index, texts=TEXTS[3:])
    page = results_page(index, results)
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "<img src=x" not in page
    assert "כחול mug" in page
    assert "is gone" not in page
    (mixed,) = search_photos(index, with_photos=[f"{index.folder}/../photos/red/5.png"], texts=["<i>but", "blue"])
    assert "red/<wbr>5.<wbr>png +1 × “&lt;i&gt;but” +1 × “blue”</p>" in results_page(index, [mixed])
    assert TEXTS[4] in json.loads(results_json(index, results))["photos"][0]["photo"]


@pytest.mark.slow
def test_an_index_of_a_run_has_the_recall_that_pairs_measure(tmp_path: Path) -> None:
    write_table(tmp_path, captions=2)
    aurank.train(pairs_config(tmp_path, train={"steps": 3}), tmp_path / "run")
    name = f"aurank:{tmp_path}/run/best"
    expected = evaluate_pairs(name).two_way["all"].text_to_image
    build_index(name, ImageSelection(split="test"), out=tmp_path / "index")
    shutil.rmtree(tmp_path / "run")
    index = ImageIndex.open(tmp_path / "index")
    classes: dict[str, set[str]] = {}
    with (tmp_path / "pairs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["split"] == "test":
                classes.setdefault(text_key(row["text"]), set()).add(row["label"])
    lists = index.search(texts=list(classes), k=10)
    assert len(lists) == expected.num_queries
    for k, recall in expected.recall.items():
        pairs = zip(lists, classes.values(), strict=True)
        assert np.mean([any(hit.class_name in right for hit in hits[:k]) for hits, right in pairs]) == recall
    assert 0 < expected.recall[1] < 1
    kept = aurank.load(next((tmp_path / "index").glob("model-*")))
    assert kept.encode_texts(["a text"]).shape == (1, index.about["dim"])
