"""What is said of a name that nobody knows."""

from aurank.names import meant, nearest


def test_the_likest_names_come_first_whatever_their_case() -> None:
    known = ["minp", "MRR", "map@r", "nDCG", "ndcg@5"]
    assert nearest("NDCG", known, most=2) == ["nDCG", "ndcg@5"]
    assert nearest("NDCG", known) == ["nDCG"]
    assert nearest("xyz", known) == []


def test_a_hint_names_what_was_meant_or_says_nothing() -> None:
    assert meant([]) == ""
    assert meant(["a"]) == "; did you mean 'a'?"
    assert meant(["a", "b"]) == "; did you mean 'a' or 'b'?"
