"""Several processes over gloo: one loss, one gradient and one state, those of a single process with the whole batch."""

from typing import Any

import oracles
import pytest
import torch
from oracles import neuclip
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from testing import cases as two_way_batches
from testing.processes import run_group
from testing.stateful import PROXIES, same_state
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses import (
    LOSSES,
    MINERS,
    CLIPLoss,
    CrossBatchMemory,
    CyCLIPLoss,
    EMC2Loss,
    FastCLIPLoss,
    InfoNCELoss,
    ISogCLRLoss,
    MultipleLosses,
    NeuCLIPLoss,
    RowTable,
    SigLIPLoss,
    SmoothAPLoss,
    SogCLRLoss,
    SOPRCLoss,
)
from aurank.losses.global_contrastive._kept_rows import TaggedTable
from aurank.names import signature

pytestmark = pytest.mark.slow

COUNTS = [9, 4, 20, 7, 6]
ENCODED = torch.randn(100, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
ALONE = [([0, 1, 2, 3], [0, 0, 1, 2]), ([4, 5, 6], [1, 1, 2])]  # rows of each process, and their labels
SETS = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 1], [1, 0, 1, 0]], dtype=torch.bool)
STEPS = 2
NAMES = list(LOSSES)
ALONE_IN_BATCH = {*PROXIES, "compatible", "distill"}  # they take no references
ONE_LABEL = {*ALONE_IN_BATCH, "hierarchical_ap", "negative_cache"}  # they refuse sets


def entries(rank: int) -> tuple[Tensor, Tensor]:
    """Different numbers of entries on the ranks, some rows on both."""
    random = torch.Generator().manual_seed(rank)
    number = 5 + 4 * rank
    return torch.randint(6, (number,), generator=random), torch.randn(number, 3, generator=random)


def rows(step: int, number: int = 30) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(step)
    return {
        "embeddings": torch.randn(number, 5, generator=random, dtype=torch.float64),
        "labels": torch.randint(len(COUNTS), (number,), generator=random),
        "ids": torch.randperm(100, generator=random)[:number],
    }


