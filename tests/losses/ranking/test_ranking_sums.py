"""The ranking sums: blocks give what the definition gives, in little memory; compilers see a graph."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from testing.cases import compare, sides, sums_and_gradients
from torch.utils._python_dispatch import TorchDispatchMode

from aurank.losses.ranking import ranking_sums as module
from aurank.losses.ranking.ranking_sums import VALUES, gradient_operator, ranking_sums, sum_operator

EACH = pytest.mark.parametrize("surrogate", VALUES)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@EACH
@DTYPES
@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.01])
def test_sums_and_gradients_are_those_of_the_definition(surrogate: str, dtype: torch.dtype, temperature: float) -> None:
    for shape in ((5, 7, 60), (3, 40, 400), (1, 1, 1)):
        compare(*sides(*shape, dtype=dtype), surrogate=surrogate, temperature=temperature)


@EACH
def test_any_size_of_block_gives_the_same(surrogate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = sides(7, 5, 30, dtype=torch.float64)
    for block in (8, 8 * 30 * 2, 8 * 30 * 5 * 3):  # less than one score's, two scores', three queries' others
        monkeypatch.setattr(module, "BLOCK_BYTES", block)
        compare(*given, surrogate=surrogate, temperature=0.1)


@EACH
@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_nothing_to_rank_gives_zeros(surrogate: str, shape: tuple[int, int, int]) -> None:
    compare(*sides(*shape, dtype=torch.float32), surrogate=surrogate, temperature=0.1)


@pytest.mark.slow  # imports torch's compiler
@pytest.mark.parametrize(
    ("surrogate", "width", "strided"),
    [("sigmoid", 3, True), ("huber", 3, False), ("huber", 96, True), ("tanh", 3, False)],
)
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # opcheck's own copies are no leaves
def test_the_operators_are_what_they_tell_compilers(surrogate: str, width: int, strided: bool) -> None:
    given = sides(2, width, 9, dtype=torch.float64)
    gradient, scores, others = (each.T.contiguous().T for each in given) if strided else given
    torch.library.opcheck(gradient_operator, (gradient, scores, others, surrogate, 0.1, ()))
    leaves = (scores.requires_grad_(), others.requires_grad_())
    torch.library.opcheck(sum_operator, (*leaves, surrogate, 0.1, ()))


@EACH
def test_gradient_and_second_derivative_are_those_of_finite_differences(surrogate: str) -> None:
    random = torch.Generator().manual_seed(0)
    scores = torch.rand(3, 4, generator=random, dtype=torch.float64).requires_grad_()
    others = torch.rand(3, 9, generator=random, dtype=torch.float64).requires_grad_()

    def sums(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return ranking_sums(left, right, surrogate=surrogate, temperature=0.3)

    assert torch.autograd.gradcheck(sums, (scores, others))
    assert torch.autograd.gradgradcheck(sums, (scores, others))


class Largest(TorchDispatchMode):
    """Notes the bytes of the largest tensor that an operator returns."""

    bytes = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):  # type: ignore[no-untyped-def]
        found = function(*arguments, **(named or {}))
        for each in found if isinstance(found, tuple) else (found,):
            if isinstance(each, torch.Tensor):
                self.bytes = max(self.bytes, each.untyped_storage().nbytes())
        return found


@pytest.mark.parametrize("surrogate", ["huber", "sigmoid"])
@pytest.mark.parametrize(("queries", "width", "references"), [(10, 300, 1000), (1, 2000, 2000), (75, 4, 8000)])
def test_no_tensor_is_larger_than_a_block_or_the_similarities(
    surrogate: str, queries: int, width: int, references: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradient, scores, others = sides(queries, width, references, dtype=torch.float32)
    monkeypatch.setattr(module, "BLOCK_BYTES", module.BLOCK_BYTES // 8)
    given = {"surrogate": surrogate, "temperature": 0.1}
    with Largest() as largest:
        sums_and_gradients(gradient, scores, others, **given)
    assert queries * width * references * 4 > 3 * largest.bytes
    assert largest.bytes <= max(2**19, others.untyped_storage().nbytes())


@pytest.mark.slow
def test_losses_compile_to_one_graph_with_the_same_values_gradients_and_state() -> None:
    # in a process of its own: here, every function checks the types of its arguments, which is no part of a graph
    script = Path(__file__).parents[2] / "testing" / "compiled.py"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    run = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    compiled = ["SmoothAPLoss", "SOPRCLoss", "AUROCLoss", "RecallAtKLoss", "PNPLoss", "SupAPLoss"]
    assert json.loads(run.stdout) == compiled
