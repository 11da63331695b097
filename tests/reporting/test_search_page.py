"""The page of a search: what was found, in its order, as text."""

import re

from aurank.reporting.search_page import FoundImage, SearchedPhoto, search_page

LONG = "photos/of/many/things/and/more/shoes"


def test_lists_stand_in_their_order_and_long_paths_are_shown_by_their_ends() -> None:
    found = [FoundImage(f"{LONG}/{place}.jpg", LONG, None, 0.9 - place / 10) for place in range(3)]
    page = search_page("found", [SearchedPhoto("a.jpg", None, found), SearchedPhoto("b.jpg", None, [], "broken")], [])
    assert re.findall(r"\n(\d) · ([\d.]+)", page) == [("1", "0.900"), ("2", "0.800"), ("3", "0.700")]
    assert re.findall(r'title="([^"]+/\d\.jpg)"', page) == [one.path for one in found]
    assert "<b>…/<wbr>shoes</b>" in page
    assert "…/<wbr>2.jpg</span>" in page
    assert "<p>broken</p>" in page
    assert "Nothing is close enough" in search_page("found", [SearchedPhoto("a.jpg", None, [])], [])


def test_names_break_between_words() -> None:
    found = [FoundImage("photos/Fruit/Pear/Anjou/Anjou_026.jpg", "", None, 0.5)]
    page = search_page("found", [SearchedPhoto("a.jpg", None, found)], [])
    assert '<span class="name">…/<wbr>Anjou_<wbr>026.jpg</span>' in page
