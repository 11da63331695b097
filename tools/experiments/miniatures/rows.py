"""Each claim of the paper, what was measured, and whether it came out again: decided by rule, from the numbers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Literal

from miniatures.methods import BATCHES, TABLE_1, TABLE_2
from miniatures.results import Mean, Results

Verdict = Literal["yes", "partly", "no", "open"]
OPEN: Verdict = "open"
Found = Mapping[str, Any]


@dataclass(frozen=True)
class Claim:
    """A row of the table."""

    place: str
    said: str
    measured: str
    verdict: Verdict


def judged(*parts: bool) -> Verdict:
    """yes, no, or partly."""
    return "yes" if all(parts) else "partly" if any(parts) else "no"


def clear(gain: Mean) -> bool:
    """Whether a gain is above 0 by more than its interval; for one seed, whether it is above 0."""
    return gain.value > (gain.half_width or 0)


def bias_claims(found: Found) -> Iterator[Claim]:
    """Proposition 2, Remark 2 and the figures on drawn scores; `found` is bias.json."""
    texts, steady, falling = [], [], []
    for name, each in found["estimators"].items():
        mean = {kind: [at[kind]["mean"] for at in each["rates"].values()] for kind in ("ap", "soprc")}
        drift = {kind: max(values) - min(values) for kind, values in mean.items()}
        steady.append(drift["soprc"] < 0.1 * drift["ap"])
        falling.append(mean["ap"] == sorted(mean["ap"], reverse=True))
        texts.append(
            f"{name}, truth {each['truth']['auprc_loss']:.3f}: AP {max(mean['ap']):.3f} to {min(mean['ap']):.3f}, "
            f"SOPRC {min(mean['soprc']):.3f} to {max(mean['soprc']):.3f}"
        )
    finer = [at["soprc"]["mean"] for at in found["finer"]["rates"].values()]
    with_what = f"{found['finer']['num_quantiles']:,} quantiles and batches of {found['finer']['batch']:,}"
    texts.append(f"binormal with {with_what}: SOPRC {min(finer):.3f} to {max(finer):.3f}")
    said = "SOPRC's estimate does not depend on the share π0 of positives in a batch, that of AP does"
    yield Claim("Prop. 2, Fig. 1 and 4", said, "; ".join(texts), judged(*steady))
    wrong: Verdict = "no" if all(falling) else "open"
    text = "the opposite: in each distribution it falls as π0 rises (the words fit AP itself, not the loss 1 − AP)"
    yield Claim("Remark 2", "the AP loss is larger where π0 is above the prior", text, wrong)
    errors = found["interpolation"]["binormal"]["quantile"]
    text = "binormal, in standard deviations of the scores: " + ", ".join(
        f"{errors[count]['bias']:.3f} from {count} scores" for count in ("3", "10", "100")
    )
    small = [errors[count]["bias"] < 0.05 for count in ("3", "100")]
    yield Claim("Fig. 1(c), 5", "the expected error of interpolation can be ignored", text, judged(*small))


def proposition_claims(found: Found) -> Iterator[Claim]:
    """Propositions 1 and 3; `found` is claims.json."""
    first = found["proposition_1"]
    arange, copied = first["starts"]["arange"], first["starts"]["copied"]
    worst = max(each["mean_error"] for each in arange.values())
    text = f"largest difference over 100 quantiles {worst:.1f} standard errors, β = {', '.join(arange)}"
    yield Claim("Prop. 1, mean", "E v = E φ + (1 − β)^T (v₁ − E φ)", text, judged(worst < 4))
    ratios = ", ".join(f"{each['variance']:.2f}" for each in arange.values())
    also = ", ".join(f"{each['variance']:,.2f}" for each in copied.values())
    text = f"divided by the bound: {ratios} for v₁ fixed; {also} where v₁ is the first batch, which varies itself"
    bounded = [max(each["variance"] for each in start.values()) < 1.05 for start in (arange, copied)]
    yield Claim("Prop. 1, variance", "Var v ≤ Var φ · β / (2 − β)", text, judged(*bounded))
    third = found["proposition_3"]
    within = all(error <= bound for error, bound in zip(third["errors"]["linear"], third["bound"], strict=True))
    slope = third["slopes"]
    text = (
        f"slope {slope['linear']:.2f} for straight lines through (i/n, p(i/n)), never above the bound; of what the "
        f"loss does: quantile {slope['quantile']:.2f}, paper {slope['paper']:.2f}"
    )
    straight = within and slope["linear"] < -1.8
    said = "the error of interpolation falls as 1/n²: slope −2, at most ‖p''‖/8n²"
    yield Claim("Prop. 3", said, text, judged(straight, slope["paper"] < -1.8))


def start_claims(found: Found) -> Iterator[Claim]:
    """Where v starts; `found` is claims.json."""
    starts = found["starts"]
    last = str(starts["steps"])

    def table(value: Callable[[Found], float], digits: int) -> str:
        return "; ".join(
            f"{start} " + ", ".join(f"{fmean(value(run) for run in runs):.{digits}f}" for runs in by_beta.values())
            for start, by_beta in starts["runs"].items()
        )

    def distance(run: Found) -> float:
        return float(run["distance"][last])

    runs = starts["runs"]
    closer = fmean(map(distance, runs["copied"]["0.001"])) < 0.5 * fmean(map(distance, runs["arange"]["0.001"]))
    text = f"mean |v − scores| after {last} steps at β = {', '.join(runs['copied'])}: {table(distance, 3)} (digits)"
    yield Claim("Remark 1", "v is near the scores if v₁ = E φ, or after many steps", text, judged(closer))
    gains = [
        Mean.of(a["mauprc"] - b["mauprc"] for a, b in zip(runs["copied"][beta], runs["arange"][beta], strict=True))
        for beta in runs["copied"]
    ]
    text = f"test mAUPRC at the same β: {table(lambda run: float(run['mauprc']), 4)}; by seed, copied is better by "
    text += ", ".join(gain.text() for gain in gains)
    yield Claim("(implied)", "so it trains better than v from 0, 0.01 … 0.99", text, judged(*map(clear, gains)))


def stability_claims(found: Found) -> Iterator[Claim]:
    """P2; `found` is claims.json."""
    change = found["stability"]["batches"]

    def one(name: str, kind: str) -> str:
        return ", ".join(f"{each[name][kind]:.2f}" for each in change.values())

    names = {
        "SmoothAP": "smooth_ap",
        "FastAP": "fast_ap",
        "BlackBox": "blackbox_ap",
        "AP of Eq. 5": "ap",
        "SOPRC without v": "soprc_without_v",
        "SOPRC": "soprc",
    }
    text = f"relative change at B = {', '.join(change)}: " + "; ".join(
        f"{title} {one(name, 'positive')}" for title, name in names.items()
    )
    others = ("smooth_ap", "fast_ap", "blackbox_ap", "ap")
    least = [all(each["soprc"]["positive"] < each[name]["positive"] for each in change.values()) for name in others]
    said = "another positive changes the gradient less in SOPRC than in AP losses"
    yield Claim("P2", said, text, judged(*least))
    text = "for another negative: " + "; ".join(f"{title} {one(name, 'negative')}" for title, name in names.items())
    more = [each[name]["positive"] > each[name]["negative"] for each in change.values() for name in names.values()]
    yield Claim("P2", "a positive matters more than a negative", text, judged(*more))
    without = fmean(each["soprc_without_v"]["positive"] for each in change.values())
    ap = fmean(each["ap"]["positive"] for each in change.values())
    small = fmean(each["soprc_beta_0.001"]["positive"] for each in change.values())
    with_v = fmean(each["soprc"]["positive"] for each in change.values())
    text = (
        f"mean over B for another positive: AP of Eq. 5 {ap:.2f}, SOPRC without v {without:.2f}, with v {with_v:.2f}, "
        f"at β = 0.001 {small:.2f}"
    )
    share = without - with_v > 0.5 * (ap - with_v)
    yield Claim("P2", "v is what makes it stable", text, judged(with_v < without, share))


def trained_claims(results: Results, *, seeds: Sequence[int], steps: int) -> Iterator[Claim]:
    """Tables 1 and 2 and the size of the batch, of results.jsonl; "open" until the runs are there.

    Methods are compared seed by seed, over the seeds that both have.
    """

    def scores(names: Sequence[str]) -> dict[str, dict[int, float]] | None:
        lines = {name: results.chosen(name, seeds=seeds, steps=steps) for name in names}
        found = {name: {line["seed"]: line["mauprc"] for line in each} for name, each in lines.items()}
        return found if all(found.values()) else None

    def gain(after: Mapping[int, float], before: Mapping[int, float]) -> Mean:
        return Mean.of(after[seed] - before[seed] for seed in after if seed in before)

    ten = scores([name for name in TABLE_1 if name != "recall_at_k"])
    rows = scores([name for name in TABLE_2 if name != "ablation_2_frequency"])
    sizes = scores(list(BATCHES))

    text, verdict = "not all of the ten have run", OPEN
    if ten is not None:
        order = sorted(ten, key=lambda name: fmean(ten[name].values()), reverse=True)
        text = "the first three: "
        text += ", ".join(f"{TABLE_1[name].title} {Mean.of(ten[name].values()).text()}" for name in order[:3])
        second = gain(ten["soprc"], ten[next(name for name in order if name != "soprc")])
        text += f"; SOPRC less the best other {second.text()}, {second.count} seed(s)"
        verdict = judged(order[0] == "soprc", clear(second))
    yield Claim("Table 1", "SOPRC has the highest mAUPRC of the ten", text, verdict)

    text, verdict = "not all of the rows have run", OPEN
    if rows is not None:
        steps_up = [gain(after, before) for before, after in pairwise(rows.values())]
        named = zip(("prior", "v", "semi-variance", "Adam"), steps_up, strict=True)
        text = "in points: " + ", ".join(f"{name} {each.times(100).text(2)}" for name, each in named)
        text += f", {min(each.count for each in steps_up)} seed(s) or more"
        largest = steps_up[0].value == max(each.value for each in steps_up[:3])
        verdict = judged(largest, *map(clear, steps_up[:3]))
    said = "gains in points of mAUPRC on iNaturalist: prior 1.26, v 0.15, semi-variance 0.17, Adam 0.04"
    yield Claim("Table 2", said, text, verdict)

    text, verdict = "not all of the sizes have run", OPEN
    if sizes is not None:
        means = [(name, Mean.of(each.values())) for name, each in sizes.items()]
        text = "; ".join(f"{BATCHES[name].title} {mean.text()}" for name, mean in means)
        chains = (("batch_56", "soprc", "batch_224"), ("batch_56_images", "soprc", "batch_224_images"))
        verdict = judged(*(clear(gain(sizes[b], sizes[a])) for chain in chains for a, b in pairwise(chain)))
    yield Claim("Fig. 2", "a larger batch trains better", text, verdict)
