"""Makes a public image-retrieval set: a class is an emoji character, and four free sets of drawings are the cameras.

    pip install resvg-py==0.5.0
    python tools/make_emoji_set.py OUT [--packages FOLDER]

`npm pack` fetches the drawings. A character is in the set if the first three styles have it; EmojiOne 2 lacks the
younger ones. Skin tones are left out. Each drawing, OUT/STYLE/CODE.png, has 64 × 64 pixels, on white.
OUT/emoji.csv is a table: label is the character's name, group the style, super_label Unicode's group and subgroup.
No group of Unicode is both trained and tested. The last line is a checksum of the rows and pixels.
"""

import argparse
import base64
import csv
import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path, PurePosixPath

from PIL import Image

TRAINED = ("People & Body", "Flags", "Smileys & Emotion")
PIXELS = 64


STYLES = {  # package on npm, folder of its drawings, licence
    "twemoji": ("emoji-datasource-twitter@16.0.0", "package/img/twitter/64", "Twemoji by Twitter, CC BY 4.0"),
    "noto": ("emoji-datasource-google@16.0.0", "package/img/google/64", "Noto Emoji by Google, Apache 2.0"),
    "openmoji": ("openmoji@17.0.0", "package/color/svg", "OpenMoji, CC BY-SA 4.0"),
    "emojione": ("emojione@2.2.7", "package/assets/png_128x128", "EmojiOne 2, CC BY 4.0"),
}
SHA512 = {  # of the packages, as in npm's lock files
    "twemoji": "7F+uCuHH+7Qnrc15P5tnbvKkg9E6tlzi4MnT2uW1RlN4pLYTza6cP/dstIfSDMtpjFLWuZewWg8jBbuL2eyELQ==",
    "noto": "ZRexfzs7MVoLnmzZmNsO4TKhnAJp5D++Vm6PpUpH/jEQQlemp3l88CjZ+DoZ2faM9R4QxZkOPJCoT8DlPhfQ3A==",
    "openmoji": "EBnYrNGdcdw+OSXmENeNE1yBNRu6tOraTmoOyUbJkTmvT/+XETp8RZLSJFzD3lrPc5N9CzsyPnRTk0Vp4UaI9w==",
    "emojione": "Gbf8qysc34+TFUS5HPwOUY62v8gjLuPmfVTWUR/zirULSYUe/D3MrvYo0W5Y2gScF1YI7EBe5t81IbD8q144Ag==",
}


def character_key(code: str) -> str:
    """Returns a code such as 1F468-200D-1F33E without joiners and variation selectors, which packages may omit."""
    return "-".join(part for part in code.upper().split("-") if part not in ("FE0F", "200D"))


def read_package(style: str, packages: Path) -> dict[str, bytes]:
    """Returns a style's drawings by character, and the package's list of characters under ""."""
    name, folder, _ = STYLES[style]
    archive = packages / f"{name.replace('@', '-')}.tgz"
    if not archive.exists():
        subprocess.run(["npm", "pack", "--silent", name], cwd=packages, check=True, stdout=subprocess.DEVNULL)
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != SHA512[style]:
        raise SystemExit(f"{archive} has the checksum {digest}, not {SHA512[style]}: delete it and try again")
    contents = {}
    with tarfile.open(archive) as package:
        for member in package:
            path = PurePosixPath(member.name)
            if str(path) == "package/emoji.json":
                contents[""] = package.extractfile(member).read()
            elif str(path.parent) == folder:
                contents[character_key(path.stem)] = package.extractfile(member).read()
    return contents


def draw(content: bytes) -> Image.Image:
    """Returns a PNG or SVG at the set's size, on white."""
    if not content.startswith(b"\x89PNG"):
        import resvg_py  # nothing else needs it

        content = bytes(resvg_py.svg_to_bytes(svg_string=content.decode(), width=PIXELS, height=PIXELS))
    drawing = Image.open(io.BytesIO(content)).convert("RGBA")
    white = Image.new("RGBA", drawing.size, "white")
    return Image.alpha_composite(white, drawing).convert("RGB").resize((PIXELS, PIXELS), Image.Resampling.LANCZOS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--packages", type=Path, default=Path("packages"), help="folder of the npm packages")
    arguments = parser.parse_args()
    arguments.packages.mkdir(parents=True, exist_ok=True)
    for style in STYLES:
        (arguments.out / style).mkdir(parents=True, exist_ok=True)
    packages = {style: read_package(style, arguments.packages) for style in STYLES}
    rows, checksum = [("path", "label", "split", "group", "super_label")], hashlib.sha256()
    for character in sorted(json.loads(packages["twemoji"][""]), key=lambda character: character["sort_order"]):
        key, group = character_key(character["unified"]), character["category"]
        styles = [style for style, drawings in packages.items() if key in drawings]
        if group == "Component" or styles[:3] != list(STYLES)[:3]:
            continue
        for style in styles:
            drawing, path = draw(packages[style][key]), f"{style}/{key.lower()}.png"
            drawing.save(arguments.out / path)
            split = "train" if group in TRAINED else "test"
            rows.append((path, character["short_name"], split, style, f"{group}/{character['subcategory']}"))
            checksum.update("\t".join(rows[-1]).encode() + drawing.tobytes())
    with (arguments.out / "emoji.csv").open("w", encoding="utf-8", newline="") as table:
        csv.writer(table).writerows(rows)
    for style, (name, _, licence) in STYLES.items():
        print(f"{style}: {licence}, npm package {name}, sha512 {SHA512[style]}")
    for split in ("train", "test"):
        labels = [row[1] for row in rows if row[2] == split]
        print(f"{split}: {len(labels)} drawings of {len(set(labels))} characters")
    print(f"checksum {checksum.hexdigest()}")


if __name__ == "__main__":
    main()
