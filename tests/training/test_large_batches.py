"""train.micro_batch and memory in the loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from testing.photos import broken_photos
from testing.runs import EXACT, weights
from testing.tiny import tiny_config

import aurank
from aurank.training import read_config, rehearse


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [{"miner": {"name": "multi_similarity"}, "memory": {"size": 40, "start_at": 1}}, {"loss": {"name": "soprc"}}],
    ids=str,
)
def test_a_run_with_cached_gradients_is_the_plain_run(tmp_path: Path, more: dict[str, Any]) -> None:
    train = {"steps": 4, "accumulate": 2, "ema": 0.5, "validate_every": 4}
    for name, micro_batch in (("plain", None), ("cached", 5)):
        config = tiny_config(**EXACT, train={**train, "micro_batch": micro_batch})
        aurank.train({**config, "loss": {"name": "smooth_ap", "params": {"temperature": 0.1}}, **more}, tmp_path / name)
    plain, cached = weights(tmp_path / "plain"), weights(tmp_path / "cached")
    for name, value in plain.items():
        torch.testing.assert_close(cached[name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no query of the batch")
def test_cached_gradients_in_half_precision_and_with_skipped_images_learn(tmp_path: Path) -> None:
    config = broken_photos(tmp_path / "photos")
    config["sampler"]["batch"] = 8
    config["model"] |= {"backbone": "test_vit", "params": {"img_size": 16}}
    config["train"] |= {"micro_batch": 2, "mixed_precision": "bf16"}
    result = aurank.train(config, tmp_path / "out")
    assert result.skipped["train"] == 8
    assert result.steps == 12


@pytest.mark.slow
def test_a_rehearsal_counts_the_activations_of_one_chunk() -> None:
    plain, cached, small = (
        rehearse(read_config(tiny_config(sampler={"batch": batch}, train={"micro_batch": micro_batch})))
        for batch, micro_batch in ((32, None), (32, 8), (8, None))
    )
    # Beside the weights, which a backward pass needs as well.
    used = [part.memory["activations"] - part.memory["weights"] for part in (plain, cached, small)]
    assert used[0] > 3 * used[1]
    assert used[1] == pytest.approx(used[2], rel=0.2)  # the loss counts as well
    assert cached.loss == pytest.approx(plain.loss, rel=0.5)
