"""Claims of the five papers about estimators, on drawn scores and vectors: docs/claims.md says what comes of them.

    python tools/claims.py [--only CLAIMS …]

A line of docs/miniatures/claims.jsonl is a claim and a seed with its figures by name; those of other claims are kept.
claims.txt has each figure's mean over seeds, ± the half width of its 95 % interval.
"""

import copy
import json
import math
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from measuring import parser_of, timed
from pytorch_metric_learning.distances import CosineSimilarity
from scipy.stats import beta, norm, uniform
from torch import Tensor, nn
from torch.nn.functional import normalize

from aurank import evaluate, losses
from aurank.commands.benchmarks.benchmark import package_commit
from aurank.evaluation.significance import over_seeds
from aurank.files import write_text
from aurank.losses.core.pairs import make_pairs, read_inputs
from aurank.losses.core.row_table import RowTable
from aurank.losses.core.temperature import log_mean_exp
from aurank.losses.ranking.ranking_sums import ranking_sums
from aurank.losses.ranking.soprc import INTERPOLATIONS, true_positive_rate
from aurank.reporting.tables import markdown_table

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "miniatures"
NUM_QUANTILES, TAU2 = 100, 0.001  # SOPRCLoss's own
Figures = dict[str, float]


def interpolated(ascending: Tensor, kind: str = "quantile", number: int = NUM_QUANTILES) -> Tensor:
    count = torch.full((len(ascending),), ascending.shape[1])
    return INTERPOLATIONS[kind](ascending, count, num_quantiles=number, bounds=(-torch.inf, torch.inf))


def moving_average(seed: int, *, rows: int = 400, steps: int = 200) -> Figures:
    """Compare v after some steps of 3 scores of N(0.5, 0.1) with Prop. 1; each row of a table is a v of its own."""
    chance, index = torch.Generator().manual_seed(seed), torch.arange(rows)

    def batch() -> Tensor:
        return interpolated(torch.normal(0.5, 0.1, (rows, 3), generator=chance).sort(dim=1).values)

    many = torch.cat([batch() for _ in range(100)]).double()
    mean, variance = many.mean(dim=0), many.var(dim=0)
    fixed, figures = torch.arange(NUM_QUANTILES) / NUM_QUANTILES, Figures()
    for rate in (0.001, 0.01, 0.1):
        for name, start in {"fixed start": fixed, "start at a batch": None}.items():
            table = RowTable(rows, NUM_QUANTILES, start=start)
            for _ in range(steps):
                table.update(index, batch(), rate=rate)
            v, first = table.rows.double(), mean if start is None else start.double()
            expected = mean + (1 - rate) ** steps * (first - mean)
            errors = (v.mean(dim=0) - expected) / (v.var(dim=0) / rows + variance / len(many)).sqrt()
            figures[f"{name}, β {rate:g}, error of the mean / standard error"] = float(errors.square().mean().sqrt())
            bound = variance * rate / (2 - rate)
            figures[f"{name}, β {rate:g}, variance / bound"] = float((v.var(dim=0) / bound).mean())
    return figures


PRIOR, SIZE, BATCH = 0.1, 100_000, 2_000
# positives, negatives
SCORES = {
    "binormal": (norm(1), norm()),
    "bibeta": (beta(5, 2), beta(2, 5)),
    "offset uniform": (uniform(0.5), uniform()),
}


def samples(scores: Tensor, count: int, repeats: int, chance: np.random.Generator) -> Tensor:
    return scores[torch.from_numpy(chance.integers(len(scores), size=(repeats, count)))].float()


