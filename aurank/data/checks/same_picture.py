"""Whether two images show one picture: candidates by perceptual hash, then laid over each other pixel by pixel."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional

# Of the squares that are laid over each other, coarse to fine, and the likeness below which a pair is given up.
SIZES = {16: 0.85, 32: 0.92, 64: 0.0}
SIDE = 64  # of the finest
_STEPS = 6  # of Gauss and Newton at each size
_LARGEST_SCALE, _LARGEST_SHIFT = 1.18, 0.2  # of one image against the other; a shift of 1 is half a side
_BLOCK = 4096  # hashes compared at a time
_PAIRS = 256  # pairs laid over each other at a time


def close_hashes(
    hashes: Bool[np.ndarray, "image bit"], *, at_most: int, k: int = 16
) -> tuple[Int64[np.ndarray, "pair 2"], Int64[np.ndarray, " pair"]]:
    """Return the pairs of images whose hashes differ in few bits, and in how many; of each image the k closest.

    Memory grows with images × k, time with the square of the images. Each pair is there once, the lower row first.

    Example:
        >>> hashes = np.array([[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 1]], bool)
        >>> pairs, bits = close_hashes(hashes, at_most=1)
        >>> pairs.tolist(), bits.tolist()
        ([[0, 2]], [1])
    """
    import faiss  # seconds of imports, for this alone

    codes = np.packbits(hashes, axis=1)
    index = faiss.IndexBinaryFlat(8 * codes.shape[1])
    index.add(codes)
    parts = []
    for start in range(0, len(codes), _BLOCK):
        bits, place = index.search(codes[start : start + _BLOCK], min(k + 1, len(codes)))
        other = place != np.arange(start, start + len(place))[:, None]
        other[other.all(1), -1] = False  # of so many equal hashes that its own is not listed
        row, column = np.nonzero(other & (bits <= at_most))
        parts.append(np.stack([row + start, place[row, column], bits[row, column]], 1).astype(np.int64))
    found = np.concatenate(parts) if parts else np.zeros((0, 3), np.int64)
    pairs = np.sort(found[:, :2], axis=1)
    pairs, first_of = np.unique(pairs, axis=0, return_index=True)
    return pairs, found[first_of, 2]


def square(image: Image.Image) -> UInt8[np.ndarray, "side side"]:
    """Return a grey image as the square that `likeness` takes."""
    smooth = Image.Resampling.BOX if min(image.size) >= SIDE else Image.Resampling.BILINEAR
    return np.array(image.resize((SIDE, SIDE), smooth))  # a copy that torch may write to


def likeness(
    one: UInt8[np.ndarray, "pair side side"], other: UInt8[np.ndarray, "pair side side"]
) -> Float64[np.ndarray, " pair"]:
    """Return how alike the pictures of each pair are once one is shifted and scaled onto the other, at most 1.

    It is the correlation of the pixels that both show, so neither brightness nor contrast counts. Pairs that are far
    from alike when coarse are not looked at any finer.

    Source: the least squares of Lucas, Kanade, IJCAI 1981, with gain and offset free, coarse to fine.

    Example:
        >>> picture = np.random.default_rng(0).integers(0, 255, (5, 5)).astype(np.uint8)
        >>> whole = np.asarray(Image.fromarray(picture).resize((70, 70), Image.Resampling.BICUBIC))
        >>> found = likeness(whole[None, 3:67, 3:67], square(Image.fromarray(whole // 2))[None])
        >>> bool(found[0] > 0.98)
        True
    """
    found = [
        _likeness(torch.from_numpy(one[start : start + _PAIRS]), torch.from_numpy(other[start : start + _PAIRS]))
        for start in range(0, len(one), _PAIRS)
    ]
    return np.concatenate(found) if found else np.zeros(0)


def _likeness(one: Tensor, other: Tensor) -> Float64[np.ndarray, " pair"]:
    first, second = (image.float()[:, None] for image in (one, other))
    found, alive = torch.zeros(len(one)), torch.arange(len(one))
    scale, shift = torch.ones(len(one), 2), torch.zeros(len(one), 2)
    for size, floor in SIZES.items():
        small = [functional.interpolate(image[alive], (size, size), mode="area") for image in (first, second)]
        moved = scale[alive], shift[alive]
        for _ in range(_STEPS):
            moved = _improved(small[0], small[1], *moved)
        unmoved = torch.ones_like(moved[0]), torch.zeros_like(moved[1])
        found[alive] = torch.maximum(_agreement(small[0], small[1], *moved), _agreement(small[0], small[1], *unmoved))
        scale[alive], shift[alive] = moved
        alive = alive[found[alive] >= floor]
    return found.double().numpy()


def _grid(size: int) -> tuple[Tensor, Tensor]:
    places = (torch.arange(size) + 0.5) * (2 / size) - 1
    return places[None, None, :].expand(1, size, size), places[None, :, None].expand(1, size, size)


def _sampled(image: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return an image [pair, channel, side, side] as it looks scaled and shifted, and which pixels it covers."""
    x, y = _grid(image.shape[-1])
    where = torch.stack([x * scale[:, :1, None] + shift[:, :1, None], y * scale[:, 1:, None] + shift[:, 1:, None]], -1)
    moved = functional.grid_sample(image, where, padding_mode="border", align_corners=False)
    return moved, (where.abs() <= 1).all(-1)


def _improved(one: Tensor, other: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and shift after one step: the least squares of one × gain + offset against the moved other."""
    size = one.shape[-1]
    step = size / 4  # a central difference over two pixels, in units of half a side
    padded = functional.pad(other, (1, 1, 1, 1), mode="replicate")
    across = (padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]) * step
    down = (padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]) * step
    moved, covered = _sampled(torch.cat([other, across, down], 1), scale, shift)
    values, gx, gy = moved[:, 0], moved[:, 1], moved[:, 2]
    x, y = _grid(size)
    columns = torch.stack([one[:, 0], torch.ones_like(values), -gx * x, -gx, -gy * y, -gy], -1).flatten(1, 2)
    weight = covered.flatten(1).float()[..., None]
    columns = (columns * weight).double()
    target = (values.flatten(1)[..., None] * weight).double()
    normal = columns.mT @ columns
    ridge = 1e-6 * normal.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-6)
    solved = torch.linalg.solve(normal + torch.eye(6) * ridge[:, None, None], columns.mT @ target)[..., 0].float()
    scale = (scale + solved[:, [2, 4]]).clamp(1 / _LARGEST_SCALE, _LARGEST_SCALE)
    shift = (shift + solved[:, [3, 5]]).clamp(-_LARGEST_SHIFT, _LARGEST_SHIFT)
    return scale, shift


def _agreement(one: Tensor, other: Tensor, scale: Tensor, shift: Tensor) -> Float[Tensor, " pair"]:
    """Return the correlation of the pixels that both cover."""
    moved, covered = _sampled(other, scale, shift)
    weight = covered.float()
    total = weight.sum((1, 2)).clamp_min(1)

    def centred(values: Tensor) -> Tensor:
        return (values - ((values * weight).sum((1, 2)) / total)[:, None, None]) * weight

    first, second = centred(one[:, 0]), centred(moved[:, 0])
    spread = (first.square().sum((1, 2)) * second.square().sum((1, 2))).sqrt()
    return torch.where(spread > total, (first * second).sum((1, 2)) / spread.clamp_min(1e-9), 0.0)
