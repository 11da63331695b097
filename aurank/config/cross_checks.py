"""Keys of a configuration that are right alone but not together."""

from collections.abc import Callable, Mapping
from typing import Any

# Images of a class in a batch of the samplers "pk" and "hard_negative" where ``sampler.params`` leaves it out.
PER_CLASS = 4

# Of the transformer that encodes texts, where ``model.text`` leaves them out.
TEXT_SIZES = {"layers": 4, "width": 256, "heads": 4, "length": 32, "vocabulary": 8192}

# Of the transform "multi_crop", where ``data.train_transform.params`` leaves them out.
CROPS = {"local_size": 96, "global_views": 2}


def contradictions(look: Callable[[str], Any]) -> list[tuple[str, str]]:
    """Keys that are right alone but not together, each with what to say of it.

    Args:
        look: the value at a dotted path, or None where there is none that can be judged.
    """
    found = []
    steps = _number(look("train.steps"))
    if steps is not None:
        warmup = _number(look("optim.warmup_steps"))
        if warmup is not None and warmup >= steps:
            text = f"got {warmup}, expected less than train.steps = {steps}; set optim.warmup_steps={steps // 10}"
            found.append(("optim.warmup_steps", f"{text} or raise train.steps"))
        milestones = look("optim.schedule.params.milestones")
        if isinstance(milestones, (list, tuple)):
            late = [step for step in map(_number, milestones) if step is not None and step >= steps]
            if late:
                early = [step for step in milestones if step not in late]
                text = f"got {late[0]}, expected steps less than train.steps = {steps}; "
                text += f"set optim.schedule.params.milestones={early} or raise train.steps"
                found.append(("optim.schedule.params.milestones", text))
        start_at = _number(look("memory.start_at"))
        if start_at is not None and start_at >= steps:
            text = f"got {start_at}, expected less than train.steps = {steps}; set memory.start_at=0"
            found.append(("memory.start_at", f"{text} or raise train.steps"))
    params = look("sampler.params")
    default = PER_CLASS if look("sampler.name") in ("pk", "hard_negative") else None
    batch = _number(look("sampler.batch"))
    per_class = _number(params.get("per_class", default)) if isinstance(params, Mapping) else None
    if batch is not None and per_class is not None and per_class > 0:
        below = batch - batch % per_class
        text = f"got {batch}, expected "
        if batch < 2 * per_class:
            text += f"at least 2 * sampler.params.per_class = {2 * per_class}: two classes in a batch"
            found.append(("sampler.batch", text))
        elif below < batch:
            text += f"a multiple of sampler.params.per_class = {per_class}, such as {below} or {below + per_class}"
            found.append(("sampler.batch", text))
    return found + _of_channels(look) + _of_views(look) + _of_crops(look) + _of_texts(look)


def one_way_loss(look: Callable[[str], Any], two_way: Mapping[str, bool]) -> list[tuple[str, str]]:
    """The same of a loss that cannot take texts beside images; ``two_way``: of each loss, whether it can."""
    name = look("loss.name")
    if two_way.get(name, True) or look("model.text") is None:
        return []
    others = ", ".join(other for other, can in two_way.items() if can)
    return [("loss.name", f"got {name!r}, which compares images alone; with model.text take one of {others}")]


def _of_channels(look: Callable[[str], Any]) -> list[tuple[str, str]]:
    """What has not one value for each channel of an image."""
    channels, found = _number(look("data.channels")), []
    for path in ("data.normalise.mean", "data.normalise.std"):
        values = look(path)
        if channels is not None and isinstance(values, (list, tuple)) and len(values) != channels:
            text = f"got {len(values)} values, expected one for each of data.channels = {channels}"
            found.append((path, text))
    return found


def _of_views(look: Callable[[str], Any]) -> list[tuple[str, str]]:
    """What does not fit the number of images that the encoder sees, or labels of images in place of classes."""
    found = []
    batch, views = _number(look("sampler.batch")), _number(look("data.views"))
    micro_batch, memory_size = _number(look("train.micro_batch")), _number(look("memory.size"))
    if batch is not None and views is not None:
        seen = f"sampler.batch = {batch}" if views == 1 else f"sampler.batch * data.views = {batch * views}"
        if micro_batch is not None and micro_batch > batch * views:
            found.append(("train.micro_batch", f"got {micro_batch}, expected at most {seen}, or null"))
        if memory_size is not None and memory_size <= batch * views:
            text = f"got {memory_size}, expected more than {seen}: a batch is part of the memory"
            found.append(("memory.size", text))
    if look("data.train_labels") == "image":
        sampler = look("sampler.name")
        if sampler in ("pk", "hard_negative"):
            text = f"got '{sampler}', which draws images of one class, but data.train_labels=image gives each a label "
            found.append(("sampler.name", text + "of its own; set sampler.name=shuffled"))
        if views == 1:
            text = "got 1, expected at least 2: with data.train_labels=image the views of an image are its positives"
            found.append(("data.views", text))
    return found


def _of_crops(look: Callable[[str], Any]) -> list[tuple[str, str]]:
    """What does not fit the small crops of the transform "multi_crop"."""
    path = "data.train_transform.params"
    params = look(path)
    if look("data.train_transform.name") != "multi_crop" or not isinstance(params, Mapping):
        return []
    size, views = _number(look("data.image_size")), _number(look("data.views"))
    local_size, global_views = (_number(params.get(key, default)) for key, default in CROPS.items())
    if size is None or views is None or local_size is None or global_views is None:
        return []
    if views <= global_views or local_size <= size:
        return []
    text = f"got {local_size}, expected at most data.image_size = {size}, the side of the large crops"
    # In the proportion of 96 to 224, as the defaults are.
    return [(f"{path}.local_size", f"{text}; set {path}.local_size={max(1, round(size * 96 / 224))}")]


def _of_texts(look: Callable[[str], Any]) -> list[tuple[str, str]]:
    """What does not fit a training of images and texts, or one of images alone."""
    found = []
    if look("model.text") is None:
        if look("loss.params.two_way") is True:
            text = "got true, expected false: the other side is of texts, which need model.text"
            found.append(("loss.params.two_way", text))
        return found
    with_texts = "with model.text, images and texts are compared"
    views = _number(look("data.views"))
    if views is not None and views > 1:
        found.append(("data.views", f"got {views}, expected 1: {with_texts}, and no views"))
    if look("data.train_labels") == "image":
        found.append(("data.train_labels", f"got 'image', expected 'class': {with_texts}, and texts may recur"))
    if look("memory") is not None:
        found.append(("memory", f"expected null: {with_texts}, and a memory holds one kind"))
    if look("model.discard_head") is True:
        found.append(("model.discard_head", f"got true, expected false: {with_texts} by their projections"))
    if look("loss.params.two_way") is False:
        found.append(("loss.params.two_way", f"got false, expected true: {with_texts} both ways; leave it out"))
    name = look("model.text.name")
    own = {key: look(f"model.text.{key}") for key in TEXT_SIZES}
    if isinstance(name, str) and name != "transformer":
        for key, value in own.items():
            if value not in (None, TEXT_SIZES[key]):
                text = f"got {value}, but it is of name=transformer, and {name} brings its own; leave it out"
                found.append((f"model.text.{key}", text))
    else:
        width, heads = _number(own["width"]), _number(own["heads"])
        if width is not None and heads and width % heads:
            found.append(("model.text.width", f"got {width}, expected a multiple of model.text.heads = {heads}"))
    return found


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
