"""Post-processing in float64 with a full matrix, one row at a time: what the steps must equal."""

import numpy as np


def unit(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def expanded(
    queries: np.ndarray, gallery: np.ndarray, k: int, alpha: float, own: np.ndarray | None = None
) -> np.ndarray:
    """Each query plus its k nearest gallery rows times cosine to the alpha; `own` is a row that it leaves out."""
    queries, gallery = unit(queries), unit(gallery)
    found = []
    for row, query in enumerate(queries):
        cosine = gallery @ query
        order = [int(one) for one in np.argsort(-cosine, kind="stable") if own is None or one != own[row]]
        whole = query.copy()
        for one in order[:k]:
            whole += max(cosine[one], 0.0) ** alpha * gallery[one]
        found.append(whole)
    return unit(np.array(found))


def k_reciprocal_distances(nodes: np.ndarray, k1: int, k2: int, weight: float) -> np.ndarray:
    """The published algorithm of k-reciprocal encoding (Zhong et al., CVPR 2017), on all nodes against all."""
    nodes = unit(nodes)
    count = len(nodes)
    distance = 2 - 2 * nodes @ nodes.T
    np.fill_diagonal(distance, 0)
    distance = distance / distance.max(axis=1, keepdims=True)
    rank = np.argsort(distance, axis=1, kind="stable")
    rank = np.array([[row, *(one for one in order if one != row)] for row, order in enumerate(rank.tolist())])

    def reciprocal(row: int, k: int) -> set[int]:
        return {int(one) for one in rank[row, : k + 1] if row in rank[one, : k + 1]}

    encoding = np.zeros((count, count))
    for row in range(count):
        own = reciprocal(row, k1)
        members = set(own)
        for one in own:
            theirs = reciprocal(one, int(np.around(k1 / 2)))
            if len(theirs & own) > 2 / 3 * len(theirs):
                members |= theirs
        listed = sorted(members)
        weights = np.exp(-distance[row, listed])
        encoding[row, listed] = weights / weights.sum()
    if k2 > 1:
        encoding = np.stack([encoding[rank[row, :k2]].mean(axis=0) for row in range(count)])
    jaccard = np.zeros((count, count))
    for row in range(count):
        for other in range(count):
            shared = np.minimum(encoding[row], encoding[other]).sum()
            jaccard[row, other] = 1 - shared / (2 - shared)
    return (1 - weight) * jaccard + weight * distance


def ranks_by_scores(
    scores: np.ndarray, positive: np.ndarray, left_out: np.ndarray
) -> dict[int, list[tuple[int, int, int, int]]]:
    """For each query with a positive: (gallery row, negatives higher, negatives tied, positives at least as high)."""
    found = {}
    for row in range(len(scores)):
        own = np.flatnonzero(positive[row] & ~left_out[row])
        others = np.flatnonzero(~positive[row] & ~left_out[row])
        if len(own):
            found[row] = [
                (
                    int(one),
                    int((scores[row, others] > scores[row, one]).sum()),
                    int((scores[row, others] == scores[row, one]).sum()),
                    int((scores[row, own] >= scores[row, one]).sum()),
                )
                for one in sorted(own, key=lambda one, row=row: (-scores[row, one], one))
            ]
    return found