def sampling_rate(seed: int) -> Figures:
    """Return mean minus 1 − AUPRC of 1 − AP of a batch (Eq. 5) and of SOPRC (Eq. 8), with the 0/1 loss, by π0.

    A tenth of 100,000 scores are positive; batches hold 2,000, a share π0 positive; v follows from batch to batch.
    """
    figures = Figures()
    for name, (positive, negative) in SCORES.items():
        chance, number = np.random.default_rng(seed), round(PRIOR * SIZE)
        positives = torch.from_numpy(positive.rvs(number, random_state=chance))
        negatives = torch.from_numpy(negative.rvs(SIZE - number, random_state=chance))
        above = len(negatives) - torch.searchsorted(negatives.sort().values, positives)
        false = (1 - PRIOR) * above / len(negatives)
        true = PRIOR * (1 + positives.argsort(descending=True).argsort()) / len(positives)
        truth = float((false / (false + true)).mean())
        for share in (0.01, 0.02, 0.1, 0.2):
            n = round(share * BATCH)
            drawn, others = samples(positives, n, 200, chance), samples(negatives, BATCH - n, 200, chance)
            # a sigmoid so steep is the 0/1 loss
            higher = ranking_sums(drawn, others, surrogate="sigmoid", temperature=1e-6)
            position = 1 + drawn.argsort(dim=1, descending=True).argsort(dim=1)
            table, v = RowTable(1, NUM_QUANTILES), []
            for scores in drawn.sort(dim=1).values:
                table.update(torch.tensor([0]), interpolated(scores[None]), rate=0.1)
                v.append(table.rows.clone())
            false = (1 - PRIOR) * higher / others.shape[1]
            true = PRIOR * true_positive_rate(drawn, torch.cat(v), tau2=TAU2)
            figures[f"{name}, AP, π0 {share:g}"] = float((higher / (higher + position)).mean()) - truth
            figures[f"{name}, SOPRC, π0 {share:g}"] = float((false / (false + true)).mean()) - truth
        for loss in (f"{name}, AP, π0", f"{name}, SOPRC, π0"):
            figures[f"{loss} 0.2 minus 0.01"] = figures[f"{loss} 0.2"] - figures[f"{loss} 0.01"]
    return figures


def interpolation_error(seed: int) -> Figures:
    """Return the root mean square over quantiles of E φ − p, in standard deviations of the scores, by their number.

    "slope": of the largest error over the middle 80 % by n, on logarithmic axes, where the scores are p(i/(n+1)); p is
    the quantile function of N(0, 1) between its 5 % and 95 %, so that p'' is bounded. Nothing is drawn for it.
    """
    figures, levels = Figures(), torch.arange(1, 4001, dtype=torch.float64) / 4001
    counts, middle = (20, 40, 80, 160, 320), (levels >= 0.1) & (levels <= 0.9)
    for kind in ("quantile", "paper"):
        for name, (positive, _) in SCORES.items():
            chance = np.random.default_rng(seed)
            scores = torch.from_numpy(positive.rvs(round(PRIOR * SIZE), random_state=chance))
            truth = scores.quantile(torch.arange(1, NUM_QUANTILES + 1, dtype=torch.float64) / (NUM_QUANTILES + 1))
            for count in (3, 10, 100):
                drawn = samples(scores, count, 2000, chance).sort(dim=1).values
                error = interpolated(drawn, kind).double().mean(dim=0) - truth
                figures[f"{name}, {kind}, {count} scores"] = float(error.square().mean().sqrt() / scores.std())
        ideal = [
            torch.special.ndtri(0.05 + 0.9 * torch.arange(1, n + 1, dtype=torch.float64) / (n + 1)) for n in counts
        ]
        errors = [interpolated(each[None], kind, 4000)[0] - torch.special.ndtri(0.05 + 0.9 * levels) for each in ideal]
        largest = [float(error[middle].abs().max()) for error in errors]
        figures[f"slope, {kind}"] = float(np.polyfit(np.log(counts), np.log(largest), 1)[0])
    return figures


WIDTH, DIM = 64, 32


