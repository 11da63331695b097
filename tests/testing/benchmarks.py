"""Lines of a benchmark, made up."""

from typing import Any

CLASSES = {"fold 1 of 2": [4, 6], "fold 2 of 2": [10]}
GAINS = {"A": 0.0, "B & C": 0.2, "late": 0.1}


def made_up(seeds: int = 3) -> list[dict[str, Any]]:
    """Lines of three methods in two folds: B is 0.2 above A; the last seed of "late" diverged in one fold."""
    lines: list[dict[str, Any]] = [
        {
            "kind": "benchmark",
            "config": "c",
            "overrides": [],
            "methods": {name: [] for name in GAINS},
            "settings": {"one": [], "two": []},
            "without_training": ["", "center"],
            "reference": "A",
            "trials": 2,
            "choose_by": {"folds": 2, "by": "class"},
            "seeds": seeds,
            "units": 99,
        }
    ]
    cost = {"seconds": 1, "processor_seconds": 1, "commit": "c0", "torch": "2", "device": "x", "threads": 1}
    for split, queries in CLASSES.items():
        lines.append({"kind": "split", "split": split, "classes": ["x", "y"][: len(queries)], "queries": queries})
        for steps in ("", "center"):
            line = {"kind": "untrained", "method": steps, "setting": "", "split": split, "seed": 0, **cost}
            lines.append(line | {"recall@1": 0.9, "ap_by_class": [0.4] * len(queries)})
        for name, gain in GAINS.items():
            about: dict[str, Any] = {"method": name, "setting": "one", "split": split, **cost}
            rate = 0.001 if split.startswith("fold 1") else 0.03
            at_end = [] if rate < 0.01 else ["optim.lr"]
            chosen = [f"optim.lr={rate}", "loss.params.k=[1]"]
            lines.append({"kind": "choice", **about, "chosen": chosen, "at_end": at_end})
            for seed in range(seeds):
                line = {"kind": "run", **about, "seed": seed}
                if (name, seed, split) == ("late", seeds - 1, "fold 2 of 2"):
                    lines.append(line | {"error": "the loss is nan"})
                    continue
                ap = [round(0.3 + gain + 0.01 * seed + 0.05 * place, 4) for place in range(len(queries))]
                lines.append(line | {"recall@1": 0.5 + gain, "ap_by_class": ap})
    return lines
