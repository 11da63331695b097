"""The emoji set, of two small packages in the layout of the real ones."""

import base64
import hashlib
import io
import json
import sys
from pathlib import Path

import make_emoji_set
import numpy as np
import pytest
from PIL import Image
from testing.inputs import add_to_tar

from aurank.data.readers.table import read_table

CHARACTERS = {  # Unicode's group, code and name; the list is out of order
    "1F436": ("Animals & Nature", "dog"),
    "2764-FE0F": ("Smileys & Emotion", "heart"),
    "1F600": ("Smileys & Emotion", "grinning"),
    "1F3FB": ("Component", "skin-tone-2"),
    "1FAE8": ("Animals & Nature", "moose"),  # of one package
    "260E-FE0F": ("Objects", "phone"),
}


def drawing(code: str, pixels: int) -> bytes:
    """A PNG that is transparent but for a square in the middle."""
    image = np.zeros((pixels, pixels, 4), dtype=np.uint8)
    image[pixels // 4 : -pixels // 4, pixels // 4 : -pixels // 4] = (*hashlib.sha256(code.encode()).digest()[:3], 255)
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    listed = [
        {"unified": code, "short_name": name, "category": group, "subcategory": "all", "sort_order": number % 4}
        for number, (code, (group, name)) in enumerate(CHARACTERS.items())
    ]
    first = {f"package/img/64/{code.lower()}.png": drawing(code, 64) for code in CHARACTERS}
    first |= {"package/emoji.json": json.dumps(listed).encode(), "package/img/64/more/1f600.png": b"of another size"}
    second = {f"package/png/{code.removesuffix('-FE0F')}.png": drawing(code, 128) for code in CHARACTERS}
    del second["package/png/1FAE8.png"]
    folder = tmp_path / "packages"
    folder.mkdir()
    for name, members in {"first-1.tgz": first, "second-2.tgz": second}.items():
        add_to_tar(folder / name, members)
    styles = {"twemoji": ("first@1", "package/img/64", "free"), "noto": ("second@2", "package/png", "free too")}
    archives = {style: (folder / f"{name.replace('@', '-')}.tgz").read_bytes() for style, (name, *_) in styles.items()}
    digests = {style: hashlib.sha512(content).digest() for style, content in archives.items()}
    monkeypatch.setattr(make_emoji_set, "STYLES", styles)
    checksums = {style: base64.b64encode(digest).decode() for style, digest in digests.items()}
    monkeypatch.setattr(make_emoji_set, "SHA512", checksums)
    return folder


def make(out: Path, packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_emoji_set.py", str(out), "--packages", str(packages)])
    make_emoji_set.main()


def test_characters_of_every_style_are_classes_by_style_drawn_on_white(packages, tmp_path, monkeypatch, capsys):
    make(tmp_path / "emoji", packages, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("twemoji: free, npm package first@1, sha512 ")
    assert lines[2:4] == ["train: 4 drawings of 2 characters", "test: 4 drawings of 2 characters"]
    rows = (tmp_path / "emoji/emoji.csv").read_text().splitlines()
    assert rows[1::2] == [
        "twemoji/1f436.png,dog,test,twemoji,Animals & Nature/all",
        "twemoji/2764.png,heart,train,twemoji,Smileys & Emotion/all",
        "twemoji/260e.png,phone,test,twemoji,Objects/all",
        "twemoji/1f600.png,grinning,train,twemoji,Smileys & Emotion/all",
    ]
    assert rows[2::2] == [row.replace("twemoji", "noto") for row in rows[1::2]]
    manifest = read_table(tmp_path / "emoji", file="emoji.csv")
    assert manifest.group_names == ("twemoji", "noto")
    assert len(set(manifest.super_labels)) == 3
    color = hashlib.sha256(b"2764-FE0F").digest()[:3]
    for style in ("twemoji", "noto"):
        with Image.open(tmp_path / "emoji" / style / "2764.png") as image:
            pixels = np.asarray(image)
        assert pixels.shape == (64, 64, 3)
        assert (pixels[:8] == 255).all()
        assert (pixels[20:-20, 20:-20] == np.frombuffer(color, np.uint8)).all()


def test_the_set_follows_from_its_packages(packages, tmp_path, monkeypatch, capsys):
    for name in ("first", "second"):
        make(tmp_path / name, packages, monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("checksum ")
    assert printed[-1] == printed[len(printed) // 2 - 1]
    add_to_tar(packages / "second-2.tgz", {"package/png/1FAE8.png": b"another"})
    with pytest.raises(SystemExit, match=r"second-2\.tgz has the checksum .*: delete it and try again"):
        make(tmp_path / "third", packages, monkeypatch)
    assert not (tmp_path / "third/emoji.csv").exists()