def gradient_change(seed: int, *, trials: int = 60) -> Figures:
    """Return the mean of |g − g'| over that of |g|, g' with another positive, of one query in a batch of 112.

    A linear map of vectors around 28 class centres, 4 of each, stands for the network.
    """
    chance, labels = torch.Generator().manual_seed(seed), torch.arange(112) // 4
    centres = torch.randn(28, WIDTH, generator=chance)[labels]
    weight = torch.randn(WIDTH, DIM, generator=chance) / WIDTH**0.5
    soprc = partial(losses.SOPRCLoss, torch.full((28,), 4), semi_variance=None)
    compared = {"SmoothAP": losses.SmoothAPLoss(), "FastAP": losses.FastAPLoss()}
    compared |= {"BlackBox AP": losses.BlackBoxAPLoss(margin=0, flat_weight=0)}
    compared |= {"SOPRC without v": soprc(moving_average=False), "SOPRC": soprc()}
    inputs = partial(torch.normal, centres, 1.2, generator=chance)

    def gradient(loss: losses.PairLoss, rows: Tensor) -> Tensor:
        leaf = weight.clone().requires_grad_()
        rows = rows @ leaf
        value = copy.deepcopy(loss)(rows[:1], labels[:1], ref_emb=rows[1:], ref_labels=labels[1:])
        return torch.autograd.grad(value, leaf)[0]

    for _ in range(50):  # v follows the scores before the gradient is measured
        compared["SOPRC"](inputs() @ weight, labels)
    lengths, changes = Counter[str](), Counter[str]()
    for _ in range(trials):
        rows = inputs()
        changed = rows.clone()
        changed[1] = inputs()[1]  # the query is row 0, of the same class
        for name, loss in compared.items():
            before = gradient(loss, rows)
            lengths[name] += before.norm()
            changes[name] += (before - gradient(loss, changed)).norm()
    figures = {name: float(changes[name] / lengths[name]) for name in compared}
    return figures | {f"SOPRC minus {name}": figures["SOPRC"] - figures[name] for name in compared if name != "SOPRC"}


def gradient_share(seed: int, *, batches: int = 10) -> Figures:
    """Return the mean length of the queries' gradients, and the share of the longest tenth in their sum, by π.

    112 vectors around 28 centres, 4 of each: more noise stands for a network that knows less, as the batch's AP tells.
    """
    chance, labels, figures = torch.Generator().manual_seed(seed), torch.arange(112) // 4, Figures()
    soprc = partial(losses.SOPRCLoss, torch.full((964,), 20), moving_average=False, semi_variance=None)
    compared = {f"π {prior:.2g}": soprc(prior_max=prior) for prior in (0.1, 0.01, 1 / 964)}  # the last: by frequency
    for noise in (1.5, 3.0):
        ap, share, length = 0.0, Counter[str](), Counter[str]()
        for _ in range(batches):
            rows = torch.randn(28, DIM, generator=chance)[labels]
            rows = normalize(rows + noise * torch.randn(112, DIM, generator=chance)).requires_grad_()
            ap += evaluate(rows.detach().numpy(), labels.numpy()).mauprc / batches
            for name, loss in compared.items():
                lengths = torch.zeros(112)
                for query in range(112):
                    kept = torch.arange(112) != query
                    value = loss(rows[[query]], labels[[query]], ref_emb=rows[kept], ref_labels=labels[kept])
                    lengths[query] = torch.autograd.grad(value, rows)[0].norm()
                share[name] += float(lengths.topk(11).values.sum() / lengths.sum()) / batches
                length[name] += float(lengths.mean()) / batches
        figures |= {f"noise {noise:g}, AP of the batch": ap}
        figures |= {f"noise {noise:g}, {name}, share of a tenth": value for name, value in share.items()}
        figures |= {f"noise {noise:g}, {name}, length": value for name, value in length.items()}
    return figures


