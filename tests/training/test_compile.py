"""train.compile, and what goes with it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from aurank.errors import UserError
from aurank.models.encoder import EachPart


@pytest.mark.slow
def test_compiled_cached_accumulated_channels_last_and_in_half_precision_it_is_the_same_gradient() -> None:
    script = Path(__file__).parents[1] / "testing" / "compiled_training.py"
    paths = os.pathsep.join(str(path) for path in (script.parents[2], script.parents[1]))
    environment = {**os.environ, "PYTHONPATH": paths}
    run = subprocess.run([sys.executable, script, "aot_eager"], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
    away = json.loads(run.stdout)
    assert away["all in float32"] < 1e-5
    assert away["all in bfloat16"] < 2 * away["bfloat16 alone"] < 0.04


def test_a_network_that_cannot_be_compiled_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> object:
        raise torch._dynamo.exc.TorchDynamoException("no\nsuch thing")

    monkeypatch.setattr(torch, "compile", lambda work: fails)
    with pytest.raises(UserError, match=r"train\.compile=true: .* \(no\); .*set train\.compile=false"):
        EachPart(torch.nn.Linear(2, 2), compiled=True)(torch.ones(1, 2))
