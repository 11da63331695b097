"""Run where there is a CUDA device: the CPU's values, gradients and state."""

import pytest
import torch
from testing.stateful import EVERY

from aurank.losses import CrossBatchMemory, SmoothAPLoss

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
NAMES = (
    *("auroc", "blackbox_ap margin", "fast_ap", "listwise_ap", "listwise_ap tie_aware", "recall_at_k", "semi_variance"),
    *("smooth_ap", "soprc", "soprc official"),
)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(6, (128,), generator=random)
    return torch.randn(128, 64, generator=random), labels


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("labels_on_gpu", [False, True])
def test_values_gradients_and_state_are_those_of_the_cpu(name: str, labels_on_gpu: bool) -> None:
    embeddings, labels = data()
    results = []
    for device in ("cpu", "cuda"):
        loss = EVERY[name]().double().to(device)
        rows = embeddings.double().to(device).requires_grad_()
        for _ in range(3):
            value = loss(rows, labels.to(device) if labels_on_gpu else labels)
        value.backward()
        results.append((value.detach().cpu(), rows.grad.cpu(), [state.cpu() for state in loss.buffers()]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-7, atol=1e-9)


def test_a_memory_on_the_gpu_is_that_on_the_cpu_whoever_writes_to_it() -> None:
    embeddings, labels = data()
    random = torch.Generator().manual_seed(1)
    memories = [CrossBatchMemory(SmoothAPLoss(), 64, 300).double().to(device) for device in ("cpu", "cuda")]
    for step in range(8):
        order = torch.randperm(128, generator=random)[: 100 + step]
        rows = embeddings[order].double()
        rows[step] = torch.nan if step in (2, 5) else 1
        values = [each(rows.to(each.counters.device), labels[order], ids=order).cpu() for each in memories]
        torch.testing.assert_close(*values, rtol=1e-9, atol=1e-12, equal_nan=True)
        if step == 3:  # a checkpoint is loaded
            for each in memories:
                each.load_state_dict(
                    {name: value.flip(0) for name, value in each.state_dict().items()}
                    | {"counters": each.counters.clone()}
                )
        for name in ("embedding_memory", "label_memory", "id_memory", "counters"):
            assert memories[0].get_buffer(name).equal(memories[1].get_buffer(name).cpu()), (step, name)
