"""How `aurank serve` holds up: several clients search at once, each waiting for its answer before it asks again.

    python tools/bench_serve.py DIR [--clients 10] [--searches 50]

DIR is an index. The server is a process of its own, started as a user would. Three rounds: searches with a photo (its
bytes are new each time, so that each is decoded and embedded), searches with an image of the gallery, and pages of the
gallery with their 24 pictures.
"""

import argparse
import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from aurank.commands import ImageIndex

PAGE = 24
FORM = {"content-type": "multipart/form-data; boundary=----part"}
JSON = {"content-type": "application/json"}
Ask = Callable[[http.client.HTTPConnection, int], list[int]]


def status(connection: http.client.HTTPConnection, *request: object) -> int:
    connection.request(*request)  # type: ignore[arg-type]
    answer = connection.getresponse()
    answer.read()
    return answer.status


def asks(index: ImageIndex, random: np.random.Generator) -> dict[str, Ask]:
    rows = random.permutation(len(index))
    photos = [photo_bytes(index, int(row)) for row in rows[:20]]

    def by_photo(connection: http.client.HTTPConnection, number: int) -> list[int]:
        new = photos[number % len(photos)] + str(number).encode()  # readers of images stop before it
        head = b'------part\r\ncontent-disposition: form-data; name="photo"; filename="photo"\r\n\r\n'
        return [status(connection, "POST", "/api/search", head + new + b"\r\n------part--\r\n", FORM)]

    def by_row(connection: http.client.HTTPConnection, number: int) -> list[int]:
        body = json.dumps({"row": int(rows[number % len(rows)]), "limit": PAGE})
        return [status(connection, "POST", "/api/search", body, JSON)]

    def page(connection: http.client.HTTPConnection, number: int) -> list[int]:
        start = number * PAGE % max(1, len(rows) - PAGE)
        listed = [status(connection, "GET", f"/api/images?offset={start}&limit={PAGE}")]
        shown = range(start, min(start + PAGE, len(rows)))
        return listed + [status(connection, "GET", f"/api/images/{row}/thumbnail") for row in shown]

    return {"search with a photo": by_photo, "search with a row": by_row, f"a page and {PAGE} pictures": page}


def photo_bytes(index: ImageIndex, row: int) -> bytes:
    source = index.source_of(row)
    if source is None:
        raise SystemExit(f"the images of {index.folder} are gone")
    return source.read_bytes(str(index.images["path"][row]))


def measure(ask: Ask, port: int, clients: int, searches: int, *, first: int = 0) -> tuple[np.ndarray, int, float]:

    def client(number: int) -> list[tuple[float, int]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        done = []
        for turn in range(searches):
            start = time.perf_counter()
            found = ask(connection, first + number * searches + turn)
            done.append((time.perf_counter() - start, sum(one != 200 for one in found)))
        connection.close()
        return done

    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        done = [one for listed in pool.map(client, range(clients)) for one in listed]
    return np.array([one for one, _ in done]), sum(wrong for _, wrong in done), time.perf_counter() - start


def peak_megabytes(process: int) -> float:
    path = Path(f"/proc/{process}/status")
    found = re.search(r"VmHWM:\s+(\d+)", path.read_text()) if path.exists() else None
    return int(found[1]) / 1024 if found else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--searches", type=int, default=50, help="of each client")
    options = parser.parse_args()
    index = ImageIndex.open(options.folder, device="cpu")
    command = [sys.executable, "-m", "aurank", "serve", str(options.folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not (address := re.search(r"http://[^/]+:(\d+)/", line)):
                raise SystemExit("the server did not start")
            port = int(address[1])
            print(f"{len(index):,} images; {options.clients} clients, {options.searches} searches each; milliseconds")
            print("| | median | 95 % | 99 % | worst | a second | errors |\n|---|---|---|---|---|---|---|")
            for name, ask in asks(index, np.random.default_rng(0)).items():
                measure(ask, port, 1, 2, first=10**6)  # whatever is loaded at first use
                took, wrong, total = measure(ask, port, options.clients, options.searches)
                shown = " | ".join(f"{1000 * np.quantile(took, level):.0f}" for level in (0.5, 0.95, 0.99, 1))
                print(f"| {name} | {shown} | {len(took) / total:.1f} | {wrong} |", flush=True)
            print(f"most memory of the server: {peak_megabytes(server.pid):.0f} MB")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
