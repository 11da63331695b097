"""Two towers from a configuration or a checkpoint: an encoder of images, one of texts, and the tokens of the latter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from aurank.config import Config
from aurank.config.messages import one_line
from aurank.data import Tokeniser
from aurank.embedding.checkpoint import model_weights
from aurank.embedding.from_config import build_encoder
from aurank.embedding.image_text_pairs import Tokenise
from aurank.embedding.load_weights import load_weights
from aurank.errors import UserError
from aurank.models import Encoder, TextTower, TwoTower
from aurank.models.adapters.by_name import load_text_model
from aurank.models.text_encoder import ProjectedText

OWN = "transformer"  # the text model that is trained from random weights, with a tokeniser of its own


@dataclass(frozen=True, eq=False)
class Towers:
    """Two towers and what makes tokens of texts for them; `tokeniser` is None where a text model brings its own."""

    module: TwoTower
    tokenise: Tokenise
    tokeniser: Tokeniser | None

    @property
    def image(self) -> Encoder:
        """The encoder of images."""
        image: Encoder = self.module.image  # type: ignore[assignment]  # a module for torch
        return image


def build_towers(
    config: Config,
    texts: Sequence[str] = (),
    *,
    saved: dict[str, Any] | None = None,
    load: bool = True,
    say: Callable[[str], None] | None = None,
) -> Towers:
    """Two towers, in training mode.

    Args:
        texts: those of training, from which the tokeniser is learnt.
        saved: the state of a tokeniser that was learnt before, in place of that.
        load, say: as for ``build_encoder``; without ``load``, a text model of another library comes without weights.
    """
    settings, model = config.model.text, config.model
    assert settings is not None
    image = build_encoder(model, channels=config.data.channels, load=load, say=say)
    if settings.name != OWN:
        loaded = load_text_model(settings.name, weights=load)
        freeze_unused(loaded.module, loaded.tokenise(["a text"]))
        text = ProjectedText(loaded.module, width=loaded.width, dim=model.dim)
        return Towers(TwoTower(image, text).train(), loaded.tokenise, None)
    tokeniser = (
        Tokeniser.learn(texts, length=settings.length, vocabulary=settings.vocabulary)
        if saved is None
        else _tokeniser_of(saved)
    )
    tower = TextTower(
        tokeniser.vocabulary,
        length=settings.length,
        dim=model.dim,
        layers=settings.layers,
        width=settings.width,
        heads=settings.heads,
    )
    return Towers(TwoTower(image, tower), tokeniser.encode, tokeniser)


def _tokeniser_of(saved: dict[str, Any]) -> Tokeniser:
    """The tokeniser of that state; UserError where it is none."""
    try:
        return Tokeniser.from_state(saved)
    except (LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"the checkpoint's 'tokeniser' is not one ({one_line(str(error))}); use last.pt or best.pt of a run"
        ) from error


def freeze_unused(module: nn.Module, tokens: Tensor) -> None:
    """Freeze the parameters that no embedding of texts depends on.

    Text models of other libraries bring a temperature, or the tower of images. Processes that train together would wait
    for their gradients, and the dry run would count them.
    """
    module(tokens).sum().backward()
    for parameter in module.parameters():
        if parameter.grad is None:
            parameter.requires_grad_(False)
        parameter.grad = None


def require_texts(config: Config, name: str) -> None:
    """Raise UserError where the run of that name has no text tower."""
    if config.model.text is None:
        raise UserError(
            f"{name} was trained on images alone: model.text is null in its configuration; measure it with aurank "
            "evaluate, or train a model of both by setting model.text"
        )


def towers_of(checkpoint: dict[str, Any], config: Config, name: str) -> Towers:
    """The towers of a checkpoint that was read, with the weights to evaluate; UserError where it has none."""
    require_texts(config, name)
    assert config.model.text is not None
    if checkpoint["tokeniser"] is None and config.model.text.name == OWN:
        raise UserError(f"{name} lacks the tokeniser of its texts; use last.pt or best.pt of a run")
    towers = build_towers(config, saved=checkpoint["tokeniser"], load=False)
    load_weights(towers.module, model_weights(checkpoint), name)
    return towers
