"""What a run trains and measures: images that are compared with each other, or pairs of an image and a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from aurank.config import Config
from aurank.data import Batch, ImageDataset, Manifest
from aurank.data.captions import PADDING
from aurank.embedding.embed import embed
from aurank.embedding.evaluation_options import evaluation_options, noted, noted_both, two_way_options
from aurank.embedding.image_text_pairs import EmbeddedPairs, embed_pairs, reports_by_group, texts_of
from aurank.embedding.towers import Towers
from aurank.errors import UserError
from aurank.evaluation.report import Report
from aurank.evaluation.two_way import TwoWayReport
from aurank.models import EachSide, EachSize, Encoder


@dataclass(frozen=True, eq=False)
class Tested:
    """What was measured on a test split: images with each other, and pairs both ways, by group of them."""

    report: Report | None
    two_way: dict[str, TwoWayReport]

    def noted(self, note: str) -> "Tested":
        """The same with a note in every report."""
        return Tested(
            None if self.report is None else noted(self.report, note),
            {name: noted_both(found, note) for name, found in self.two_way.items()},
        )


class ImageTask:
    """Images, compared with each other by their labels. `PairTask` has the same methods."""

    unit = "images"  # what a row of the data set is
    chosen_by = "mauprc"  # the metric of the best validation

    def __init__(self, config: Config, encoder: Encoder) -> None:
        self.config = config
        self.model: nn.Module = encoder  # what is trained and saved
        self.encoder = encoder  # of images

    def wrapped(self) -> nn.Module:
        """The model as a module that is called once for all that a step embeds."""
        return EachSize(self.model)

    def inputs(self, batch: Batch) -> Tensor | tuple[Tensor, ...]:
        """What of a batch is embedded."""
        return batch.image

    def of_images(self, embeddings: Float[Tensor, "row dim"]) -> Float[Tensor, "image dim"]:
        """The embeddings of the images among those of a batch."""
        return embeddings

    def loss(
        self, loss: nn.Module, embeddings: Float[Tensor, "row dim"], batch: Batch, miner: nn.Module | None
    ) -> Tensor:
        """The loss of the embeddings of a batch."""
        value: Tensor = loss(embeddings, batch.label, miner, ids=batch.id)
        return value

    def measure(self, data: ImageDataset) -> Report:
        """The exact report of the model as it stands."""
        embedded = embed(self.model, data, batch=self.config.evaluate.batch, workers=self.config.data.workers)
        return embedded.evaluate(**evaluation_options(self.config))

    def test(self, data: ImageDataset, train: Manifest) -> Tested:
        """All that is measured of a test split."""
        return Tested(self.measure(data), {})

    def sample(self, data: ImageDataset, name: str, most: int) -> Sequence[int]:
        """Rows of a split that can be measured; UserError where the whole split cannot be."""
        manifest = data.manifest
        readable = _readable(data)
        query, gallery = manifest.is_query & readable, manifest.is_gallery & readable
        positives = np.bincount(manifest.labels[gallery], minlength=len(manifest.classes))[manifest.labels] - gallery
        with_positive = np.flatnonzero(query & (positives > 0))
        if len(with_positive) == 0:
            raise UserError(
                f"the {name} split of {manifest.name} cannot be measured: none of its {int(query.sum())} queries has "
                "another image of its class in the gallery; check the data with aurank doctor, or split it otherwise"
            )
        first = int(with_positive[0])
        same = np.flatnonzero(gallery & (manifest.labels == manifest.labels[first]))
        others = np.flatnonzero((query | gallery) & (manifest.labels != manifest.labels[first]))
        partner = int(same[same != first][0])
        return [first, partner, *others[: most - 2].tolist()]

    def remarks(self) -> list[str]:
        """What to say of it before a run."""
        return []

    def state_dict(self) -> dict[str, Any] | None:
        """What a checkpoint keeps beside the weights, as its "tokeniser"."""
        return None


class PairTask:
    """Pairs of an image and a text, each found by the other.

    train: its row i has the text whose tokens go with the image of id i.
    """

    unit = "pairs"
    chosen_by = "mean_recall"

    def __init__(self, config: Config, towers: Towers, train: Manifest) -> None:
        self.config = config
        self.towers = towers
        self.model = towers.module
        self.encoder: Encoder = towers.image
        self.texts = texts_of(train)
        self.tokens = towers.tokenise(self.texts)  # [row, length]

    def wrapped(self) -> nn.Module:
        """The model as a module that is called once for all that a step embeds."""
        return EachSide(self.model)

    def inputs(self, batch: Batch) -> tuple[Tensor, ...]:
        """The images of a batch, and the tokens of their texts."""
        assert isinstance(batch.image, Tensor)  # several sizes come of several views, which pairs do not have
        return batch.image, self.tokens[batch.id]

    def of_images(self, embeddings: Float[Tensor, "row dim"]) -> Float[Tensor, "image dim"]:
        """The embeddings of the images among those of a batch, of which the other half are texts."""
        return embeddings[: len(embeddings) // 2]

    def loss(
        self, loss: nn.Module, embeddings: Float[Tensor, "row dim"], batch: Batch, miner: nn.Module | None
    ) -> Tensor:
        """The loss, in both directions, of the embeddings of a batch: first all images, then all texts."""
        images, texts = torch.split(embeddings, len(batch.id))
        value: Tensor = loss(
            images, batch.label, miner, ref_emb=texts, ref_labels=batch.label, ids=batch.id, ref_ids=batch.id
        )
        return value

    def measure(self, data: ImageDataset) -> TwoWayReport:
        """The exact report of the model as it stands, both ways."""
        return self._embed(data).evaluate(**self._options)

    def test(self, data: ImageDataset, train: Manifest) -> Tested:
        """Both ways, of all pairs and of each group; and the images with each other where their labels allow it."""
        embedded = self._embed(data)
        images = embedded.images_alone(data.manifest)
        report = None if images is None else images.evaluate(**evaluation_options(self.config))
        return Tested(report, reports_by_group(embedded, train, data.manifest, **self._options))

    def sample(self, data: ImageDataset, name: str, most: int) -> Sequence[int]:
        """Rows of a split that can be measured; UserError where the whole split cannot be."""
        found: list[int] = np.flatnonzero(_readable(data))[:most].tolist()
        if not found:
            raise UserError(f"the {name} split of {data.manifest.name} cannot be measured: no image of it can be read")
        return found

    def remarks(self) -> list[str]:
        """What to say of it before a run."""
        tokeniser = self.towers.tokeniser
        if tokeniser is None:
            return []
        full = self.tokens[:, -1] != PADDING  # no other text can have lost its end
        cut = tokeniser.count_cut(text for text, there in zip(self.texts, full.tolist(), strict=True) if there)
        if not cut:
            return []
        return [
            f"{cut:,} of {len(self.texts):,} training texts have more than model.text.length={tokeniser.length} tokens "
            "and lose their ends"
        ]

    def state_dict(self) -> dict[str, Any] | None:
        """What a checkpoint keeps beside the weights, as its "tokeniser"; None for that of another library."""
        return None if self.towers.tokeniser is None else self.towers.tokeniser.state_dict()

    def _embed(self, data: ImageDataset) -> EmbeddedPairs:
        settings = self.config
        return embed_pairs(
            self.model, self.towers.tokenise, data, batch=settings.evaluate.batch, workers=settings.data.workers
        )

    @property
    def _options(self) -> dict[str, Any]:
        return two_way_options(self.config)


Task = ImageTask | PairTask


def _readable(data: ImageDataset) -> np.ndarray:
    readable: np.ndarray = ~np.isin(np.array(data.manifest.paths), data.skipped)
    return readable
