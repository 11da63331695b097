"""Time and memory of each loss, forward and backward, beside the similarity product and what others offer.

    python tools/bench_losses.py [--batch 224 896 4096] [--dim 512] [--per-class 4] [--only smooth_ap …] [--json FILE]

Each line is measured in a process of its own. Time: the least of several rounds, in which the products and the loss
take turns, so that another load on the machine hits all of them. `/ product`: divided by E @ E.T, forward only, of the
same embeddings; `/ product f+b`: divided by E @ E.T with its backward. Growth: how far the resident memory of the
process rose above what it held before its first step at full size, after the imports and one small step. What does not
fit into `--limit` gigabytes is said not to.

`/ ResNet-50 step`: divided by forward and backward of timm's resnet50 on a batch of so many images of 224 x 224,
measured on 8 images and scaled linearly (`--images 0` leaves it out). With `--references` the loss ranks so many other
rows, as those of a memory, and the products are E @ R.T. `xbm` has a full memory of its own, of 8,192 rows.

The contrastive losses get two views of each image in place of `--per-class` images of a class, so that a batch of 512
is one of 256 images; two-way ones as many texts as images, and E @ R.T as product. State per sample is that of
`--samples`, 100,000; 10 classes make a super-category. `/ sogclr`: the multiple of the product, divided by SogCLR's.
"""

import argparse
import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measuring import alone, forget_peak, parser_of, resident_megabytes, seconds
from pytorch_metric_learning import losses as pml
from torch import Tensor
from torch.nn.functional import normalize

from aurank.losses import LOSSES, CrossBatchMemory, ListwiseAPLoss, RecallAtKLoss, contrastive
from aurank.losses.core.pairs import read_inputs
from aurank.names import signature

Loss = Callable[..., Tensor]
Result = dict[str, Any]
PRODUCT, STEP = "E @ E.T", "ResNet-50 step"
SIDE, IMAGES = 224, 8
PATIENCE = 8.0  # seconds of rounds for a line


def product(embeddings: Tensor, labels: Tensor, *, ref_emb: Tensor | None = None, **_: Tensor) -> Tensor:
    return (embeddings @ (embeddings if ref_emb is None else ref_emb).T).sum()


def pair_tensor_smooth_ap(embeddings: Tensor, labels: Tensor, *, temperature: float = 0.01) -> Tensor:
    rows = normalize(embeddings)
    similarity = rows @ rows.T
    itself = torch.eye(len(rows), dtype=torch.bool)
    positive = (labels[:, None] == labels) & ~itself
    ahead = ((similarity[:, None, :] - similarity[:, :, None]) / temperature).sigmoid()
    ahead = ahead.masked_fill(itself | itself[:, None, :], 0)  # neither by itself nor by the query
    rank, among = 1 + ahead.sum(dim=2), 1 + (ahead * positive[:, None, :]).sum(dim=2)
    return 1 - ((among / rank) * positive).sum(dim=1).div(positive.sum(dim=1).clamp(min=1)).mean()


PEERS: dict[str, Callable[[], Loss]] = {
    "PML SmoothAP": pml.SmoothAPLoss,
    "PML FastAP": pml.FastAPLoss,
    "PML Contrastive": pml.ContrastiveLoss,
    "PML Triplet": pml.TripletMarginLoss,
    "PML MultiSimilarity": pml.MultiSimilarityLoss,
    "PML NTXent": pml.NTXentLoss,
    "PML SupCon": pml.SupConLoss,
    "SmoothAP, pair tensor": lambda: pair_tensor_smooth_ap,
}
XBM, MEMORY = "xbm", 8192
PROTOTYPES = 4096
VARIANTS: dict[str, Callable[[], Loss]] = {
    "listwise_ap, tie-aware": lambda: ListwiseAPLoss(tie_aware=True),
    "recall_at_k, mixup": lambda: RecallAtKLoss(similarity_mixup=True),
}
NAMES = [PRODUCT, *LOSSES, *VARIANTS, XBM, *PEERS]
OF_CLASSES = {
    *("arcface", "auroc", "blackbox_ap", "circle", "contrastive", "cosface", "fast_ap"),
    *("hierarchical_ap", "listwise_ap", "multi_similarity", "normalized_softmax", "pnp", "proxy_anchor", "proxy_nca"),
    *("recall_at_k", "semi_variance", "smooth_ap", "soft_triple", "soprc", "subcenter_arcface", "sup_ap"),
    *("sup_recall", "triplet", PRODUCT, *VARIANTS, XBM, *PEERS),
} - {"PML NTXent", "PML SupCon"}  # all others are contrastive
BASELINE = "sogclr"


