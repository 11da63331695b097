"""How `aurank serve` holds up: several clients search at once, each waiting for its answer before it asks again.

    python tools/bench_serve.py DIR [--clients 10] [--searches 50] [--seconds 60] [--workers 1 2] [--trees . ../before]

DIR is an index. Each number of workers is a server of its own, started as a user would from each source tree, and they
are asked in turns. Four rounds: searches with a photo (its bytes are new each time, so that each is decoded and
embedded), searches with an image of the gallery, pages of the gallery, and their 24 pictures. A round ends after so
many searches of each client, or seconds. Processor time is that of the server's processes, for one request. Memory is
PSS: what processes share counts once.
"""

import http.client
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from measuring import parser_of

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
        return [status(connection, "GET", f"/api/images?offset={start(number)}&limit={PAGE}")]

    def pictures(connection: http.client.HTTPConnection, number: int) -> list[int]:
        shown = range(start(number), min(start(number) + PAGE, len(rows)))
        return [status(connection, "GET", f"/api/images/{row}/thumbnail") for row in shown]

    def start(number: int) -> int:
        return number * PAGE % max(1, len(rows) - PAGE)

    rounds = {"a photo": by_photo, "an image of the gallery": by_row, "a page": page}
    return {**rounds, f"its {PAGE} pictures": pictures}


def photo_bytes(index: ImageIndex, row: int) -> bytes:
    image = index.rows.take([row])
    source = index.sources[int(image["source"][0])]
    if source is None:
        raise SystemExit(f"the images of {index.folder} are gone")
    return source.read_bytes(str(image["path"][0]))


def measure(
    ask: Ask, server: "Server", clients: int, searches: int, seconds: float, *, first: int = 0
) -> tuple[np.ndarray, list[int], float]:
    """Return the seconds of each search, the status of each request, and the seconds of the round."""
    start = time.perf_counter()

    def client(number: int) -> list[tuple[float, list[int]]]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        done = []
        for turn in range(searches):
            if (before := time.perf_counter()) > start + seconds:
                break
            answers = ask(connection, first + number * searches + turn)
            done.append((time.perf_counter() - before, answers))
        connection.close()
        return done

    with ThreadPoolExecutor(clients) as pool:
        done = [search for searches in pool.map(client, range(clients)) for search in searches]
    took = time.perf_counter() - start
    return np.array([each for each, _ in done]), [status for _, answers in done for status in answers], took


class Server:
    def __init__(self, folder: Path, workers: int, tree: Path) -> None:
        self.folder, self.workers, self.tree = folder, workers, tree
        command = [sys.executable, "-m", "aurank", "serve", str(folder), "--port", "0", "--workers", str(workers)]
        # Python looks for modules in the folder that it is started in first.
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tree)
        assert self.process.stdout is not None
        if not (address := re.search(r"http://[^/]+:(\d+)/", self.process.stdout.readline())):
            raise SystemExit("the server did not start")
        self.port = int(address[1])

    def serving(self) -> list[str]:
        pid = str(self.process.pid)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        # Of several workers all are there once each has mapped the index; the first process has let go of it.
        return [one for one in [pid, *children] if str(self.folder) in Path(f"/proc/{one}/maps").read_text()]

    def wait(self) -> None:
        deadline = time.monotonic() + 300
        while len(self.serving()) < self.workers:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.workers} workers did not start")
            time.sleep(0.2)

    def processor_seconds(self) -> float:
        times = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()[11:13] for one in self.serving()]
        return sum(int(ticks) for pair in times for ticks in pair) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> tuple[float, float, float]:
        """Private and shared memory of all processes, the index's part of it, and what the index has on disk."""
        every = [Path(f"/proc/{one}/smaps").read_text() for one in self.serving()]
        mapped = re.compile(
            rf"^\S+ \S+ \S+ \S+ \S+ +{re.escape(str(self.folder))}/.*\n(?:[A-Z].*\n)*?Pss: +(\d+)", re.M
        )
        index = sum(int(kilobytes) for text in every for kilobytes in mapped.findall(text))
        total = sum(int(kilobytes) for text in every for kilobytes in re.findall(r"^Pss: +(\d+)", text, re.M))
        kept = [*self.folder.glob("rows-*/embeddings.npy"), *self.folder.glob("rows-*/index.faiss")]
        return total / 1024, index / 1024, sum(path.stat().st_size for path in kept) / 2**20


def main() -> None:
    parser = parser_of(__doc__, clients=10, searches=50, seconds=60.0, workers=[1], trees=[Path()])
    parser.add_argument("folder", type=Path, metavar="DIR")
    options = parser.parse_args()
    index = ImageIndex.open(options.folder, device="cpu")
    servers: list[Server] = []
    try:
        for workers, tree in itertools.product(options.workers, options.trees):
            servers.append(Server(options.folder.resolve(), workers, tree))
            servers[-1].wait()
        print(f"{len(index):,} images; {options.clients} clients, {options.searches} searches each; milliseconds")
        columns = ["", "tree", "workers", "median", "95 %", "99 %", "worst", "processor", "a second", "errors"]
        print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
        for name, ask in asks(index, np.random.default_rng(0)).items():
            for server in servers:
                measure(ask, server, 4 * server.workers, 2, 60, first=10**6)  # whatever is loaded at first use
                before = server.processor_seconds()
                took, answers, total = measure(ask, server, options.clients, options.searches, options.seconds)
                processor = 1000 * (server.processor_seconds() - before) / len(answers)
                cells = [name, server.tree, server.workers]
                cells += [f"{1000 * np.quantile(took, level):.0f}" for level in (0.5, 0.95, 0.99, 1)]
                cells += [f"{processor:.2f}", f"{len(took) / total:.1f}", sum(answer != 200 for answer in answers)]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)
        for server in servers:
            total, mapped, kept = server.megabytes()
            said = f"{total:.0f} MB (PSS of all), of it {mapped:.1f} of the index, which has {kept:.1f} on disk"
            print(f"{server.tree}, workers {server.workers}: {said}")
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait()


if __name__ == "__main__":
    main()
