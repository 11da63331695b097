"""The commands as typed: what they print, write and exit with."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from testing.shell import Shell
from testing.tiny import tiny_config
from testing.yaml_text import read_yaml

from aurank.cli.drawing import draw_warnings
from aurank.config import shipped_configs
from aurank.errors import AurankWarning


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("configs") / "tiny.yaml"
    path.write_text(json.dumps(tiny_config()), encoding="utf-8")
    return path


def one_line(complaint: str) -> str:
    assert complaint.startswith("error: ")
    assert complaint.count("\n") == 1, complaint
    return complaint


@pytest.mark.slow
def test_train_evaluate_and_embed_from_the_command_line(
    aurank: Shell, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "runs" / "tiny"  # by default
    code, output, _ = aurank("train", config, "train.steps=3")
    assert code == 0
    assert "mauprc" in output
    code, _, complaint = aurank("train", config, "train.steps=3")
    assert code == 2
    assert "add --resume" in one_line(complaint)
    metrics = json.loads((out / "report.json").read_text(encoding="utf-8"))["metrics"]

    code, output, _ = aurank("evaluate", "--model", f"aurank:{out}/best", "--out", tmp_path / "measured")
    assert code == 0
    report = json.loads((tmp_path / "measured" / "report.json").read_text(encoding="utf-8"))
    assert report["metrics"] == metrics
    assert (report["num_queries"], report["num_lone_queries"]) == (899, 0)
    kept = (out / "report.json").read_bytes()
    code, _, complaint = aurank("evaluate", "--model", f"aurank:{out}/best", "--out", out)
    assert (code, (out / "report.json").read_bytes()) == (2, kept)
    assert "holds a training run" in one_line(complaint)

    code, output, _ = aurank("embed", "--model", f"aurank:{out}/best", "--out", tmp_path / "test.npz")
    assert code == 0
    with np.load(tmp_path / "test.npz") as saved:
        assert set(saved) >= {"embeddings", "labels", "ids", "paths"}
        np.save(tmp_path / "rows.npy", saved["embeddings"])
        np.save(tmp_path / "labels.npy", saved["labels"])
    for source in (["embeddings:" + str(tmp_path / "test.npz")],
                   ["embeddings:" + str(tmp_path / "rows.npy"), "--labels", tmp_path / "labels.npy"]):  # fmt: skip
        command = ("evaluate", "--model", *source, "--out", tmp_path / "again", "--recall-at", "1,5", "--overwrite")
        code, _, _ = aurank(*command)
        assert code == 0
        again = json.loads((tmp_path / "again" / "report.json").read_text(encoding="utf-8"))["metrics"]
        assert again["mauprc"] == metrics["mauprc"]
        assert "recall@5" in again


@pytest.mark.slow
def test_another_data_set_can_be_measured(aurank: Shell, tiny_run: Path, tmp_path: Path) -> None:
    from PIL import Image

    for label in ("a", "b"):
        for number in range(3):
            path = tmp_path / "photos" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.random.default_rng(number).integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(path)
    model = ("--model", f"aurank:{tiny_run}/best", "--data", f"folder:{tmp_path / 'photos'}", "data.odd_classes=keep")
    code, _, complaint = aurank("evaluate", *model, "--out", tmp_path / "photos-report")
    assert code == 0, complaint
    report = json.loads((tmp_path / "photos-report" / "report.json").read_text(encoding="utf-8"))
    assert report["num_queries"] == 6


@pytest.mark.slow
def test_images_left_out_are_counted_and_named_in_what_is_printed(
    aurank: Shell, tiny_run: Path, tmp_path: Path
) -> None:
    from PIL import Image

    for number in range(12):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(path)
    common = ["--model", f"aurank:{tiny_run}/best", "--data", f"folder:{tmp_path / 'photos'}"]
    common += ["data.odd_classes=keep", "data.on_error=skip", "data.workers=2", "data.cache=0"]
    code, output, _ = aurank("evaluate", *common, "--out", tmp_path / "measured")
    assert code == 0
    assert "skipped" not in output
    for number in (0, 1, 5, 8, 10):
        (tmp_path / "photos" / "ab"[number % 2] / f"{number}.png").write_bytes(b"no image")
    code, output, _ = aurank("evaluate", *common, "--out", tmp_path / "measured")
    assert code == 0
    said = "skipped, unreadable: 5 of 12 images (a/0.png; a/10.png; a/8.png, and 2 more)\n"
    assert said in output
    assert "7 queries; 7 gallery rows" in output
    code, output, complaint = aurank("embed", *common, "--out", tmp_path / "rows.npz")
    assert code == 0
    assert said in complaint
    assert "7 embeddings of 8 dimensions" in output


def test_a_place_that_cannot_be_written_is_told_before_the_work(aurank: Shell, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    for command, out in (("embed", tmp_path), ("embed", tmp_path / "file" / "x.npz"), ("evaluate", tmp_path / "file"),
                         ("embed", tmp_path / "x.npy")):  # fmt: skip
        code, _, complaint = aurank(command, "--model", "aurank:none/best", "--out", out)
        assert code == 2
        assert "--out" in one_line(complaint)  # and not the checkpoint that there is none of
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.slow
def test_dry_run_prints_sizes_and_writes_nothing(
    aurank: Shell, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, output, _ = aurank("train", config, "--dry-run")
    assert code == 0
    assert all(word in output for word in ("train", "validation", "test", "parameters", "GiB", "loss"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("default:rho=5 ", "default:sampler.name=")
def test_warnings_of_aurank_are_notices(aurank: Shell, config: Path) -> None:
    loss = "loss={name: isogclr, params: {rho: 5, temperature: 0.3}}"
    code, _, said = aurank("train", config, "sampler.name=shuffled", loss, "--dry-run")
    assert code == 0, said
    assert [line[:36] for line in said.splitlines()] == [
        "sampler.name=shuffled leaves out the",
        "rho=5 is not below log(15) = 2.71, t",
    ]


def test_warnings_of_other_libraries_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="from elsewhere"), draw_warnings():
        warnings.warn("from elsewhere", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("rank", "said"), [("0", "of aurank\n"), ("1", "")])
def test_one_process_of_several_draws_a_warning(
    rank: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", rank)
    with warnings.catch_warnings(), draw_warnings():
        warnings.simplefilter("default")
        warnings.warn("of aurank", AurankWarning, stacklevel=1)
    assert capsys.readouterr().err == said


def test_config_prints_what_a_run_would_use(aurank: Shell, config: Path) -> None:
    code, output, _ = aurank("config", config, "optim.lr=0.5")
    assert code == 0
    assert read_yaml(output)["optim"]["lr"] == 0.5
    code, output, complaint = aurank("config", config, "optim.lrr=0.5", "loss.params.tua1=3")
    assert code == 2
    assert output == ""
    assert "optim.lrr" in complaint
    assert "did you mean" in complaint
    assert "loss.params.tua1" in complaint


def test_shipped_configs_are_listed_and_copied(aurank: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, output, _ = aurank("ls")
    assert code == 0
    assert all(name in output for name in shipped_configs())
    assert aurank("cp", "omniglot/soprc", "mine.yaml")[0] == 0
    assert (tmp_path / "mine.yaml").read_bytes() == shipped_configs()["omniglot/soprc"].read_bytes()
    for name, target, message in (
        ("omniglot/soprc", "mine.yaml", "exists already"),
        ("omniglot/sopcr", "other.yaml", "omniglot/soprc"),
        ("omniglot/soprc", "no/such/folder.yaml", "cannot write no"),
        ("omniglot/soprc", "/proc/mine.yaml", "cannot write /proc/mine.yaml"),
    ):
        code, _, complaint = aurank("cp", name, target)
        assert code == 2
        assert message in one_line(complaint)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "no-such.yaml"], "no-such.yaml"),
        (["evaluate", "--model", "resnet18", "--out", "x"], "expected aurank:DIR/best, embeddings:FILE"),
        (["evaluate", "--model", "aurank:none/best", "--out", "x"], "no checkpoint at none"),
        (["evaluate", "--model", "embeddings:none.npz", "--out", "x"], "no file none.npz"),
        (["evaluate", "--model", "embeddings:none.npz", "--out", "x", "optim.lr=1"], "optim.lr=1 has no use"),
        (["evaluate", "--model", "embeddings:none.npz", "--out", "x", "--data", "folder:a"], "folder:a has no use"),
        (["evaluate", "--model", "aurank:none/best", "--out", "x", "--labels", "a.npy"], "--labels a.npy has no use"),
        (["evaluate", "--model", "embeddings:none.npz", "--out", "x", "--recall-at", "one"], "whole numbers"),
        (["train", "omniglot/soprc", "data.root=nowhere", "--dry-run"], "omniglot"),
        (["doctor", "grocery/soprc", "data.root=nowhere"], "grocery"),
    ],
)
def test_a_mistake_ends_in_one_line_and_exit_code_2(
    aurank: Shell, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, complaint = aurank(*arguments)
    assert code == 2
    assert message in one_line(complaint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_doctor_reports_on_the_data_of_a_configuration(aurank: Shell, config: Path) -> None:
    code, output, _ = aurank("doctor", config)
    assert code == 0
    assert "1797 images, 10 classes, 899 test images, 10 test classes, 718 train images, 8 train classes" in output
    assert "warning: classes in both train and test: 8" in output
    assert "error" not in output


def test_what_has_no_labels_is_examined_without_and_told_where_to_be_measured(
    aurank: Shell, config: Path, tmp_path: Path
) -> None:
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 255, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    overrides = ["data.train_labels=image", "data.views=2", "sampler={name: shuffled, batch: 4}"]
    code, output, _ = aurank("doctor", config, "data.name=unlabelled", f"data.root={tmp_path / 'photos'}", *overrides)
    assert (code, output) == (0, "photos: 4 images, 4 train images\n  nothing wrong was found\n")

    model = ("--model", "timm:test_resnet,pretrained=false", "--data", f"unlabelled:{tmp_path / 'photos'}")
    for command in ("embed", "evaluate", "probe"):
        code, _, complaint = aurank(command, *model, "--out", tmp_path / "x.npz")
        assert code == 2
        assert "aurank embed takes its images with --split train, but measuring" in one_line(complaint)
        assert "needs images with labels, such as --data folder:PATH" in complaint
    assert aurank("embed", *model, "--out", tmp_path / "x.npz", "--split", "train")[0] == 0
    code, _, complaint = aurank("evaluate", *model, "--out", tmp_path / "measured", "--split", "train")
    assert code == 2
    assert "no two of the 4 images of photos have one label: measuring needs images with labels" in one_line(complaint)


def test_doctor_ends_with_exit_code_2_where_images_are_broken(aurank: Shell, config: Path, tmp_path: Path) -> None:
    for name in ("train/a/1.png", "test/b/1.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"no image")
    code, output, _ = aurank(
        "doctor", config, "data.name=folder", f"data.root={tmp_path}", "data.validation_fraction=0"
    )
    assert code == 2
    assert "error: unreadable images: 2" in output


def test_the_version_is_printed(aurank: Shell) -> None:
    from aurank import __version__

    assert aurank("--version") == (0, f"aurank {__version__}\n", "")


def test_a_misspelt_choice_of_a_loss_is_met_with_the_nearest(aurank: Shell, config: Path) -> None:
    for key, value, meant in (("prior", "scald", "scaled"), ("interpolation", "quantiles", "quantile")):
        code, _, complaint = aurank("config", config, f"loss.params.{key}={value}")
        assert code == 2
        assert f"loss.params.{key}" in one_line(complaint)
        assert f"did you mean '{meant}'?" in complaint


@pytest.mark.slow
def test_help_and_bad_options_come_from_the_parser(aurank: Shell) -> None:
    code, _, complaint = aurank("train", "--no-such")
    assert code == 2
    assert "Traceback" not in complaint
    done = subprocess.run([sys.executable, "-m", "aurank", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("train", "evaluate", "embed", "demo", "config", "ls", "cp", "doctor"))


@pytest.mark.slow
def test_train_and_evaluate_put_baselines_beside_the_model(aurank: Shell, config: Path, tmp_path: Path) -> None:
    code, output, _ = aurank("train", config, "train.steps=3", "--out", tmp_path / "run", "--baselines")
    assert code == 0
    best = f"aurank:{tmp_path / 'run' / 'best'}"
    assert aurank("evaluate", "--model", best, "--out", tmp_path / "report", "--baselines")[0] == 0
    first, second = (json.loads((tmp_path / one / "baselines.json").read_text()) for one in ("run", "report"))
    assert first == second
    assert list(first) == ["model", "untrained", "raw_pixels", "chance"]
    assert f"{first['raw_pixels']['mauprc']:.4f}" in output
