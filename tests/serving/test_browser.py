"""The page in a real browser; skipped where Debian's chromium and chromium-driver are not installed."""

import base64
import csv
import io
import itertools
import json
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from testing.galleries import EVIL, photo_of, running_server, words_index, write_coloured

import aurank
from aurank.commands import ImageIndex, build_index, mixed_query
from aurank.embedding import ImageSelection
from aurank.reporting.report_page import report_page

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
# A script cannot take a file of the machine, so the page makes one and drops it, as a person would.
DROP = """
const bytes = Uint8Array.from(atob(arguments[0]), one => one.charCodeAt(0)), data = new DataTransfer();
data.items.add(new File([bytes, new Uint8Array(arguments[2])], arguments[1]));
const event = new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
document.getElementById("drop").dispatchEvent(event);
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver"),
]


@pytest.fixture(scope="module")
def started() -> Iterator[webdriver.Chrome]:
    options = Options()
    options.binary_location = str(CHROMIUM)
    for name in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,1000"):
        options.add_argument(f"--{name}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SE_OFFLINE", "true")  # else selenium looks for drivers elsewhere
        patch.setenv("SE_AVOID_STATS", "true")
        driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(started: webdriver.Chrome) -> webdriver.Chrome:
    """The browser on an empty page, with empty logs."""
    started.get("about:blank")
    for log in ("browser", "performance"):
        started.get_log(log)
    return started


class Page:
    """What a person sees and does."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def one(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def until(self, heading: str, range_: str) -> None:
        """Wait until a list under this heading, of this range, is shown whole."""

        def is_there(driver: webdriver.Chrome) -> bool:
            busy = self.one("#results").get_attribute("aria-busy")
            return busy is None and (self.one("#heading").text, self.one(".range").text) == (heading, range_)

        WebDriverWait(self.driver, 20).until(is_there, f"no {heading!r} {range_!r}")

    def rows(self) -> list[int]:
        links = self.driver.find_elements(By.CSS_SELECTOR, "#list a")
        return [int(str(link.get_attribute("href")).partition("row=")[2]) for link in links]

    def drop(self, content: bytes, name: str, *, zeros: int = 0) -> None:
        self.driver.execute_script(DROP, base64.b64encode(content).decode(), name, zeros)

    def type(self, selector: str, text: str) -> None:
        box = self.one(selector)
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(Keys.DELETE, text, Keys.TAB)

    def requests(self) -> list[str]:
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]


@pytest.fixture
def neighbours(browser: webdriver.Chrome, index: ImageIndex) -> Iterator[Page]:
    """The page of what row 3 finds."""
    page = Page(browser)
    with running_server(index) as port:
        browser.get(f"http://127.0.0.1:{port}/#row=3")
        page.until("Nearest images", "1–24 of 29")
        yield page


def test_a_token_given_as_a_password_opens_the_page_with_its_pictures(started, index):
    with running_server(index, token="secret") as port:
        started.get(f"http://127.0.0.1:{port}/")
        assert not started.find_elements(By.CSS_SELECTOR, "#heading")
        started.get(f"http://anyone:secret@127.0.0.1:{port}/")  # as if typed into the browser's own question
        started.get(f"http://127.0.0.1:{port}/")
        Page(started).until("Gallery", "1–24 of 30")
        loaded = "return [...document.querySelectorAll('#list img')].some(one => one.naturalWidth > 0)"
        WebDriverWait(started, 20).until(lambda driver: driver.execute_script(loaded))


def test_drop_then_results_then_a_neighbour_then_a_filter(browser, index):
    page = Page(browser)
    with running_server(index) as port:
        origin = f"http://127.0.0.1:{port}/"
        browser.get(origin)
        page.until("Gallery", "1–24 of 30")
        assert page.one("#about").text == "30 images, timm:test_vit, cosine, index Flat; 3 classes"
        assert page.rows() == list(range(24))

        page.drop(photo_of("green"), "my <b>photo</b>.png")
        page.until("Nearest images", "1–24 of 30")
        assert page.rows() == [hit.row for hit in index.search([photo_of("green")], k=24)[0]]
        assert page.one("#caption").text == "my <b>photo</b>.png"
        assert page.one("#list .score").text.startswith("1 · ")

        neighbour = page.rows()[1]
        page.one("#list li:nth-child(2) a").click()
        page.until("Nearest images", "1–24 of 29")
        assert page.rows() == [hit.row for hit in index.search_rows([neighbour], k=24)[0]]
        assert index.images["class"][neighbour] == "green"
        shown = [(one.class_name == "green") for one in index.search_rows([neighbour], k=24)[0]]
        marks = [one.text for one in browser.find_elements(By.CSS_SELECTOR, "#list .mark")]
        assert marks == ["✓ same class" if right else "✗ other class" for right in shown]

        page.type("#class", "blue")
        page.until("Nearest images", "1–10 of 10")
        assert {str(index.images["class"][row]) for row in page.rows()} == {"blue"}
        page.type("#class", "")
        page.until("Nearest images", "1–24 of 29")
        page.one("[data-step='1']").click()
        page.until("Nearest images", "25–29 of 29")

        browser.back()
        browser.back()
        page.until("Nearest images", "1–10 of 10")
        assert browser.execute_script(
            "return [...document.images].filter(one => one.offsetParent).every(one => one.complete && one.naturalWidth)"
        )
        assert all(url.startswith((origin, "data:", "blob:")) for url in page.requests())
    assert browser.get_log("browser") == []


