"""grocery/finetuned with SupCon and model.head_start=random, without aurank: torch, timm, Pillow and NumPy.

    python tools/plain_loop.py GroceryStoreDataset-master.zip tf_efficientnet_lite0.safetensors --seeds 0 1 2

Prints mAUPRC and Recall@1 of each seed, to stand beside `aurank benchmark tools/benchmarks/grocery_recipe.yaml`.
"""

import argparse
import io
import math
import zipfile

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional

SIZE, LARGER, STEPS, CLASSES, PHOTOS = 128, round(128 * 256 / 224), 120, 16, 4


def photos(archive, train):
    """Photos of coarse kinds with an even number (training) or an odd one (test), resized, and their kinds."""
    images, kinds = [], []
    with zipfile.ZipFile(archive) as file:
        folder = next(name for name in file.namelist() if name.endswith("/train.txt")).removesuffix("train.txt")
        for part in ("train", "val", "test"):
            for line in file.read(f"{folder}{part}.txt").decode().splitlines():
                path, kind, coarse = (word.strip() for word in line.split(","))
                if (int(coarse) % 2 == 0) == train:
                    image = Image.open(io.BytesIO(file.read(folder + path)))
                    scale = LARGER / min(image.size)
                    size = tuple(round(scale * edge) for edge in image.size)
                    images.append(np.asarray(image.convert("RGB").resize(size, Image.Resampling.BICUBIC)))
                    kinds.append(int(kind))
    return images, np.array(kinds)


def window(image, top, left):
    return image[top : top + SIZE, left : left + SIZE]


def crop(image, chance):
    height, width = image.shape[:2]
    part = window(image, chance.integers(height - SIZE + 1), chance.integers(width - SIZE + 1))
    return part[:, ::-1] if chance.random() < 0.5 else part


def batch_of(views):
    images = torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).float() / 127.5 - 1
    return images.contiguous(memory_format=torch.channels_last)


def sup_con(rows, kinds, temperature=0.1):
    rows = functional.normalize(rows, dim=1)
    itself = torch.eye(len(rows), dtype=torch.bool)
    logits = (rows @ rows.T / temperature).masked_fill(itself, -math.inf)
    positive = (kinds[:, None] == kinds) & ~itself
    log_share = logits - logits.logsumexp(1, keepdim=True)
    return -(log_share.masked_fill(~positive, 0).sum(1) / positive.sum(1)).mean()


def train(images, kinds, weights, seed):
    torch.manual_seed(seed)
    chance = np.random.default_rng(seed)
    network = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    network.load_state_dict({name: value for name, value in load_file(weights).items() if "classifier" not in name})
    network = network.to(memory_format=torch.channels_last)
    head = torch.nn.Linear(1280, 128)
    groups = [{"params": network.parameters(), "rate": 3e-4}, {"params": head.parameters(), "rate": 9e-4}]
    optimiser = torch.optim.AdamW(groups, weight_decay=4e-4)
    network.eval()  # batch norms keep their statistics
    if given.frozen:
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.requires_grad_(False)
    rows_of = {kind: np.flatnonzero(kinds == kind) for kind in np.unique(kinds)}
    for step in range(STEPS):
        drawn = chance.choice(list(rows_of), CLASSES, replace=False)
        rows = np.concatenate([chance.choice(rows_of[kind], PHOTOS, replace=False) for kind in drawn])
        rising = (step + 1) / 10 if step < 10 else 0.5 * (1 + math.cos(math.pi * (step - 10) / (STEPS - 10)))
        for group in optimiser.param_groups:
            group["lr"] = group["rate"] * rising
        loss = sup_con(head(network(batch_of([crop(images[row], chance) for row in rows]))), torch.tensor(kinds[rows]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


@torch.no_grad()
def test(network, images, kinds):
    middle = [window(image, (image.shape[0] - SIZE) // 2, (image.shape[1] - SIZE) // 2) for image in images]
    rows = torch.cat([network(batch_of(middle[start : start + 64])) for start in range(0, len(middle), 64)])
    scores = functional.normalize(rows, dim=1).double()
    scores = (scores @ scores.T).numpy()
    np.fill_diagonal(scores, -np.inf)
    positive = kinds[np.argsort(-scores, axis=1)[:, :-1]] == kinds[:, None]
    precision = positive.cumsum(1) / np.arange(1, len(kinds))
    return float(((precision * positive).sum(1) / positive.sum(1)).mean()), float(positive[:, 0].mean())


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("archive")
parser.add_argument("weights")
parser.add_argument("--seeds", type=int, nargs="+", default=[0])
parser.add_argument("--frozen", action="store_true", help="weights and biases of batch norms are not trained")
given = parser.parse_args()
training, testing = photos(given.archive, train=True), photos(given.archive, train=False)
for seed in given.seeds:
    network = train(*training, given.weights, seed)
    print(f"seed {seed}: mAUPRC {{:.4f}}, Recall@1 {{:.4f}}".format(*test(network, *testing)), flush=True)
