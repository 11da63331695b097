"""Texts to tokens: a byte-level byte-pair encoding learnt from the training captions, so that no text is unknown."""

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from aurank.names import tidied

PADDING, START, END = 0, 1, 2
_FIRST_BYTE = 3  # the tokens of the 256 bytes follow, then one for each merge
_FIRST_MERGE = _FIRST_BYTE + 256
_PIECE = re.compile(r" ?\w+| ?[^\w\s]+")  # a word or marks, with the blank before: no token reaches over two words

Pair = tuple[int, int]


class Tokeniser:
    """Texts to rows of tokens, and back.

    A row is START, the tokens of the text, END, then PADDING up to `length`. Texts are taken in lower case, `tidied`.

    Args:
        merges: pairs of tokens; merge i makes of its pair the token that is 259 + i.
        length: of a row, START and END included. Longer texts lose their ends.

    Source: Sennrich, Haddow and Birch, Neural machine translation of rare words with subword units (ACL 2016), on bytes
        and within words as GPT-2 does, https://arxiv.org/abs/1508.07909. A pair seen once is not merged.

    Example:
        >>> tokeniser = Tokeniser.learn(["a red square", "a blue square"], length=8, vocabulary=300)
        >>> tokeniser.encode(["a square"]).shape
        torch.Size([1, 8])
    """

    def __init__(self, merges: Sequence[Sequence[int]], *, length: int) -> None:
        self.length = length
        self.merges = [(int(left), int(right)) for left, right in merges]
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._bytes = [b"", b"", b"", *(bytes([value]) for value in range(256))]
        for left, right in self.merges:
            self._bytes.append(self._bytes[left] + self._bytes[right])
        self._tokens = lru_cache(maxsize=2**16)(self._merge)

    @classmethod
    def learn(cls, texts: Iterable[str], *, length: int = 32, vocabulary: int = 8192) -> "Tokeniser":
        """Return the tokeniser of at most `vocabulary` tokens, the same for the same texts in any order."""
        counts = Counter(piece for text in texts for piece in _pieces(text))
        return cls(_learn_merges(counts, vocabulary - _FIRST_MERGE), length=length)

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return len(self._bytes)

    def encode(self, texts: Sequence[str]) -> Int64[Tensor, "text length"]:
        """Return the rows of tokens."""
        rows = torch.full((len(texts), self.length), PADDING, dtype=torch.int64)
        for row, text in enumerate(texts):
            tokens = [START, *self._of(text)[: self.length - 2], END]
            rows[row, : len(tokens)] = torch.tensor(tokens)
        return rows

    __call__ = encode

    def count_cut(self, texts: Iterable[str]) -> int:
        """Return how many of the texts are too long for a row and lose their ends."""
        return sum(len(self._of(text)) > self.length - 2 for text in texts)

    def decode(self, rows: Int64[Tensor, "text length"]) -> list[str]:
        """Return the texts that rows of tokens stand for, as far as they were not cut."""
        joined = (b"".join(self._bytes[token] for token in row) for row in rows.tolist())
        return [text.decode("utf-8", errors="replace").removeprefix(" ") for text in joined]

    def state_dict(self) -> dict[str, Any]:
        """Return the arguments that make the tokeniser again, as plain JSON can hold them."""
        return {"length": self.length, "merges": [list(pair) for pair in self.merges]}

    def _of(self, text: str) -> list[int]:
        return [token for piece in _pieces(text) for token in self._tokens(piece)]

    def _merge(self, piece: bytes) -> list[int]:
        tokens = [_FIRST_BYTE + value for value in piece]
        while len(tokens) > 1:
            rank = min(self._ranks.get(pair, len(self.merges)) for pair in pairwise(tokens))
            if rank == len(self.merges):
                break
            tokens = _joined(tokens, self.merges[rank], _FIRST_MERGE + rank)
        return tokens


def _pieces(text: str) -> list[bytes]:
    # Tidied again: lower case of a composed letter may be decomposed.
    return [piece.encode("utf-8", errors="replace") for piece in _PIECE.findall(" " + tidied(text.lower()))]


def _joined(tokens: Sequence[int], pair: Pair, token: int) -> list[int]:
    joined: list[int] = []
    for right in tokens:
        if joined and (joined[-1], right) == pair:
            joined[-1] = token
        else:
            joined.append(right)
    return joined


def _learn_merges(counts: Mapping[bytes, int], most: int) -> list[Pair]:
    words = [[_FIRST_BYTE + value for value in word] for word in counts]
    weights = list(counts.values())
    frequency: Counter[Pair] = Counter()
    holders: defaultdict[Pair, set[int]] = defaultdict(set)  # words that a pair is in, or has been
    changed: set[Pair] = set()

    def count(word: int, sign: int) -> None:
        for pair in pairwise(words[word]):
            frequency[pair] += sign * weights[word]
            holders[pair].add(word)
            changed.add(pair)

    for word in range(len(words)):
        count(word, 1)
    merges: list[Pair] = []
    queue: list[tuple[int, Pair]] = []  # a pair again for each count that it has had; only the last one holds
    while len(merges) < most:
        for pair in changed:
            if frequency[pair] > 1:
                heapq.heappush(queue, (-frequency[pair], pair))
        changed.clear()
        while queue and -queue[0][0] != frequency[queue[0][1]]:
            heapq.heappop(queue)
        if not queue:
            break
        pair = heapq.heappop(queue)[1]
        merges.append(pair)
        for word in holders.pop(pair):
            count(word, -1)
            words[word] = _joined(words[word], pair, _FIRST_MERGE + len(merges) - 1)
            count(word, 1)
    return merges
