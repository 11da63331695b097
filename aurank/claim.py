"""One command that writes to a folder or a file at a time: a claim that ends with its owner, however that ends."""

import contextlib
import importlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aurank.errors import UserError

fcntl: Any = None
with contextlib.suppress(ImportError):  # on Windows, where the signs of life have to do
    fcntl = importlib.import_module("fcntl")

LOCK = ".lock"
BEAT = 5.0  # seconds between two signs of life
WATCHED = 3  # signs of life that a lock of another machine is watched for

_held: set[int] = set()  # descriptors of locks


def _close_held() -> None:
    """Close the locks in a forked worker: one that outlives a killed run would go on holding its lock."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_held)


@contextmanager
def claimed(out: Path, doing: str = "trains into it", *, is_file: bool = False, name: str = "--out") -> Iterator[None]:
    """Create ``out`` and keep other commands from writing to it while the context lasts; if it ends empty, remove it.

    The lock is the kernel's, which ends it with its owner. Some network folders keep it from other machines: there a
    file says whose it is, and shows that it lives.

    Args:
        doing: what the process does there, for others that come.
        is_file: whether ``out`` is a file to write, and not a folder; its folder is created.
        name: what a message calls ``out``.

    Raises:
        UserError: another process writes there; names it. Or the folder cannot be written, or holds a file of the
            lock's name that is no lock.
    """
    path = out.with_name(f".{out.name}{LOCK}") if is_file else out / LOCK
    folder, ended = path.parent, threading.Event()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{name} {folder} is a file; name a folder")
    created = [one for one in (folder, *folder.parents) if not one.exists()]
    with contextlib.ExitStack() as stack:
        stack.callback(_remove_empty, created)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = _acquire(path, doing, f"{name} {out}")
        except OSError as error:
            raise UserError(
                f"cannot write to {name} {out}: {error.strerror or error}; name a folder that can be written"
            ) from error
        stack.callback(_release, path, descriptor, os.getpid())
        stack.callback(ended.set)
        threading.Thread(target=_beat, args=(path, ended), daemon=True).start()
        yield


def _acquire(path: Path, doing: str, claim: str) -> int:
    """The descriptor of the file, locked and with this process's name in it."""
    while True:
        if path.is_symlink():  # O_NOFOLLOW sees one that comes after this
            raise _foreign(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            owner, own = _owner(path, descriptor), {**_this_process(), "doing": doing}
            locked = _lock(descriptor, owner, claim)
            # A run that ended in between has removed its file, and a third may have created and locked a new one.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.lstat()):
                    if owner and not (locked and owner.get("machine") == own["machine"]) and _lives(path):
                        raise _in_use(owner, claim)
                    os.truncate(descriptor, 0)
                    os.pwrite(descriptor, json.dumps(own).encode(), 0)
                    _held.add(descriptor)
                    return descriptor
            os.close(descriptor)
        except BaseException:
            os.close(descriptor)
            raise


def _lock(descriptor: int, owner: dict[str, Any], claim: str) -> bool:
    """Whether the file is locked now, False where the file system knows no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(owner, claim) from None
    except OSError:
        return False
    return True


def _in_use(owner: dict[str, Any], claim: str) -> UserError:
    who = f"process {owner['pid']} on {owner['host']}, since {owner['since']}" if owner else "another process"
    doing = owner.get("doing", "writes to it")
    return UserError(f"{claim} is in use: {who}, {doing}; wait for it or stop it, or name another place")


def _foreign(path: Path) -> UserError:
    return UserError(f"{path} is not the lock of an aurank run; move it away, or name another --out")


def _this_process() -> dict[str, Any]:
    # Containers of one kernel have names of their own and share its locks.
    host, machine = socket.gethostname(), ""
    with contextlib.suppress(OSError):
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"host": host, "pid": os.getpid(), "since": since, "machine": machine or host}


def _owner(path: Path, descriptor: int) -> dict[str, Any]:
    """Whose name is in the file, nothing where it is empty; UserError where it holds something else."""
    content = os.pread(descriptor, 4096, 0)
    try:
        found = json.loads(content) if content else {}
    except ValueError:
        raise _foreign(path) from None
    if content and not (isinstance(found, dict) and {"host", "pid", "since"} <= found.keys()):
        raise _foreign(path)
    return dict(found)


def _lives(path: Path) -> bool:
    """Whether the owner shows a sign of life while being watched; clocks of different machines are not compared."""
    seen = set()
    with contextlib.suppress(FileNotFoundError):
        for _ in range(WATCHED * 4 + 1):
            with path.open("rb") as file:  # opening makes a network folder ask its server
                seen.add(os.fstat(file.fileno()).st_mtime_ns)
            if len(seen) > 1:
                return True
            time.sleep(BEAT / 4)
    return False


def _beat(path: Path, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        with contextlib.suppress(OSError):
            os.utime(path)


def _release(path: Path, descriptor: int, owner: int) -> None:
    if os.getpid() == owner and descriptor in _held:
        _held.remove(descriptor)
        with contextlib.suppress(OSError):
            # While it is locked nobody else's can be met, but where the folder was replaced by a new one.
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                path.unlink()
        os.close(descriptor)


def _remove_empty(folders: list[Path]) -> None:
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()