def make(name: str, classes: int, given: argparse.Namespace, memory: tuple[Tensor, Tensor] | None) -> Loss:
    if name == PRODUCT:
        return product
    if memory is not None:
        rows, labels = memory
        xbm = CrossBatchMemory(contrastive(reduction="batch"), embedding_size=rows.shape[1], memory_size=len(rows))
        xbm.write(read_inputs(rows, labels))
        return xbm
    if name in VARIANTS | PEERS:
        return (VARIANTS | PEERS)[name]()
    wanted, _ = signature(LOSSES[name])
    sizes = {"class_counts": torch.full((classes,), 6), "num_samples": given.samples, "embedding_size": given.dim}
    sizes |= {"num_classes": classes, "super_labels": torch.arange(classes) // 10}
    loss: Loss = LOSSES[name](**{size: value for size, value in sizes.items() if size in wanted})
    return loss


def measure(name: str, given: argparse.Namespace) -> Result:
    batch = given.batch[0]
    random = torch.Generator().manual_seed(0)
    rows = MEMORY if name == XBM else given.references or batch
    classes = max(1, rows // given.per_class)
    embeddings = torch.randn(batch, given.dim, generator=random, requires_grad=True)
    others: dict[str, Tensor] = {}
    if given.references or name == XBM:
        others["ref_emb"] = torch.randn(rows, given.dim, generator=random)
        others["ref_labels"] = torch.arange(rows) % classes
    memory = (others["ref_emb"], others["ref_labels"]) if name == XBM else None
    loss = make(name, classes + 1, given, memory)
    both_ways = getattr(loss, "two_way", False)
    per_class = given.per_class if name in OF_CLASSES else 1 if both_ways else 2
    labels = (torch.arange(batch) // per_class)[torch.randperm(batch, generator=random)]
    if name not in OF_CLASSES:
        labels *= max(1, given.samples // batch)  # all over the table
    if name == "PML SmoothAP":
        labels = labels.sort().values  # it needs blocks
    small = torch.arange(32) // min(per_class, 16) % (classes + 1 if name in OF_CLASSES else given.samples)
    few: dict[str, Tensor] = {}
    if both_ways:
        texts = torch.randn(batch, given.dim, generator=random, requires_grad=True)
        texts.grad = torch.zeros_like(texts)
        others = {"ref_emb": texts, "ref_labels": labels, "ids": labels, "ref_ids": labels}
        few = {"ref_emb": texts[:32], "ref_labels": small, "ids": small, "ref_ids": small}
    own = others if memory is None else {}  # a memory brings its references itself
    if name == "neuclip":  # its prototypes are those of its first batch
        full, rows_of = torch.arange(PROTOTYPES), torch.randn(2, PROTOTYPES, given.dim, generator=random)
        loss(rows_of[0], full, ref_emb=rows_of[1], ref_labels=full)
    torch.autograd.backward(loss(embeddings[:32], small, **few))  # loads kernels, starts threads
    embeddings.grad = torch.zeros_like(embeddings)

    def step() -> None:
        torch.autograd.backward(loss(embeddings, labels, **own))

    def only_product() -> None:
        with torch.no_grad():
            product(embeddings, labels, **others)

    def product_and_backward() -> None:
        torch.autograd.backward(product(embeddings, labels, **others))

    forget_peak()
    before = resident_megabytes("VmRSS")
    times = [(seconds(step), float("inf"), float("inf"))]
    growth = resident_megabytes("VmHWM") - before
    spent = times[0][0]
    while len(times) == 1 or (len(times) <= given.rounds and spent < PATIENCE):
        times.append((seconds(step), seconds(only_product), seconds(product_and_backward)))
        spent += sum(times[-1])
    best = [min(column) for column in zip(*times, strict=True)]
    return {"seconds": best[0], "product": best[1], "product_and_backward": best[2], "growth": growth}


def measure_step(rounds: int) -> Result:
    import timm

    network = timm.create_model("resnet50", num_classes=0)
    images = torch.randn(IMAGES, 3, SIDE, SIDE)

    def step() -> None:
        torch.autograd.backward(network(images).sum())

    step()
    return {"seconds": min(seconds(step) for _ in range(min(3, rounds))) / IMAGES}


def run_alone(name: str, batch: int, given: argparse.Namespace) -> Result:
    result = alone(name, given, batch=[batch])
    if (text := result.get("failure")) is not None:
        is_memory = "allocate memory" in text or "MemoryError" in text
        result["failure"] = f"needs more than {given.limit:g} GB" if is_memory else text.splitlines()[-1][:120]
    return result


def line(name: str, batch: int, result: Result, image: float | None, baseline: float | None) -> str:
    if "failure" in result:
        return f"{name:22}{batch:6}   {result['failure']}"
    columns = f"{result['seconds'] * 1e3:10.1f}{multiple(result):11.1f}"
    columns += f"{'' if baseline is None else f'{multiple(result) / baseline:.2f}':>10}"
    columns += f"{result['seconds'] / result['product_and_backward']:15.2f}{result['growth']:12.0f}"
    share = "" if image is None else f"{result['seconds'] / (image * batch):18.3%}"
    return f"{name:22}{batch:6}{columns}{share}"


def multiple(result: Result) -> float:
    found: float = result["seconds"] / result["product"]
    return found


def main() -> None:
    sizes: dict[str, Any] = {"batch": [224, 896, 4096], "dim": 512, "per_class": 4, "references": 0, "rounds": 30}
    limits: dict[str, Any] = {"limit": 8.0, "threads": torch.get_num_threads()}
    parser = parser_of(__doc__, **sizes, samples=100_000, **limits)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--images", type=int, default=IMAGES, choices=(0, IMAGES), help="0: no ResNet-50 step")
    parser.add_argument("--json", type=Path, help="write what was measured there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.one:
        resource.setrlimit(resource.RLIMIT_DATA, (int(given.limit * 2**30),) * 2)
        print(json.dumps(measure_step(given.rounds) if given.one == STEP else measure(given.one, given)))
        return
    kind = f"torch {torch.__version__}, {given.threads} threads, dim {given.dim}, {given.per_class} per class, float32"
    print(kind + (f", {given.references:,} references" if given.references else ""))
    found: list[Result] = []
    image = None
    if given.images:
        found.append({"name": STEP, "batch": 1, **run_alone(STEP, IMAGES, given)})
        image = found[0]["seconds"]
        print(f"{STEP}: {image:.3f} s per image, forward and backward of {IMAGES} images of {SIDE} x {SIDE}")
    titles = f"{'/ product':>11}{'/ ' + BASELINE:>10}{'/ product f+b':>15}{'growth, MB':>12}{'/ ' + STEP:>18}"
    print(f"{'':22}{'batch':>6}{'ms':>10}{titles}")
    for batch in given.batch:
        baseline = None
        for name in sorted(given.only, key=lambda name: name != BASELINE):  # first, for the others to be compared with
            result = run_alone(name, batch, given)
            baseline = multiple(result) if name == BASELINE and "seconds" in result else baseline
            found.append({"name": name, "batch": batch, **result})
            print(line(name, batch, result, image, baseline), flush=True)
    if given.json:
        about = {"torch": torch.__version__, "threads": given.threads, "dim": given.dim, "per_class": given.per_class}
        given.json.write_text(json.dumps({**about, "references": given.references, "lines": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