def generalization_gap(seed: int, *, repeats: int = 4) -> Figures:
    """Return AP of the list that a scorer learned from, minus AP of fresh lists as long, by N⁺ and n⁺.

    One query. The score is the cosine with a learned vector, at first another positive. Positives are drawn around
    0.35, ten times as many negatives around 0; each of 300 steps has n⁺ and 10 n⁺ of them, at one rate, picked by
    hand. π is the frequency, β 1/n⁺. The theorems ask for T ≤ N⁺ steps, and rates that fall as 1/t.
    """
    chance, figures, sizes = torch.Generator().manual_seed(seed), Figures(), ((16, 64, 256), (2, 4, 8))
    for name, moving_average in {"SOPRC": True, "SOPRC without v": False}.items():
        gaps = np.zeros((3, 3))
        for (i, count), (j, batch) in product(*map(enumerate, sizes)):
            both = [seen_and_fresh(count, batch, moving_average, chance) for _ in range(repeats)]
            seen, fresh = np.mean(both, axis=0).tolist()
            gaps[i, j] = seen - fresh
            figures |= {f"{name}, N⁺ {count}, n⁺ {batch}, gap": seen - fresh}
            figures |= {f"{name}, N⁺ {count}, n⁺ {batch}, AP of fresh lists": fresh}
        for axis, (sign, counts) in enumerate(zip(("N⁺", "n⁺"), sizes, strict=True)):
            mean = gaps.mean(axis=1 - axis)
            figures[f"{name}, slope by {sign}"] = float(np.polyfit(np.log(counts), np.log(mean), 1)[0])
        figures[f"{name}, mean gap"] = float(gaps.mean())
    return figures | {"mean gap, SOPRC minus SOPRC without v": figures["SOPRC, mean gap"] - float(gaps.mean())}


def seen_and_fresh(count: int, batch: int, moving_average: bool, chance: torch.Generator) -> tuple[float, float]:
    """Train one scorer; return its AP on the list that it saw, and the mean of its AP on 20 fresh lists."""

    def drawn() -> tuple[Tensor, Tensor]:
        labels = (torch.arange(11 * count) < count).long()
        return torch.randn(11 * count, DIM, generator=chance) + 0.35 * labels[:, None], labels

    def ap(rows: Tensor, labels: Tensor) -> float:
        query = scorer.detach().numpy()
        return evaluate(query, np.ones(1, int), gallery=rows.numpy(), gallery_labels=labels.numpy()).mauprc

    seen, scorer, steps = drawn(), drawn()[0][:1].requires_grad_(), 300
    loss = losses.SOPRCLoss(
        torch.bincount(seen[1]), prior="frequency", semi_variance=None, beta=1 / batch, moving_average=moving_average
    )
    optimiser = torch.optim.SGD([scorer])
    for step in range(steps):
        # so large because a cosine's gradient falls with the scorer's length, here 6
        optimiser.param_groups[0]["lr"] = 300 * (1 - step / steps)
        positive = torch.randperm(count, generator=chance)[:batch]
        negative = count + torch.randperm(10 * count, generator=chance)[: 10 * batch]
        ids = torch.cat([positive, negative])
        optimiser.zero_grad()
        loss(scorer, torch.ones(1).long(), ref_emb=seen[0][ids], ref_labels=seen[1][ids]).backward()
        optimiser.step()
    return ap(*seen), fmean(ap(*drawn()) for _ in range(20))


COSINE, TAU, SEEN = CosineSimilarity(), 0.07, 20_480
NORMALIZERS: dict[str, Callable[[int], Any]] = {  # without a memory FastCLIP's estimate is that of the batch
    "mini-batch": lambda n: losses.FastCLIPLoss(n, "v1", temperature=TAU, gamma=1.0, gamma_schedule="constant"),
    "FastCLIP": lambda n: losses.FastCLIPLoss(n, "v1", temperature=TAU),
    "NeuCLIP": lambda _: losses.NeuCLIPLoss(
        DIM, 1024, temperature=TAU, learn_temperature=False, inner_lr=0.01, restart_every=50
    ),
}


def normalizer_error(seed: int) -> Figures:
    """Return the squared error of the estimated log-normaliser, the mean of five points of a training, by batch and n.

    Two maps of one hidden layer learn pairs of drawn vectors, whose sides are linear images of one of 64 centres, with
    noise. The exact normaliser of an image is that over all n texts at the weights of the moment.
    """
    sizes = ((128, 2560), (64, 2560), (128, 256))
    return {f"{name}, batch {b}, n {n}": fmean(errors(name, b, n, seed)) for b, n in sizes for name in NORMALIZERS}


