import oracles
import pytest
import torch
from pytorch_metric_learning.losses import SmoothAPLoss as PMLSmoothAPLoss
from sklearn.metrics import average_precision_score
from testing.equal import batch

from aurank.errors import UserError
from aurank.losses import SmoothAPLoss


@pytest.mark.parametrize("include_self", [False, True])
def test_smooth_ap_tends_to_exact_ap_as_temperature_falls(include_self: bool) -> None:
    embeddings, labels = batch()
    embeddings = embeddings.detach()
    similarity = oracles.cosine(embeddings).numpy()
    exact = []
    for row, label in enumerate(labels.tolist()):
        kept = [j for j in range(len(labels)) if include_self or j != row]
        relevant = [int(labels[j]) == label for j in kept]
        if (labels == label).sum() > 1:
            exact.append(average_precision_score(relevant, similarity[row, kept]))
    wanted = 1 - sum(exact) / len(exact)
    errors = [abs(float(SmoothAPLoss(t, include_self)(embeddings, labels)) - wanted) for t in (1e-1, 1e-3, 1e-7)]
    assert errors[0] > errors[1]
    assert errors[2] < 1e-10


def test_pml_s_loss_agrees_where_it_is_right() -> None:
    # PML groups the wrong rows unless there are as many classes as samples per class, and needs them in blocks
    labels = torch.arange(4).repeat_interleave(4)
    embeddings = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        PMLSmoothAPLoss()(embeddings, labels), SmoothAPLoss(include_self=True)(embeddings, labels)
    )


def test_a_perfect_ranking_has_no_loss_and_equal_embeddings_score_a_half_rank_each() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    assert SmoothAPLoss(1e-4)(torch.eye(2)[labels], labels) == pytest.approx(0, abs=1e-6)
    # 1 + ½ among the two positives, and 3·½ negatives ahead
    assert SmoothAPLoss()(torch.ones(6, 4), labels) == pytest.approx(1 - 1.5 / 3)


def test_official_ranks_the_query_itself_and_nothing_else_may_be_said() -> None:
    embeddings, labels = batch()
    assert SmoothAPLoss(official=True)(embeddings, labels) == SmoothAPLoss(include_self=True)(embeddings, labels)
    assert SmoothAPLoss(include_self=True, official=True).include_self
    assert not SmoothAPLoss().include_self
    with pytest.raises(UserError, match="include_self=False contradicts official=True"):
        SmoothAPLoss(include_self=False, official=True)
