"""New queries on an old gallery: fine-tuned networks beside the published one, on the Grocery Store Dataset.

    python tools/upgrade.py tf_efficientnet_lite0.safetensors --seeds 0 1 2 --work runs/upgrade

The old model is the published network at 128 pixels, the new one `grocery/finetuned` with SupCon. Measured are old
queries on the old gallery, new on new, new on the old gallery behind the map of `aurank align`, and, of networks that
are trained with `compatible` beside SupCon, new on new and new on the old gallery as it is. Six trainings of five
minutes of one core are kept in --work. Written is docs/benchmark/grocery_upgrade.jsonl, as a benchmark's lines.
"""

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch

import aurank
from aurank.commands import RunOptions, align, embed_to_folder
from aurank.commands.benchmarks.benchmark import _tested, package_commit
from aurank.commands.galleries.align import mapped_rows
from aurank.embedding import ImageSelection
from aurank.embedding.embedded import Embedded
from aurank.evaluation import Report
from aurank.files import write_text

LINES = Path(__file__).resolve().parents[1] / "docs" / "benchmark" / "grocery_upgrade.jsonl"
SUP_CON = "{name: sup_con, params: {temperature: 0.1}}"
OLD, NEW, MAPPED = "old on old", "new on new", "new on old, mapped"
COMPATIBLE, BESIDE = "compatible, new on new", "compatible, new on old"


def embedded(model: str, file: Path, data: Path) -> Path:
    if not file.exists():
        embed_to_folder(model, ImageSelection(f"grocery:{data}", split="all"), out=file, running=RunOptions())
    return file


def network(weights: Path, loss: str, out: Path, seed: int, *overrides: str) -> str:
    if not (out / "report.json").exists():
        given = [
            f"seed={seed}",
            f"model.weights={weights}",
            "model.dim=1280",
            "model.head_start=identity",
            f"loss={loss}",
        ]
        aurank.train("grocery/finetuned", out, overrides=[*given, *overrides], resume=out.exists())
    return f"aurank:{out / 'best'}"


def measured(queries: Path, gallery: Path, map_file: Path | None = None) -> Report:
    rows = Embedded.load(queries)
    rows = rows.select(rows.splits == "test")
    of_gallery = mapped_rows(gallery, map_file, rows.paths.tolist())[1]
    sides: dict[str, Any] = {"ids": rows.ids, "gallery_ids": rows.ids, "recall_at": (1, 10)}
    report = aurank.evaluate(rows.embeddings, rows.labels, of_gallery, rows.labels, **sides)
    assert rows.classes is not None
    return report.named(rows.paths, rows.classes[rows.labels])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"), help="the folder with the archive")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path("runs/upgrade"))
    options = parser.parse_args()
    work, weights = options.work, options.weights
    published = f"timm:tf_efficientnet_lite0,weights={weights},input_size=128"
    old = embedded(published, work / "old.npz", options.data)
    compatible = f"[{SUP_CON}, {{name: compatible, params: {{old: {old}}}}}]"
    cells = [(OLD, "untrained", 0, measured(old, old))]
    for seed in options.seeds:
        model = network(weights, SUP_CON, work / f"new{seed}", seed)
        new = embedded(model, work / f"new{seed}.npz", options.data)
        map_file = work / f"map{seed}.safetensors"
        print(seed, align(old, new, out=map_file))
        model = network(weights, compatible, work / f"compatible{seed}", seed, "model.discard_head=false")
        beside = embedded(model, work / f"compatible{seed}.npz", options.data)
        reports = {NEW: measured(new, new), MAPPED: measured(new, old, map_file)}
        reports |= {COMPATIBLE: measured(beside, beside), BESIDE: measured(beside, old)}
        cells += [(method, "run", seed, report) for method, report in reports.items()]
    about = {"kind": "benchmark", "config": "grocery/finetuned", "settings": {"": []}, "without_training": [OLD]}
    about |= {"methods": {method: [] for method in (NEW, MAPPED, COMPATIBLE, BESIDE)}}
    about |= {"seeds": len(options.seeds), "splits": "published", "reference": NEW, "units": len(cells)}
    lines: list[dict[str, Any]] = [about]
    for method, kind, seed, report in cells:
        line = {"kind": kind, "method": method, "setting": "", "split": "published", "seed": seed, "chosen": []}
        tested = _tested(report)
        split = {"kind": "split", "split": "published", **{name: tested.pop(name) for name in ("classes", "queries")}}
        lines += [split] if len(lines) == 1 else []
        how = {"device": f"{platform.machine()} CPU", "torch": torch.__version__, "commit": package_commit()}
        lines.append({**line, **tested, **how})
        print(f"{method:<24} seed {seed}  mAUPRC {report.mauprc:.4f}  Recall@1 {report.recall[1]:.4f}")
    write_text(LINES, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


if __name__ == "__main__":
    main()
