"""Post-processing and codes on real images: the tables of docs/results.md, of a pretrained network of timm.

python tools/experiments/postprocessing.py --weights FILE --data FOLDER --out runs/postprocessing
python tools/experiments/postprocessing.py --memory 5000 10000 20000 --out runs/postprocessing

FILE is tf_efficientnet_lite0.safetensors, FOLDER holds grocery_128.zip and omniglot_full.zip. No step is tuned: the
parameters are the usual ones, and what learns is fitted on the training classes, none of which is tested. Nothing is
drawn at random but the rows of --memory (seed 0).
"""

import argparse
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import aurank
from aurank.commands import RunOptions, embed_model
from aurank.embedding import ImageSelection
from aurank.embedding.embed import Embedded
from aurank.evaluation import Codes, PostProcessing, RetrievalProblem
from aurank.reporting import draw_codes

sys.path.append(str(Path(__file__).parents[1]))
from measuring import forget_peak, resident_megabytes, seconds

PIXELS = {"grocery": 128, "omniglot": 64}
STEPS = (
    "center",
    "whiten:dim=256",
    "query_expansion",
    "database_augmentation",
    "k_reciprocal",
    "center, query_expansion, k_reciprocal",
    "whiten:dim=256, database_augmentation, query_expansion, k_reciprocal",
)
TURNED = "whiten:dim=256,shrinkage=1"  # principal axes, nothing stretched: the first numbers are the principal ones
CODES = Codes(dims=(32, 64, 128, 256), precisions=("float32", "float16", "int8", "binary"), rescore=100)


def selection(name: str, data: Path, split: str) -> ImageSelection:
    """Return the images of a split of a data set."""
    if name == "omniglot":
        return ImageSelection(f"omniglot:{data}", split=split)
    lists = {one: f"grocery/derived_disjoint_{one}.txt" for one in ("train", "test")}
    params = {**lists, "images": "grocery/images", "complete": "false"}
    overrides = [f"data.params.{key}={value}" for key, value in params.items()]
    return ImageSelection(f"sop:{data / 'grocery_128.zip'}", split=split, overrides=overrides)


def embedded(name: str, split: str, given: argparse.Namespace) -> Embedded:
    """Return the embeddings of a split, made once and kept in --out."""
    path = given.out / f"{name}_{split}.npz"
    if not path.is_file():
        model = f"timm:tf_efficientnet_lite0,weights={given.weights},input_size={PIXELS[name]}"
        running = RunOptions(cache=given.out / "cache", device="cpu")
        embed_model(model, selection(name, given.data, split), running=running).save(path)
    return Embedded.load(path)


def measured(test: Embedded, train: Embedded) -> Iterator[str]:
    """Yield rows of the table of steps."""
    plain = test.evaluate(recall_at=(1, 10))
    yield f"| plain | {_shown(plain)} | | no |"
    for text in STEPS:
        steps = PostProcessing.parse(text).fit(train.embeddings)
        report = test.evaluate(postprocess=steps, recall_at=(1, 10))
        change = aurank.compare(plain, report)
        interval = f"{change.difference:+.3f} [{change.interval[0]:+.3f}, {change.interval[1]:+.3f}]"
        yield f"| `{text}` | {_shown(report)} | {interval} | {'yes' if steps.transductive else 'no'} |"


def _shown(report: aurank.Report) -> str:
    return " | ".join(f"{report.metrics[name]:.3f}" for name in ("mauprc", "recall@1", "recall@10"))


def coded(test: Embedded, train: Embedded, picture: Path) -> Iterator[str]:
    """Yield rows of the table of codes, and draw them."""
    steps = PostProcessing.parse(TURNED).fit(train.embeddings)
    report = test.evaluate(postprocess=steps, codes=CODES, recall_at=(1,))
    assert report.codes is not None
    picture.write_bytes(draw_codes(report.codes))
    for code in report.codes:
        if code["rescored"] is None:
            again = [one for one in report.codes if one["rescored"] and one["bytes"] == code["bytes"]]
            again = [one for one in again if (one["dim"], one["precision"]) == (code["dim"], code["precision"])]
            cells = [f"{one['metrics'][name]:.3f}" for one in (code, *again) for name in ("mauprc", "recall@1")]
            cells += ["", ""] * (1 - len(again))
            yield f"| {code['dim']} | {code['precision']} | {code['bytes']:,} | {' | '.join(cells)} |"


def remembered(rows: int) -> None:
    """Print what re-ranking so many random rows takes beyond what is there before, of which each 10 are one class."""
    labels = np.arange(rows) // 10
    random = np.random.default_rng(0)
    centres = random.normal(size=(rows // 10 + 1, 128)).astype(np.float32)
    problem = RetrievalProblem(centres[labels] + random.normal(size=(rows, 128)).astype(np.float32), labels)
    plain = aurank.evaluation.positive_ranks(problem.embeddings, labels)  # compiled code is made here
    steps = PostProcessing.parse("k_reciprocal")
    forget_peak()
    before = resident_megabytes("VmRSS")
    took = seconds(lambda: steps.apply(problem).finish(plain))
    used = resident_megabytes("VmHWM") - before
    print(f"| {rows:,} | {took:.0f} | {used:,.0f} | {rows * rows * 4 / 2**20:,.0f} |", flush=True)


def main() -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="tf_efficientnet_lite0 as safetensors, under timm's names")
    parser.add_argument("--data", type=Path, help="folder of the two archives")
    parser.add_argument("--only", choices=PIXELS, help="one data set")
    parser.add_argument("--memory", type=int, nargs="+", help="re-rank so many random rows instead")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.memory:
        print("| rows | seconds | MB | MB of one float32 matrix of all scores |\n|---|---|---|---|", flush=True)
        for rows in given.memory:  # a process each: what one took is not counted for the next
            process = multiprocessing.get_context("spawn").Process(target=remembered, args=(rows,))
            process.start()
            process.join()
        return
    for name in [given.only] if given.only else PIXELS:
        test, train = (embedded(name, split, given) for split in ("test", "train"))
        print(
            f"\n| {name} | mAUPRC | Recall@1 | Recall@10 | change of mAUPRC | transductive |\n|---|---|---|---|---|---|"
        )
        for row in measured(test, train):
            print(row, flush=True)
        print("\n| dim | precision | bytes | mAUPRC | Recall@1 | rescored: mAUPRC | Recall@1 |\n" + "|---" * 7 + "|")
        for row in coded(test, train, given.out / f"codes_{name}.png"):
            print(row, flush=True)


if __name__ == "__main__":
    main()