def part(values: Tensor, rank: int, world: int) -> Tensor:
    """One process's share; the shares differ in size."""
    lengths = [len(values) // world + (1 if place % 2 else -1) for place in range(world)]
    lengths[-1] = len(values) - sum(lengths[:-1])
    return torch.split(values, lengths)[rank] if world > 1 else values


def make(name: str, **given: object) -> nn.Module:
    wanted, _ = signature(LOSSES[name])
    arguments = {"class_counts": COUNTS, "num_samples": 100, "embedding_size": 5, "two_way": False}
    arguments |= {"num_classes": len(COUNTS), "super_labels": [0, 0, 1, 1, -1]}
    arguments |= {"teacher": ENCODED[:, :3], "old": ENCODED}
    torch.manual_seed(0)  # of the proxies
    # its defaults are for batches of 700, and a training that tells where it stands
    quick = {"rho": 0.3, "gamma_schedule": "constant"} if name == "fastclip" else {}
    return LOSSES[name](**{key: value for key, value in arguments.items() if key in wanted}, **quick, **given)


def run(loss: nn.Module, way: str, rank: int, world: int) -> list[Tensor]:
    """Gradients of this process's rows as data-parallel training averages them, values, and the parameters' gradients.

    Of a few steps; each begins with the rows, of queries and of references.
    """
    results = []
    loss = loss.double()
    for step in range(STEPS):
        own = {name: part(values, rank, world) for name, values in rows(step).items()}
        queries = own.pop("embeddings").requires_grad_()
        given = dict(own)
        if way == "references":
            others = {name: part(values, rank, world) for name, values in rows(10 + step, 41).items()}
            given |= {
                "ref_emb": others["embeddings"].requires_grad_(),
                "ref_labels": others["labels"],
                "ref_ids": others["ids"],
            }
        if isinstance(loss, OfSets):
            given |= {name: SETS[given[name]] for name in ("labels", "ref_labels") if name in given}
        torch.manual_seed(step + 100 * rank)  # miners draw differently everywhere: the first process's draw counts
        if way == "miner":
            given["indices_tuple"] = MINERS["distance_weighted"](cutoff=0.1, nonzero_loss_cutoff=3.0)
        value = loss(queries, **given)
        leaves = [queries, given["ref_emb"]] if way == "references" else [queries]
        gradients = torch.autograd.grad(value, [*leaves, *loss.parameters()])
        shares = [gradient / world for gradient in gradients[: len(leaves)]]
        results += [*shares, value.detach(), *gradients[len(leaves) :]]
    return results


class OfSets(nn.Module):
    """A loss whose labels are sets."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, *given: Any, **named: Any) -> Tensor:
        value: Tensor = self.loss(*given, **named)
        return value


FEW = ["soprc", "emc2", "neuclip"]  # for ways in which losses do not differ


def cases(world: int) -> dict[str, tuple[nn.Module, str]]:
    """Every loss with references and a memory for two processes, a few without and with a miner, and for three."""
    names = NAMES if world == 2 else FEW
    ways = [(name, "plain" if name in ALONE_IN_BATCH else "references") for name in names]
    ways += [(name, way) for name in FEW for way in ("plain", "miner")]
    found = {f"{name} {way}": (make(name, distributed=True), way) for name, way in ways}
    reencoding = make("emc2", distributed=True, out_of_batch="reencode")
    reencoding.reencode = lambda ids: ENCODED[ids]  # each process embeds its share of the states
    found["emc2 reencode"] = (reencoding, "plain")
    for name in [name for name in names if name not in ALONE_IN_BATCH] if world == 2 else FEW[:1]:
        memory = CrossBatchMemory(make(name), embedding_size=5, memory_size=50, start_at=1, distributed=True)
        found[f"{name} memory"] = (memory, "plain")
    inner = MultipleLosses([SmoothAPLoss()], miners=[MINERS["distance_weighted"](cutoff=0.1, nonzero_loss_cutoff=3.0)])
    found["miner inside"] = (CrossBatchMemory(inner, embedding_size=5, memory_size=50, distributed=True), "random")
    for way in ("plain", "references", "miner"):
        found[f"sets {way}"] = (OfSets(SmoothAPLoss(positives="jaccard", distributed=True)), way)
    for name in [name for name in names if name not in ONE_LABEL]:
        stateless = {"moving_average": False, "prior": "batch"} if name == "soprc" else {}
        found[f"{name} sets"] = OfSets(make(name, positives=0.5, distributed=True, **stateless)), "references"
    memory = CrossBatchMemory(make("sogclr", positives=0.5), embedding_size=5, memory_size=50, distributed=True)
    found["sets memory"] = (OfSets(memory), "plain")
    found["sets pml"] = (OfSets(LOSSES["contrastive"](positives="equal", distributed=True)), "references")
    several = [SmoothAPLoss(), make("soprc"), make("contrastive"), make("proxy_anchor")]
    found["several"] = (MultipleLosses(several, widths=[3, None, 4, None], distributed=True), "references")
    proxies = MultipleLosses([SmoothAPLoss(), make("arcface")])
    found["proxies memory"] = (
        CrossBatchMemory(proxies, embedding_size=5, memory_size=50, distributed=True),
        "miner" if world == 2 else "plain",
    )
    return found


def two_way_losses(world: int, **given: object) -> dict[str, nn.Module]:
    """Every loss of two modalities for two processes, a few for three."""
    quiet = {"gamma_schedule": "constant", **given}
    found = {
        "clip": CLIPLoss(**given),
        "siglip": SigLIPLoss(**given),
        "cyclip": CyCLIPLoss(**given),
        "isogclr": ISogCLRLoss(20, two_way=True, **given),
        "isogclr adam": ISogCLRLoss(20, two_way=True, temperature_update="adam", **given),
        "isogclr global": ISogCLRLoss(20, two_way=True, individual=False, **given),
        "fastclip v0": FastCLIPLoss(20, "v0", **quiet),
        "fastclip v2": FastCLIPLoss(20, "v2", rho=0.3, **quiet),
        "fastclip v3": FastCLIPLoss(20, rho=0.3, **quiet),
        "neuclip": NeuCLIPLoss(5, num_prototypes=8, inner_lr=0.1, restart_every=2, **given),
        "info_nce": InfoNCELoss(two_way=True, **given),
        "sogclr": SogCLRLoss(20, two_way=True, **given),
    }
    few = found if world == 2 else ("clip", "isogclr", "neuclip", "sogclr")
    return {name: found[name].double() for name in few}


def run_two_way(loss: nn.Module, rank: int, world: int) -> list[Tensor]:
    """Values and gradients; the rows' as data-parallel training averages them. The shares differ in size and sides."""
    results = []
    for step in range(3):
        given = two_way_batches.batch(step)
        for name, value in given.items():
            least = 1 if name in ("embeddings", "labels", "ids") else 2  # rows of all processes but the last
            own = slice(rank * least, None if rank == world - 1 else (rank + 1) * least)
            given[name] = value.detach()[own].clone().requires_grad_(value.is_floating_point())
        value = loss(**given)
        leaves = [given["embeddings"], given["ref_emb"], *loss.parameters()]
        # a share without a valid row has no use for a parameter
        rows, texts, *others = torch.autograd.grad(value, leaves, allow_unused=True)
        results += [rows / world, texts / world, value.detach(), *others]
    return results


def run_alone(rank: int) -> Tensor:
    """The value of NeuCLIP of one modality, not gathered."""
    loss = neuclip.make(two_way=False, inner_steps=0, learn_temperature=False, rho=6.5)
    rows, labels = ALONE[rank]
    value: Tensor = loss(neuclip.two_sides()[0][rows].detach(), torch.tensor(labels))
    return value.detach()


def states_and_refusals(rank: int) -> tuple[Any, ...]:
    """What one of two processes finds."""
    table = RowTable(6, 3)
    for _ in range(2):
        table.update(*entries(rank), rate=0.3)
    nothing = torch.empty(0, dtype=torch.int64), torch.empty(0, 3)
    table.update(*(nothing if rank else entries(0)), rate=0.3)
    table.update(*nothing, rate=0.3)
    tagged = TaggedTable(2)  # of ids that float32 would round
    tagged.put(torch.tensor([rank]), torch.tensor([2**24 + 1 + 2 * rank]), torch.ones(1, 1), is_shared=False)

    # without gathering: each its own loss, but one state of all; then a batch without a valid query on the first only
    chains, loss = EMC2Loss(100, views=40).double(), SOPRCLoss(COUNTS).double()
    own = {name: part(values, rank, 2) for name, values in rows(0).items()}
    loss(own["embeddings"], own["labels"])
    loss(own["embeddings"], own["labels"] if rank else torch.zeros_like(own["labels"]))
    for labels in (own["labels"], own["labels"] if rank else torch.zeros_like(own["labels"])):
        chains(own["embeddings"], labels, ids=own["ids"])
    wrapped = SOPRCLoss(COUNTS).double()
    halves = (torch.split(rows(0)[name], 15)[rank] for name in ("embeddings", "labels"))  # PML wants equal parts
    value = DistributedLossWrapper(wrapped)(*halves) / 2

    # mined pairs of each process's own rows, and what is refused in all processes alike
    mined = MINERS["pair_margin"]()(own["embeddings"], own["labels"])
    narrowed = SmoothAPLoss(distributed=True).double()(own["embeddings"], own["labels"], mined)
    mined = tuple(index + rank * len(part(rows(0)["labels"], 0, 2)) for index in mined)
    messages = []
    for calls in (
        lambda: SmoothAPLoss(distributed=True)(rows(0)["embeddings"], rows(0)["labels"]),
        lambda: SmoothAPLoss(distributed=True)(
            own["embeddings"], own["labels"], ref_emb=rows(1)["embeddings"], ref_labels=rows(1)["labels"]
        ),
        lambda: SmoothAPLoss(distributed=True)(own["embeddings"], own["labels"], ids=own["ids"] if rank else None),
        lambda: SmoothAPLoss(distributed=True)(own["embeddings"], SETS[own["labels"]][:, rank:] | True),
    ):
        try:
            calls()
            messages.append("")
        except UserError as error:
            messages.append(str(error))
    states = [each.state_dict() for each in (table, loss, wrapped, chains, tagged)]
    return *states[:3], value, narrowed, mined, messages, states[3:], run_alone(rank)


def work(rank: int, world: int) -> tuple[Any, ...]:
    found: dict[str, Any] = {
        name: (run(loss, way, rank, world), loss.state_dict()) for name, (loss, way) in cases(world).items()
    }
    two_way = {
        name: (run_two_way(loss, rank, world), loss.state_dict())
        for name, loss in two_way_losses(world, distributed=True).items()
    }
    for name, loss in two_way_losses(world).items():  # not gathered: each its own loss, but one state of all
        run_two_way(loss, rank, world)
        two_way[f"{name} alone"] = ([], loss.state_dict())
    return found, two_way, states_and_refusals(rank) if world == 2 else ()


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two, or three, processes finds; they are started once."""
    return run_group(work, request.param, tmp_path_factory.mktemp("ranks"), request.param)


def test_processes_get_value_gradient_and_state_of_one_with_the_whole_batch(ranks: list[Any]) -> None:
    for name, (loss, way) in cases(len(ranks)).items():
        expected = run(loss, way, 0, 1)
        sides = 2 if way == "references" else 1
        found = [rank[0][name] for rank in ranks]
        for place, wanted in enumerate(expected):
            parts = [values[place] for values, _ in found]
            if place % (len(expected) // STEPS) >= sides:
                assert all(each.equal(parts[0]) for each in parts), name
            else:
                parts = [torch.cat(parts)]
            torch.testing.assert_close(parts[0], wanted, rtol=1e-6, atol=1e-10, msg=lambda text, name=name: name + text)
        states = [state for _, state in found]
        assert all(same_state(each, states[0]) for each in states), name
        torch.testing.assert_close(
            states[0], loss.state_dict(), rtol=1e-6, atol=1e-10, msg=lambda text, name=name: name + text
        )


@pytest.mark.filterwarnings("ignore:no query of the batch")
def test_both_sides_of_two_modalities_are_those_of_one_process(ranks: list[Any]) -> None:
    for name, loss in two_way_losses(len(ranks)).items():
        expected = run_two_way(loss, 0, 1)
        each = 3 + len(list(loss.parameters()))
        for place, wanted in enumerate(expected):
            parts = [rank[1][name][0][place] for rank in ranks]
            if place % each >= 2:
                assert all(part.equal(parts[0]) for part in parts), name
            found = parts[0] if place % each >= 2 else torch.cat(parts)
            torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: name + text)
        torch.testing.assert_close(
            ranks[0][1][name][1], loss.state_dict(), rtol=1e-8, atol=1e-10, msg=lambda text, name=name: name + text
        )
        for kind in (name, f"{name} alone"):
            assert all(same_state(ranks[0][1][kind][1], rank[1][kind][1]) for rank in ranks), kind


@pytest.mark.parametrize("ranks", [2], indirect=True)
def test_state_mined_pairs_and_refusals_are_the_same_in_both_processes(ranks: list[Any]) -> None:
    first, second = (rank[2] for rank in ranks)
    for one, other in zip(first[:3], second[:3], strict=True):
        assert all(value.equal(other[name]) for name, value in one.items())

    alone = RowTable(6, 3)
    both = [torch.cat(parts) for parts in zip(entries(0), entries(1), strict=True)]
    for index, values in (both, both, entries(0)):
        alone.update(index, values, rate=0.3)
    assert all(value.equal(first[0][name]) for name, value in alone.state_dict().items())

    single = SOPRCLoss(COUNTS).double()
    together = single(rows(0)["embeddings"], rows(0)["labels"])
    torch.testing.assert_close(first[3], together, rtol=0, atol=1e-12)
    torch.testing.assert_close(first[2]["table.rows"], single.v, rtol=0, atol=1e-12)

    mined = tuple(torch.cat(parts) for parts in zip(first[5], second[5], strict=True))
    whole = SmoothAPLoss().double()(rows(0)["embeddings"], rows(0)["labels"], mined)
    assert whole > 0
    assert first[4] == second[4]
    torch.testing.assert_close(first[4], whole, rtol=0, atol=1e-12)

    assert same_state(first[7], second[7])
    assert first[7][1]["tags"].tolist() == [2**24 + 1, 2**24 + 3]

    # NeuCLIP that is not gathered: each its own loss, but against the rows of both, the query itself left out
    similarity = oracles.cosine(neuclip.two_sides()[0].detach())
    for value, (indices, labels) in zip((first[8], second[8]), ALONE, strict=True):
        terms = []
        for query, (positives, negatives) in oracles.sides(*oracles.masks(labels)).items():
            row = similarity[indices[query]]
            pull = row[[indices[each] for each in positives]].mean()
            others = [each for each in range(7) if each != indices[query]], [indices[each] for each in negatives]
            mean, g = (neuclip.normalizer(row, each, pull, temperature=0.125, epsilon=1e-8) for each in others)
            terms.append(neuclip.term(g, mean.log(), temperature=0.125, rho=0.0))
        torch.testing.assert_close(value, torch.stack(terms).mean(), rtol=0, atol=1e-11)

    for messages in (first[6], second[6]):
        assert "all 2 processes passed the same embeddings" in messages[0]
        assert "all 2 processes passed the same ref_emb" in messages[1]
        assert "disagree on ids" in messages[2]
        assert "disagree on labels as sets of equally many classes" in messages[3]


def test_one_process_is_left_as_it_is() -> None:
    given = rows(0)
    queries = given.pop("embeddings")
    assert SmoothAPLoss(distributed=True).double()(queries, **given) == SmoothAPLoss().double()(queries, **given)