def test_words_are_typed_alone_and_beside_a_photo_and_stay_text(browser, tmp_path):
    page, words = Page(browser), words_index(tmp_path)
    wait = WebDriverWait(browser, 20, ignored_exceptions=[StaleElementReferenceException])

    def search(text: str, query: np.ndarray) -> None:
        page.type("#text", text)
        page.one("#words button").click()
        expected = [hit.row for hit in words.search(query, k=24)[0]]
        wait.until(lambda _: page.rows() == expected)
        assert page.one("#text").get_attribute("value") == text

    with running_server(words) as port:
        browser.get(f"http://127.0.0.1:{port}/")
        page.until("Gallery", "1–24 of 30")
        for text in ("green mug", "<img src=x onerror=alert(1)>", "כחול mug"):
            search(text, words.embed_texts([text]))
            assert not page.one("#query").is_displayed()
        page.drop(photo_of("green"), "photo.png")
        wait.until(lambda _: page.one("#query").is_displayed())
        assert page.one("#text").get_attribute("value") == ""
        search(
            "red mug", mixed_query(np.concatenate([words.embed([photo_of("green")]), words.embed_texts(["red mug"])]))
        )
        assert page.one("#caption").text == "photo.png"
        assert browser.get_log("browser") == []
        browser.execute_script(f"location.hash = 'text={'a' * 100_000}'")
        wait.until(lambda _: page.one("#message").text == "the upload may have 64.0 KiB at most; reduce it")
        assert len(page.one("#text").get_attribute("value")) == 100_000
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_a_class_is_typed_scores_have_a_threshold_and_a_list_is_downloaded(neighbours, index):
    page, browser, hits = neighbours, neighbours.driver, index.search_rows([3], k=29)[0]
    page.type("#class", "blu")
    assert page.one("#message").text == "There is no class blu; choose one of the list."
    page.type("#class", "")
    least = f"{(hits[4].score + hits[5].score) / 2:.4f}"
    page.type("#least", least)
    page.until("Nearest images", f"1–5 of those from {least}")
    assert page.rows() == [hit.row for hit in hits[:5]]
    browser.execute_script(
        "const made = URL.createObjectURL;"
        "URL.createObjectURL = blob => { blob.text().then(text => { window.csv = text; }); return made(blob); };"
    )
    page.one("#download").click()
    text = WebDriverWait(browser, 20).until(lambda driver: driver.execute_script("return window.csv"))
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [float(line["score"]) for line in lines] == pytest.approx([hit.score for hit in hits[:5]])
    assert [line["class"] for line in lines] == [str(hit.class_name) for hit in hits[:5]]


def test_the_keyboard_chooses_pages_and_searches(browser, index, tmp_path):
    page = Page(browser)
    (tmp_path / "green.png").write_bytes(photo_of("green"))
    with running_server(index) as port:
        browser.get(f"http://127.0.0.1:{port}/#class=red")
        page.until("Gallery", "1–10 of 10")
        names = [one.text for one in browser.find_elements(By.CSS_SELECTOR, "#list .name:not(.class)")]
        assert {EVIL[0], EVIL[2], EVIL[3]} <= set(names)  # as text
        page.one("#file").send_keys(str(tmp_path / "green.png"))
        page.until("Nearest images", "1–24 of 30")
        assert browser.switch_to.active_element.get_attribute("id") == "heading"
        browser.switch_to.active_element.send_keys(*4 * [Keys.TAB])  # past the filters; "Previous" is disabled
        assert browser.switch_to.active_element.get_attribute("data-step") == "1"
        browser.switch_to.active_element.send_keys(Keys.ENTER)
        page.until("Nearest images", "25–30 of 30")
        last = page.rows()[-1]
        page.one("#list li:last-child a").send_keys(Keys.ENTER)
        page.until("Nearest images", "1–24 of 29")
        assert browser.current_url.endswith(f"#row={last}")
        page.one("#clear").send_keys(Keys.ENTER)
        page.until("Gallery", "1–24 of 30")
    assert browser.get_log("browser") == []


