import json
import random
from collections import Counter
from itertools import pairwise

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aurank.data.captions import Tokeniser
from aurank.names import tidied

CAPTIONS = [
    "a photo of royal gala apple",
    "a photo of golden delicious apple",
    "royal gala apple in a grocery store",
    "A photo of café au lait, 2 litres!",
]
LEARNT = Tokeniser.learn(CAPTIONS, length=400)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
@example("İstanbul — 東京 🍎\t\x1f x")
@example("")
def test_no_text_is_unknown_and_every_one_comes_back(text: str) -> None:
    rows = LEARNT.encode([text])
    assert rows.shape == (1, 400)
    assert LEARNT.decode(rows) == [tidied(text.lower())]


def test_rows_start_end_and_are_padded_and_cut_texts_are_counted() -> None:
    tokeniser = Tokeniser([], length=8)
    assert tokeniser.encode(["Ab", ""]).tolist() == [[1, 3 + 32, 3 + 97, 3 + 98, 2, 0, 0, 0], [1, 2, 0, 0, 0, 0, 0, 0]]
    tokeniser = Tokeniser([], length=6)  # in which long texts lose their ends
    rows = tokeniser.encode(["abcdef", "abc"])
    assert rows[0, -1] == 2
    assert tokeniser.decode(rows) == ["abc", "abc"]
    assert tokeniser.count_cut(["abcdef", "abc", "abcd"]) == 2


def test_the_tokeniser_is_the_same_for_any_order_of_texts_and_after_a_round_trip_through_json() -> None:
    tokeniser = Tokeniser.learn(CAPTIONS, length=16)
    shuffled = random.Random(0).sample(CAPTIONS, len(CAPTIONS))
    assert Tokeniser.learn(shuffled, length=16).state_dict() == tokeniser.state_dict()
    again = Tokeniser(**json.loads(json.dumps(tokeniser.state_dict())))
    assert again.state_dict() == tokeniser.state_dict()
    assert again.vocabulary == tokeniser.vocabulary > 259
    assert torch.equal(again.encode(CAPTIONS), tokeniser.encode(CAPTIONS))
    assert Tokeniser.learn(CAPTIONS, vocabulary=270).vocabulary == 270


def slow_merges(words: dict[str, int], most: int) -> list[bytes]:
    """What each merge spells, all pairs counted anew before each."""
    split = {word: [bytes([value]) for value in word.encode()] for word in words}
    numbers = {bytes([value]): value for value in range(256)}
    learnt: list[tuple[bytes, bytes]] = []
    while len(learnt) < most:
        counts: Counter[tuple[bytes, bytes]] = Counter()
        for word, parts in split.items():
            for pair in pairwise(parts):
                counts[pair] += words[word]
        if not counts or max(counts.values()) < 2:
            break
        best = min(counts, key=lambda pair: (-counts[pair], numbers[pair[0]], numbers[pair[1]]))
        learnt.append(best)
        numbers[best[0] + best[1]] = 256 + len(learnt)
        for word, parts in split.items():
            joined: list[bytes] = []
            for part in parts:
                if joined and (joined[-1], part) == best:
                    joined[-1] += part
                else:
                    joined.append(part)
            split[word] = joined
    return [left + right for left, right in learnt]


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1, max_size=7), st.integers(1, 4), min_size=1, max_size=8))
def test_merges_are_those_of_counting_every_pair_anew(words: dict[str, int]) -> None:
    texts = [word for word, count in words.items() for _ in range(count)]
    tokeniser = Tokeniser.learn(texts, length=16, vocabulary=259 + 12)
    spelt = tokeniser.decode(torch.arange(259, tokeniser.vocabulary)[:, None])
    expected = slow_merges({f" {word}": count for word, count in words.items()}, 12)
    assert spelt == [word.decode().removeprefix(" ") for word in expected]
