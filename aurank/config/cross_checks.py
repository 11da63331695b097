"""Keys of a configuration that are right alone but not together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

Look = Callable[[str], Any]
"""Returns the value at a dotted path, or None where there is none that can be judged."""

Found = Iterator[tuple[str, str]]
"""Dotted paths, each with the message on it."""

# Images of a class in a batch of the samplers that draw classes where ``sampler.params`` leaves it out.
PER_CLASS = 4

# Of the transformer that encodes texts, where ``model.text`` leaves them out.
TEXT_SIZES = {"layers": 4, "width": 256, "heads": 4, "length": 32, "vocabulary": 8192}

# The libraries whose image towers are named with a colon, beside timm's models.
TOWERS = ("open_clip", "transformers")

# Of the transform "multi_crop", where ``data.train_transform.params`` leaves them out.
CROPS = {"local_size": 96, "global_views": 2}

# The reader of saved embeddings, and what stands for the backbone that made them.
EMBEDDINGS, NO_BACKBONE = "embeddings", "none"

# Keys that saved embeddings have no use for, with the values that say nothing.
OF_IMAGES: dict[str, Any] = {
    "data.views": 1,
    "data.normalise": None,
    "data.interpolation": None,
    "data.decoding": None,
    "data.prepared": None,
    "data.train_transform.name": "crop_flip",
    "data.train_transform.params": {},
    "data.test_transform.name": "center",
    "data.test_transform.params": {},
    "data.image_size": 224,
    "data.channels": 3,
    "model.pooling": "avg",
    "model.params": {},
    "model.freeze_batch_norm": False,
    "model.channels_last": False,
    "model.discard_head": False,
    "model.text": None,
    "model.weights": None,
    "model.freeze": None,
    "model.lora": None,
    "model.gradient_checkpointing": False,
    "optim.layer_decay": None,
}


def lookup(tree: Any, keys: Sequence[str | int]) -> Any:
    """Return the value below these keys of nested mappings and lists, or None."""
    for key in keys:
        if isinstance(key, int):
            tree = tree[key] if isinstance(tree, (list, tuple)) and key < len(tree) else None
        else:
            tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def terms_of(loss: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the path and the mapping of each loss of what stands under ``loss``: a mapping, or a list of them."""
    if isinstance(loss, dict):
        return [("loss", loss)]
    listed = loss if isinstance(loss, (list, tuple)) else []
    return [(f"loss[{place}]", term) for place, term in enumerate(listed) if isinstance(term, dict)]


def contradictions(look: Look) -> Found:
    """Yield keys that are right alone but not together, each with a message."""
    for check in (_steps, _batch, _images, _network, _losses, _texts, _saved_embeddings):
        yield from check(look)


def one_way_loss(loss: Any, two_way: Mapping[str, bool]) -> Found:
    """Yield each loss that cannot take texts beside images; ``two_way`` says of each name whether it can."""
    for path, term in terms_of(loss):
        if not two_way.get(str(name := term.get("name")), True):
            others = ", ".join(other for other in two_way if two_way[other])
            text = f"got {name!r}, which compares images alone; with model.text take one of {others}"
            yield f"{path}.name", text