def errors(name: str, batch: int, size: int, seed: int) -> Iterator[float]:
    torch.manual_seed(seed)
    latent = (2 * torch.randn(64, 16))[torch.randint(64, (size,))] + torch.randn(size, 16)
    sides = [latent @ torch.randn(16, WIDTH) / 4 + torch.randn(size, WIDTH) / 2 for _ in range(2)]
    towers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 128), nn.ReLU(), nn.Linear(128, DIM)) for _ in sides)
    loss, steps, everything = NORMALIZERS[name](size), SEEN // batch, torch.arange(size)
    optimiser = torch.optim.AdamW(towers.parameters(), lr=1e-3)

    def embedded(rows: Tensor) -> list[Tensor]:
        return [tower(side[rows]) for tower, side in zip(towers, sides, strict=True)]

    def pairs_of(rows: Tensor) -> losses.Pairs:
        images, texts = embedded(rows)
        return make_pairs(read_inputs(images, rows, ref_emb=texts, ref_labels=rows), distance=COSINE, two_way=True)

    for step in range(steps):
        if name == "FastCLIP":
            loss.gamma.set_progress(step=step, steps=steps, epoch=step * batch // size, epochs=SEEN / size)
        if step * batch % size == 0:
            order = torch.randperm(size)
        rows = order[step * batch % size :][:batch]
        images, texts = embedded(rows)
        optimiser.zero_grad()
        loss(images, rows, ref_emb=texts, ref_labels=rows, ids=rows, ref_ids=rows).backward()
        optimiser.step()
        if (step + 1) % (steps // 5) == 0:
            with torch.no_grad():
                exact = log_mean_exp(pairs_of(everything), TAU, relative=True)
                if name == "mini-batch":
                    parts = [pairs_of(rows) for rows in everything.split(batch)]
                    estimate = torch.cat([log_mean_exp(part, TAU, relative=True) for part in parts])
                else:  # nothing moves while gradients are disabled
                    estimate = loss.log_u[0] if name == "FastCLIP" else loss.alpha(pairs_of(everything))
                yield float((estimate - exact).square().mean())


SAMPLES, TEMPERATURE, STEPS, SECONDS = 200, 0.2, 2000, 3.0
CONVERGING: dict[str, Callable[[], Any]] = {  # of two fixed views a sample, each with a state of its own
    "exact gradient": lambda: losses.DCLLoss(TEMPERATURE),
    "SimCLR": lambda: losses.InfoNCELoss(TEMPERATURE),
    "DCL": lambda: losses.DCLLoss(TEMPERATURE),
    "SogCLR": lambda: losses.SogCLRLoss(2 * SAMPLES, TEMPERATURE, average="plain"),
    "EMC²": lambda: losses.EMC2Loss(2 * SAMPLES, TEMPERATURE, out_of_batch="reencode"),
    "negative cache": lambda: losses.NegativeCacheLoss(
        2 * SAMPLES, TEMPERATURE, out_of_batch="reencode", refresh=0.1, positive_in_denominator=False
    ),
}


def convergence(seed: int) -> Figures:
    """Return log10 of the exact loss's squared gradient norm after SGD with batches of 4 of 200 samples.

    By equal steps and by equal processor time. The exact loss is that of every view against the 398 of other samples.
    """
    figures = Figures()
    for by in ("steps", "seconds"):
        for name in CONVERGING:
            length, value, steps = converged(name, by, seed)
            figures |= {f"{name}, equal {by}": math.log10(length), f"{name}, equal {by}, loss": value}
            figures[f"{name}, equal {by}, steps"] = steps
        emc2 = figures[f"EMC², equal {by}"]
        figures |= {f"EMC² minus {name}, equal {by}": emc2 - figures[f"{name}, equal {by}"] for name in CONVERGING}
    return figures


def converged(name: str, by: str, seed: int) -> tuple[float, float, int]:
    torch.manual_seed(seed)
    samples = torch.randn(SAMPLES // 10, WIDTH).repeat(10, 1) + torch.randn(SAMPLES, WIDTH)
    views = (samples[:, None] + 0.7 * torch.randn(SAMPLES, 2, WIDTH)).flatten(0, 1)  # row: 2 · sample + view
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, DIM))
    loss, batch = CONVERGING[name](), SAMPLES if name == "exact gradient" else 4
    loss.reencode = lambda ids: normalize(model(views[ids]))  # with its graph, as in the authors' code
    scale = 1.0 if hasattr(loss, "num_samples") else TEMPERATURE  # all in units of similarity: one rate serves all
    optimiser, step, begun, share = torch.optim.SGD(model.parameters()), 0, time.process_time(), 0.0
    while share < 1:
        optimiser.param_groups[0]["lr"] = 0.05 * (1 + math.cos(math.pi * share))
        if step * batch % SAMPLES == 0:
            order = torch.randperm(SAMPLES)
        drawn = order[step * batch % SAMPLES :][:batch]
        ids = torch.cat([2 * drawn, 2 * drawn + 1])
        optimiser.zero_grad()
        torch.autograd.backward(scale * loss(model(views[ids]), drawn.repeat(2), ids=ids))
        optimiser.step()
        step += 1
        share = step / STEPS if by == "steps" else (time.process_time() - begun) / SECONDS
    pairs = make_pairs(read_inputs(model(views), torch.arange(len(views)) // 2), distance=COSINE)
    exact = TEMPERATURE * log_mean_exp(pairs, TEMPERATURE, relative=True).mean()
    gradients = torch.autograd.grad(exact, list(model.parameters()))
    return sum(float(each.square().sum()) for each in gradients), exact.item(), step


CLAIMS: dict[str, tuple[Callable[[int], Figures], int]] = {  # and of how many seeds
    "SOPRC, Prop. 1": (moving_average, 5),
    "SOPRC, Prop. 2": (sampling_rate, 5),
    "SOPRC, Fig. 1(c), Prop. 3": (interpolation_error, 5),
    "SOPRC, P2": (gradient_change, 5),
    "SOPRC, the paper's π": (gradient_share, 5),
    "SOPRC, Theorems 1 and 2": (generalization_gap, 5),
    "NeuCLIP, Fig. 2c": (normalizer_error, 4),
    "EMC², Fig. 7": (convergence, 4),
}


def texts_of(lines: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Return each claim's figures as text: the mean over seeds, and ± the half width of its 95 % interval."""
    texts = dict[str, dict[str, str]]()
    for claim in dict.fromkeys(line["claim"] for line in lines):
        runs = [line["figures"] for line in lines if line["claim"] == claim]
        for name in runs[0]:
            mean, half_width, _ = over_seeds(np.array([run[name] for run in runs]))
            texts.setdefault(claim, {})[name] = f"{mean:.3f} ± {half_width:.3f}"
    return texts


def tables_of(lines: list[dict[str, Any]]) -> str:
    tables = (
        f"## {claim}\n\n{markdown_table(['figure', 'mean'], list(texts.items()))}"
        for claim, texts in texts_of(lines).items()
    )
    return "\n\n".join(tables) + "\n"


def main() -> None:
    torch.set_num_threads(1)
    tried, file = parser_of(__doc__, only=list(CLAIMS)).parse_args().only, FOLDER / "claims.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    lines = [line for line in lines if line["claim"] not in tried]
    about = {
        "commit": package_commit(),
        "device": f"{platform.machine()} CPU",
        "torch": torch.__version__,
        "threads": 1,
    }
    for claim in tried:
        measure, seeds = CLAIMS[claim]
        for seed in range(seeds):
            (_, processor), figures = timed(measure, seed)
            rounded = {name: float(f"{figure:.5g}") for name, figure in figures.items()}
            lines.append({"claim": claim, "seed": seed, "figures": rounded, "processor_seconds": processor, **about})
            print(f"{claim}, seed {seed}: {processor:.0f} s", flush=True)
    lines.sort(key=lambda line: list(CLAIMS).index(line["claim"]))
    write_text(file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    write_text(FOLDER / "claims.txt", tables_of(lines))


if __name__ == "__main__":
    main()
