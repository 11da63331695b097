import numpy as np
import pytest
from scipy.io import loadmat, savemat
from testing.trees import GALLERY, LANDMARKS, landmark_tree

from aurank.data import ImageDataset
from aurank.data.checks.findings import write_table
from aurank.data.readers.benchmarks import read_roxford
from aurank.data.transforms.standard import Resize
from aurank.embedding.embed import embed_pixels
from aurank.embedding.embedded import Embedded
from aurank.embedding.protocols import PROTOCOLS
from aurank.errors import UserError

pytestmark = pytest.mark.usefixtures("small_sizes")
SOUGHT = {
    "easy": {"positives": ["easy"], "ignored": ["junk", "hard"]},
    "medium": {"positives": ["easy", "hard"], "ignored": ["junk"]},
    "hard": {"positives": ["hard"], "ignored": ["junk", "easy"]},
}


def _listed(difficulty, column):
    """The pairs (query, image counted from 0) of one kind, query by query."""
    judged = [found for _, found in LANDMARKS.values()]
    kinds = SOUGHT[difficulty][column]
    return [(row, one - 1) for row, found in enumerate(judged) for kind in kinds for one in found[kind]]


def _embedded(manifest, order=slice(None)):
    count = len(manifest)
    whole = Embedded(
        np.random.default_rng(1).normal(size=(count, 6)).astype(np.float32),
        *(manifest.labels, np.arange(count), np.array(manifest.paths), manifest.is_query, manifest.is_gallery),
        groups=np.full(count, -1),
        positives=manifest.positives,
        ignored=manifest.ignored,
    )
    return whole.select(np.arange(count)[order])


@pytest.mark.parametrize("difficulty", SOUGHT)
def test_queries_have_boxes_and_lists_of_what_is_sought_and_left_out(tmp_path, difficulty):
    landmark_tree(tmp_path)
    manifest = read_roxford(tmp_path, difficulty=difficulty)
    assert manifest.paths == tuple(f"jpg/{name}.jpg" for name in (*LANDMARKS, *GALLERY))
    assert manifest.is_query.tolist() == [True] * 3 + [False] * 8
    assert manifest.boxes.tolist() == [[0, 1, 4, 5], [1, 0, 5, 3], [0, 0, 3, 6], *([[-1] * 4] * 8)]
    for column in ("positives", "ignored"):
        expected = [[row, 3 + one] for row, one in _listed(difficulty, column)]
        assert getattr(manifest, column).tolist() == expected


@pytest.mark.parametrize("difficulty", SOUGHT)
def test_the_numbers_are_those_of_a_list_without_what_is_left_out(tmp_path, difficulty):
    landmark_tree(tmp_path)
    manifest = read_roxford(tmp_path, difficulty=difficulty)
    protocol = PROTOCOLS[f"roxford5k-{difficulty}"]
    given = _embedded(manifest)
    report = protocol.evaluate(given)
    assert list(report.metrics) == [
        *("trapezoid_ap", "precision@1(last)", "precision@5(last)", "precision@10(last)", "mauprc")
    ]
    unit = given.embeddings / np.linalg.norm(given.embeddings, axis=1, keepdims=True)
    areas, precisions = [], []
    for row in range(3):
        sought = {one for query, one in _listed(difficulty, "positives") if query == row}
        left_out = {one for query, one in _listed(difficulty, "ignored") if query == row}
        if not sought:
            continue
        order = [one for one in np.argsort(-(unit[3:] @ unit[row])).tolist() if one not in left_out]
        places = [place for place, one in enumerate(order) if one in sought]
        before = [1.0 if place == 0 else found / place for found, place in enumerate(places)]
        after = [(found + 1) / (place + 1) for found, place in enumerate(places)]
        areas.append((np.mean(before) + np.mean(after)) / 2)
        cut = min(5, places[-1] + 1)
        precisions.append(sum(place < cut for place in places) / cut)
    assert report.metrics["trapezoid_ap"] == pytest.approx(np.mean(areas), abs=1e-12)
    assert report.metrics["precision@5(last)"] == pytest.approx(np.mean(precisions), abs=1e-12)
    assert report.num_queries == len(areas) + report.num_lone_queries
    assert protocol.evaluate(given, metrics=["mauprc"]).metrics == {"mauprc": report.mauprc}


def test_pairs_stay_with_their_rows_and_in_the_file_of_embeddings(tmp_path):
    landmark_tree(tmp_path)
    manifest = read_roxford(tmp_path)
    part = manifest.select([2, 8, 9, 3])
    assert part.positives.tolist() == [[0, 1], [0, 2]]
    assert part.ignored.tolist() == []
    assert part.sha256 != manifest.sha256
    embedded = embed_pixels(ImageDataset(manifest, Resize(4, 3), channels=3))
    embedded.save(tmp_path / "rows.npz")
    again = Embedded.load(tmp_path / "rows.npz")
    assert again.positives.tolist() == manifest.positives.tolist()
    assert again.evaluate().metrics == embedded.evaluate().metrics
    with pytest.raises(UserError, match="roxford5k lists which images belong together, which a table does not hold"):
        write_table(manifest, tmp_path / "clean.csv")
    np.savez(tmp_path / "odd.npz", embeddings=np.eye(2), labels=[1, 2], positives=[[0, 2]])
    with pytest.raises(UserError, match="expected rows from 0 to 1"):
        Embedded.load(tmp_path / "odd.npz")


def test_a_ground_truth_that_does_not_fit_is_refused(tmp_path):
    file = landmark_tree(tmp_path) / "gnd_roxford5k.mat"
    content = {name: found for name, found in loadmat(file).items() if not name.startswith("__")}
    content["gnd"][0, 0]["bbx"] = np.array([[1.0, 2.0, 3.0]])
    savemat(file, content)
    with pytest.raises(UserError, match=r"gnd_roxford5k\.mat"):
        read_roxford(tmp_path)
