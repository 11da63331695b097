"""The triton kernels give the sums and gradients of the definition: on a device where there is one, and interpreted.

Triton looks at TRITON_INTERPRET when it is imported, so one test runs the others in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from testing.ranking_losses import compare, sides

from aurank.losses import SmoothAPLoss
from aurank.losses.ranking._sums import choose_kernel, plain, ranking_sums

CHECKOUT = Path(__file__).parents[3]
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
on_device = pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs CUDA")
on_gpu = pytest.mark.skipif(INTERPRETED or not torch.cuda.is_available(), reason="needs CUDA")
EACH = pytest.mark.parametrize("surrogate", [name for name in plain.VALUES if name != "bound"])  # it is torch's alone


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="is in the interpreter")
def test_everything_that_follows_holds_in_tritons_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("surrogate", "capability", "kind"),
    [("tanh", 80, "*fp32"), ("sigmoid", 90, "*fp32"), ("logistic", 90, "*fp64"), ("huber", 80, "*fp64")],
)
def test_the_kernels_compile_for_a_device_without_one(
    surrogate: str, capability: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from aurank.losses.ranking._sums import gpu

    sizes = {"SURROGATE": surrogate, "SCORES": gpu.SCORES, "OTHERS": gpu.OTHERS}
    for function, constants in ((gpu.add_values, {**sizes, "SPAN": gpu.SPAN}), (gpu.add_slopes, sizes)):
        known = dict.fromkeys(constants, "constexpr") | {"width": "i32", "references": "i32"}
        signature = {name: known.get(name, kind) for name in function.arg_names}
        source = ASTSource(function, signature, constants)
        code = triton.compile(source, GPUTarget("cuda", capability, 32), gpu.OPTIONS)
        assert f".target sm_{capability}" in code.asm["ptx"]


@pytest.mark.gpu
@on_device
@EACH
@pytest.mark.parametrize(("shape", "dtype"), [((1, 3, 260), torch.float32), ((2, 9, 7), torch.float64)])
def test_sums_and_gradients_are_those_of_the_definition(
    surrogate: str, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    from aurank.losses.ranking._sums import gpu

    compare(gpu, *sides(*shape, dtype=dtype, device=DEVICE), surrogate=surrogate, temperature=0.1)


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize("surrogate", ["huber", "logistic"])
def test_small_temperatures_spans_and_strides_make_no_difference(
    surrogate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aurank.losses.ranking._sums import gpu

    monkeypatch.setattr(gpu, "SPAN", 256)
    gradient, scores, others = sides(2, 3, 300, dtype=torch.float64, device=DEVICE)
    strided = others.T.contiguous().T
    compare(gpu, gradient, scores.T.contiguous().T, strided, surrogate=surrogate, temperature=1e-3)


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize(("surrogate", "dtype"), [("sigmoid", torch.float32), ("tanh", torch.float64)])
def test_the_kernel_passes_its_comparison_with_plain_torch_and_is_then_used(surrogate: str, dtype: torch.dtype) -> None:
    from aurank.losses.ranking._sums import gpu

    _, scores, others = sides(2, 5, 30, dtype=dtype, device=DEVICE)
    assert choose_kernel(scores, others, surrogate, "auto") is plain
    assert choose_kernel(scores, others, surrogate, "triton") is gpu
    found = ranking_sums(scores, others, surrogate=surrogate, temperature=0.1, backend="triton")
    assert torch.equal(found, gpu.sums(scores, others, surrogate=surrogate, temperature=0.1))


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 3, 0)])
def test_nothing_to_rank_gives_zeros(shape: tuple[int, int, int]) -> None:
    from aurank.losses.ranking._sums import gpu

    gradient, scores, others = sides(*shape, dtype=torch.float32, device=DEVICE)
    assert not gpu.sums(scores, others, surrogate="huber", temperature=0.1).any()
    for found, wanted in zip(
        gpu.gradients(gradient, scores, others, surrogate="huber", temperature=0.1), (scores, others), strict=True
    ):
        assert found.shape == wanted.shape
        assert not found.any()


@pytest.mark.gpu
@on_gpu
def test_memory_on_a_gpu_is_that_of_the_similarities_not_of_the_triples() -> None:
    loss, labels = SmoothAPLoss(backend="triton"), torch.arange(4096) // 4
    rows = torch.randn(4096, 64, device="cuda", requires_grad=True)
    loss(rows[:64], labels[:64]).backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss(rows, labels).backward()
    assert torch.cuda.max_memory_allocated() - before < 600 * 2**20
