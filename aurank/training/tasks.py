"""What a run trains and measures: images that are compared with each other, or pairs of an image and a text."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from aurank.config import Config
from aurank.data import ImageDataset, Manifest
from aurank.data.captions import PADDING
from aurank.distributed import ProcessGroup
from aurank.embedding.embed import embed
from aurank.embedding.embedded import Embedded, evaluate_together, evaluation_options, two_way_options
from aurank.embedding.image_text_pairs import EmbeddedPairs, embed_pairs, reports_by_group, texts_of
from aurank.errors import Diverged, UserError
from aurank.evaluation import Codes
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import TwoWayReport
from aurank.models import Encoder, TwoTower

StageProgress = Callable[[str, int, int], None]
"""Called with a stage, such as "embedding" or "ranking", how much of it is done and how much there is."""


SplitReports = tuple[Report | None, dict[str, TwoWayReport]]
"""Reports on a split: of images found by images, and of pairs both ways, by groups of them."""


class Task:
    """Images, compared with each other by their labels. All processes of ``group`` call its methods together.

    Attributes:
        model: what is trained and saved; ``encoder`` is its encoder of images.
    """

    unit = "images"  # what a row of the data set is
    chosen_by = "mauprc"  # the metric of the best validation
    tokens: Tensor | None = None

    def __init__(self, config: Config, encoder: Encoder, model: nn.Module | None = None) -> None:
        self.config = config
        self.group = ProcessGroup(None)
        self.encoder = encoder
        self.model = encoder if model is None else model

    def measure(self, model: nn.Module, data: ImageDataset) -> Report:
        return evaluate_together(self._embedded(model, data).evaluate, self.group, **evaluation_options(self.config))

    def test(
        self, data: ImageDataset, train: Manifest, progress: StageProgress | None = None, neighbours: int = 0
    ) -> SplitReports:
        """Return all that is measured of a test split."""
        options = {**evaluation_options(self.config), "codes": learnt_widths(self.config), "neighbours": neighbours}
        options["progress"] = _stage(progress, "ranking")
        embedded = self._embedded(self.model, data, progress)
        report = evaluate_together(embedded.evaluate, self.group, **options)
        if self.group.rank == 0:
            report = replace(report, group_pairs=embedded.group_pairs(options))
        return report, {}

    def _embedded(self, model: nn.Module, data: ImageDataset, progress: StageProgress | None = None) -> Embedded:
        batch, workers = self.config.evaluate.batch, self.config.data.workers
        self.group.broadcast(model.buffers())  # batch-norm statistics differ: take the first's
        stage = _stage(progress, "embedding")
        embedded = embed(model, data, batch=batch, workers=workers, group=self.group, progress=stage)
        require_alive(np.asarray(embedded.embeddings))
        return embedded

    def sample(self, data: ImageDataset, name: str, most: int) -> Sequence[int]:
        manifest, readable = data.manifest, _readable(data)
        query, gallery = manifest.is_query & readable, manifest.is_gallery & readable
        counts = np.bincount(manifest.labels[gallery], minlength=len(manifest.classes))
        positives = manifest.num_alike(counts)[manifest.labels] - gallery
        with_positive = np.flatnonzero(query & (positives > 0))
        if len(with_positive) == 0:
            raise UserError(
                f"the {name} split of {manifest.name} cannot be measured: none of its {int(query.sum())} queries has "
                "another image of its class in the gallery; check the data with aurank doctor, or split it otherwise"
            )
        first = int(with_positive[0])
        same = manifest.num_alike(np.bincount(manifest.labels[[first]], minlength=len(counts)))[manifest.labels] > 0
        other_classes = np.flatnonzero((query | gallery) & ~same)
        partner = next(row for row in np.flatnonzero(gallery & same).tolist() if row != first)
        return [first, partner, *other_classes[: most - 2].tolist()]

    def notices(self) -> list[str]:
        return []

    def state_dict(self) -> dict[str, Any] | None:
        return None


class PairTask(Task):
    """Pairs of an image and a text, each found by the other; ``tokens``: [row, length], of each training row's text."""

    unit = "pairs"
    chosen_by = "mean_recall"
    tokens: Tensor

    def __init__(self, config: Config, towers: TwoTower, train: Manifest) -> None:
        image: Any = towers.image
        super().__init__(config, image, towers)
        self.towers = towers
        self.texts = texts_of(train)
        self.tokens = towers.tokenise(self.texts)

    def measure(self, model: nn.Module, data: ImageDataset) -> TwoWayReport:  # type: ignore[override]  # has metrics
        return evaluate_together(self._embed(model, data).evaluate, self.group, **two_way_options(self.config))

    def test(
        self, data: ImageDataset, train: Manifest, progress: StageProgress | None = None, neighbours: int = 0
    ) -> SplitReports:
        """Measure all pairs and each group both ways, and images among themselves where their labels allow it."""
        embedded = self._embed(self.model, data)
        if self.group.rank > 0:
            return None, {}
        images = embedded.images_alone(data.manifest)
        options = {**evaluation_options(self.config), "codes": learnt_widths(self.config), "neighbours": neighbours}
        report = None if images is None else images.evaluate(**options)
        return report, reports_by_group(embedded, train, data.manifest, **two_way_options(self.config))

    def sample(self, data: ImageDataset, name: str, most: int) -> Sequence[int]:
        rows: list[int] = np.flatnonzero(_readable(data))[:most].tolist()
        return rows

    def notices(self) -> list[str]:
        tokeniser = self.towers.tokeniser
        if tokeniser is None:
            return []
        full = self.tokens[:, -1] != PADDING  # only a text that fills all tokens can be cut
        cut = tokeniser.count_cut(text for text, is_full in zip(self.texts, full.tolist(), strict=True) if is_full)
        return [
            f"{cut:,} of {len(self.texts):,} training texts have more than model.text.length={tokeniser.length} tokens "
            "and lose their ends"
        ] * bool(cut)

    def state_dict(self) -> dict[str, Any] | None:
        return None if self.towers.tokeniser is None else self.towers.tokeniser.state_dict()

    def _embed(self, model: nn.Module, data: ImageDataset) -> EmbeddedPairs:
        assert isinstance(model, TwoTower)
        batch, workers = self.config.evaluate.batch, self.config.data.workers
        self.group.broadcast(model.buffers())
        pairs = embed_pairs(model, data, batch=batch, workers=workers, group=self.group)
        require_alive(pairs.images)
        require_alive(pairs.texts)
        return pairs


def learnt_widths(config: Config) -> Codes | None:
    widths = {width for term in config.terms for width in term.matryoshka or () if width < config.model.dim}
    return Codes(dims=tuple(sorted(widths))) if widths and not config.model.discard_head else None


def require_alive(embeddings: Float[np.ndarray, "image dim"]) -> None:
    dead = ~np.isfinite(embeddings).all(axis=1) | ~embeddings.any(axis=1)
    if dead.any():
        raise Diverged(
            f"the network has collapsed: of {len(dead):,} embeddings {int(dead.sum()):,} are all zeros or not finite; "
            "try a lower optim.lr, a longer optim.warmup_steps or optim.clip_norm=1"
        )


def _stage(progress: StageProgress | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else partial(progress, name)


def _readable(data: ImageDataset) -> np.ndarray:
    readable: np.ndarray = ~np.isin(np.array(data.manifest.paths), data.skipped)
    return readable