def _steps(look: Look) -> Found:
    """Yield what comes after the last step."""
    if (steps := look("train.steps")) is None:
        return
    milestones = "optim.schedule.params.milestones"
    for path, remedy in (("optim.warmup_steps", steps // 10), (milestones, []), ("memory.start_at", 0)):
        value = look(path)
        listed = isinstance(value, (list, tuple))
        late = [step for step in (value if listed else [value]) if _is_whole(step) and step >= steps]
        if late:
            better = [step for step in value if step not in late] if listed else remedy
            expected = f"expected {'steps less' if listed else 'less'} than train.steps = {steps}"
            yield path, f"got {late[0]}, {expected}; set {path}={better} or raise train.steps"


def _batch(look: Look) -> Found:
    """Yield a batch that does not hold whole classes, and what does not fit the images that the encoder sees."""
    batch, params, sampler = look("sampler.batch"), look("sampler.params"), look("sampler.name")
    draws_classes = sampler in ("pk", "hard_negative", "hierarchical")
    per_class = None if params is None else params.get("per_class", PER_CLASS if draws_classes else None)
    if batch is not None and _is_whole(per_class) and per_class > 0:
        below = batch - batch % per_class
        if batch < 2 * per_class:
            least = f"at least 2 * sampler.params.per_class = {2 * per_class}: two classes in a batch"
            yield "sampler.batch", f"got {batch}, expected {least}"
        elif below < batch:
            near = f"such as {below} or {below + per_class}"
            yield "sampler.batch", f"got {batch}, expected a multiple of sampler.params.per_class = {per_class}, {near}"
    views, micro_batch, memory_size = look("data.views"), look("train.micro_batch"), look("memory.size")
    if batch is not None and views is not None:
        seen = f"sampler.batch = {batch}" if views == 1 else f"sampler.batch * data.views = {batch * views}"
        if micro_batch is not None and micro_batch > batch * views:
            yield "train.micro_batch", f"got {micro_batch}, expected at most {seen}, or null"
        if memory_size is not None and memory_size <= batch * views:
            yield "memory.size", f"got {memory_size}, expected more than {seen}: a batch is part of the memory"
    if look("data.train_labels") == "image":
        if draws_classes:
            text = f"got '{sampler}', which draws images of one class, but data.train_labels=image gives each a label "
            yield "sampler.name", text + "of its own; set sampler.name=shuffled"
        if views == 1:
            text = "got 1, expected at least 2: with data.train_labels=image the views of an image are its positives"
            yield "data.views", text


def _images(look: Look) -> Found:
    """Yield values that are not one for each channel, and small crops that are larger than the large ones."""
    channels = look("data.channels")
    for path in ("data.normalise.mean", "data.normalise.std"):
        values = look(path)
        if channels is not None and values is not None and len(values) != channels:
            yield path, f"got {len(values)} values, expected one for each of data.channels = {channels}"
    size, views, path = look("data.image_size"), look("data.views"), "data.train_transform.params"
    if look("data.train_transform.name") != "multi_crop" or None in (size, views, look(path)):
        return
    local_size, global_views = (look(path).get(key, default) for key, default in CROPS.items())
    if _is_whole(local_size) and _is_whole(global_views) and views > global_views and local_size > size:
        # In the proportion of 96 to 224, as the defaults are.
        remedy = f"set {path}.local_size={max(1, round(size * 96 / 224))}"
        expected = f"at most data.image_size = {size}, the side of the large crops"
        yield f"{path}.local_size", f"got {local_size}, expected {expected}; {remedy}"


def _losses(look: Look) -> Found:
    """Yield losses of one name, and widths that the embeddings do not have."""
    terms, dim = terms_of(look("loss")), look("model.dim")
    names = [term.get("name") for _, term in terms]
    for place, (path, term) in enumerate(terms):
        if names[place] in names[:place]:
            yield f"{path}.name", f"got {names[place]!r} once more; list a loss once, with the weight of all"
        widths, weights = term.get("matryoshka"), term.get("matryoshka_weights")
        if widths and dim is not None and widths[-1] > dim:
            yield f"{path}.matryoshka", f"got {widths[-1]}, expected at most model.dim = {dim}"
        if weights and len(weights) != len(widths or ()):
            yield f"{path}.matryoshka_weights", f"got {len(weights)} weights, expected one for each width of matryoshka"


def _network(look: Look) -> Found:
    """Yield what contradicts where the first weights come from."""
    if look("model.weights") is not None and look("model.init_from") is not None:
        yield "model.weights", f"got {look('model.weights')!r}, but model.init_from brings all weights; set one of them"
    yield from _trained_parts(look)
    name = look("model.backbone")
    if not isinstance(name, str) or name.partition(":")[0] not in TOWERS:
        return
    reason = f"{name} has pooling, channels and options of its own"
    for path, expected in (("model.pooling", "avg"), ("data.channels", 3), ("model.params", {})):
        if (value := look(path)) not in (None, expected):
            remedy = "options follow its name after commas" if path == "model.params" else "leave it out"
            yield path, f"got {value!r}, expected {expected!r}: {reason}; {remedy}"


def _trained_parts(look: Look) -> Found:
    """Yield what would train, or save memory for, a part that is frozen."""
    frozen, lora = look("model.freeze"), look("model.lora")
    if frozen is not None and lora is not None:
        yield "model.freeze", f"got {frozen!r}, expected null: with model.lora all but the adapters is frozen already"
    if frozen is not None and "backbone" in (frozen, *frozen):
        if look("model.discard_head") is True:
            yield (
                "model.discard_head",
                "got true, but model.freeze=backbone trains nothing else than the head; set false",
            )
        for path, unused in (("model.gradient_checkpointing", False), ("optim.layer_decay", None)):
            if look(path) not in (None, unused):
                yield path, f"got {look(path)!r}, but model.freeze=backbone leaves it nothing to act on; leave it out"


def _texts(look: Look) -> Found:
    """Yield what does not fit a training of images and texts, or one of images alone."""
    ways = [(f"{path}.params.two_way", lookup(term, ("params", "two_way"))) for path, term in terms_of(look("loss"))]
    if look("model.text") is None:
        for path, two_way in ways:
            if two_way is True:
                yield path, "got true, expected false: the other side is of texts, which need model.text"
        return
    reason = "with model.text, images and texts are compared"
    if (views := look("data.views")) is not None and views > 1:
        yield "data.views", f"got {views}, expected 1: {reason}, and no views"
    if look("data.train_labels") == "image":
        yield "data.train_labels", f"got 'image', expected 'class': {reason}, and texts may recur"
    if look("memory") is not None:
        yield "memory", f"expected null: {reason}, and a memory holds one kind"
    if look("model.discard_head") is True:
        yield "model.discard_head", f"got true, expected false: {reason} by their projections"
    for path, two_way in ways:
        if two_way is False:
            yield path, f"got false, expected true: {reason} both ways; leave it out"
    name, width, heads = look("model.text.name"), look("model.text.width"), look("model.text.heads")
    if name not in (None, "transformer"):
        for key, default in TEXT_SIZES.items():
            if (value := look(f"model.text.{key}")) not in (None, default):
                text = f"got {value}, but it is of name=transformer, and {name} brings its own; leave it out"
                yield f"model.text.{key}", text
    elif width is not None and heads is not None and width % heads:
        yield "model.text.width", f"got {width}, expected a multiple of model.text.heads = {heads}"


def _saved_embeddings(look: Look) -> Found:
    """Yield what saved embeddings have no use for: they are not decoded, and their backbone is done."""
    backbone = look("model.backbone")
    if look("data.name") != EMBEDDINGS:
        if backbone == NO_BACKBONE and look("data.name") is not None:
            yield "model.backbone", f"got '{NO_BACKBONE}', which is for data.name={EMBEDDINGS}; name a backbone"
        return
    reason = f"data.name={EMBEDDINGS} holds what a backbone gave"
    if backbone not in (None, NO_BACKBONE):
        yield "model.backbone", f"got {backbone!r}, expected {NO_BACKBONE}: {reason}; leave it out"
    if look("data.train_labels") == "image":
        yield "data.train_labels", f"got 'image', expected 'class': {reason}, and it has no views; leave it out"
    for path, usual in OF_IMAGES.items():
        if (value := look(path)) is not None and value != usual:
            yield path, f"got {_short(value)}, which has no use: {reason} of images; leave it out"


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:60] + "…"


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