def test_what_is_refused_is_said_on_the_page(browser, index):
    page = Page(browser)
    with running_server(index) as port:
        browser.get(f"http://127.0.0.1:{port}/")
        page.until("Gallery", "1–24 of 30")
        page.drop(b"", "large.png", zeros=21 * 2**20)
        said = page.one("#message")
        assert said.text == "A photo may have 20 MiB at most; large.png has 21.0."
        assert browser.get_log("browser") == []
        page.drop(b"no photo", "text.png")
        page.until("Nearest images", "")
        assert said.text.startswith("the photo is in none of the formats JPEG")
        assert said.get_attribute("class") == "failed"
        WebDriverWait(browser, 5).until(lambda _: not page.one("#preview").is_displayed())  # no broken picture
    browser.get_log("browser")  # a browser notes every refusal of a server

    page.one("#clear").click()
    WebDriverWait(browser, 20).until(lambda _: "does not answer" in page.one("#message").text)


def test_the_page_fits_and_can_be_read(neighbours):
    browser = neighbours.driver
    for width, colours in itertools.product((390, 1280), ("light", "dark")):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        wanted = {"features": [{"name": "prefers-color-scheme", "value": colours}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        ink, paper = browser.execute_script(
            "const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]"
        )
        assert (brightness(ink) > brightness(paper)) == (colours == "dark")
        heights = browser.execute_script(
            "return [...document.querySelectorAll('button, .button, .bar input')].filter(one => one.offsetParent)"
            ".map(one => one.getBoundingClientRect().height)"
        )
        assert min(heights) >= 44  # what a finger must hit


def brightness(colour: str) -> int:
    return sum(int(part) for part in colour.strip("rgb()").split(",")[:3])


def test_equal_names_show_the_folders_that_differ_and_a_cut_list_says_so(neighbours):
    names = ["train/pear/anjou/1.jpg", "test/pear/anjou/1.jpg", "a/b/2.jpg", "a/c/2.jpg", "3.jpg", "x/3.jpg", "y/4.jpg"]
    shown = neighbours.driver.execute_script("return shortNames(arguments[0])", names)
    assert shown == ["train/…/1.jpg", "test/…/1.jpg", "b/2.jpg", "c/2.jpg", "3.jpg", "x/3.jpg", "4.jpg"]
    neighbours.driver.execute_script("limits.most_neighbours = 29; load()")
    neighbours.until("Nearest images", "1–24 of the nearest 29")


def test_a_page_is_as_wide_as_its_screen_and_folded_on_a_phone(browser, tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 4))
    report = aurank.evaluate(rows, np.arange(200) // 2, neighbours=40)
    (tmp_path / "report.html").write_text(report_page(report), encoding="utf-8")
    for width in (1280, 390):
        screen = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width == 390}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        browser.get((tmp_path / "report.html").as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width  # less a scroll bar
        folds = browser.execute_script("return [...document.querySelectorAll('.folds')].map(one => one.open)")
        assert set(folds) == {width > 390}
        # A long list scrolls in its own box, at whose end the first positive stays.
        inside, box, right, end = browser.execute_script(
            "const row = document.querySelector('.row:has(.apart)'), last = row.querySelector('.apart');"
            "return [row.scrollWidth, row.clientWidth, ...[last, row].map(one => one.getBoundingClientRect().right)]"
        )
        assert inside > box
        assert right <= end + 1
    Page(browser).one("nav a[href='#classes']").click()
    assert browser.execute_script("return document.getElementById('classes').open")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_why_shows_both_pictures_and_what_the_maps_explain(browser, tmp_path, neighbours):
    def reason_of_the_second(shown: str) -> str:
        neighbours.one("#list li:nth-child(2) button").click()
        WebDriverWait(browser, 20).until(lambda driver: neighbours.one("#why").is_displayed())
        images = browser.find_elements(By.CSS_SELECTOR, "#maps img")
        assert str([image.get_property("naturalWidth") for image in images]) == shown
        text = str(neighbours.one("#reason").text)
        neighbours.one("#why button").click()
        assert not neighbours.one("#why").is_displayed()
        return text

    assert "no cells" in reason_of_the_second("[]")  # a class token
    name = "timm:test_resnet,pretrained=false,input_size=64"
    photos = write_coloured(tmp_path / "photos", each=2)
    with running_server(build_index(name, ImageSelection(f"folder:{photos}"), out=tmp_path / "index")) as port:
        browser.get(f"http://127.0.0.1:{port}/")
        neighbours.until("Gallery", "1–6 of 6")
        assert not browser.find_elements(By.CSS_SELECTOR, "#list button")
        neighbours.drop(photo_of("green"), "green.png")
        neighbours.until("Nearest images", "1–6 of 6")
        assert reason_of_the_second("[64, 64]").endswith("explained in full")
    assert not [entry for entry in browser.get_log("browser") if "Content Security Policy" in entry["message"]]
