"""Nothing public comes, goes or changes its parameters unseen."""

from testing.public import LIST, public_names


def test_the_public_names_are_those_of_the_list() -> None:
    listed, found = LIST.read_text(encoding="utf-8").splitlines(), public_names()
    gone, new = sorted({*listed} - {*found}), sorted({*found} - {*listed})
    assert not gone, f"went or changed, which docs/versioning.md has rules for; then `make names`: {gone}; new: {new}"
    assert not new, f"came: write them into tests/public_names.txt by `make names`: {new}"
    assert listed == found, "the list has its own order: `make names`"
