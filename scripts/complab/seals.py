"""Did this machine itself make what it is about to load? Caches and precompiled headers are code.

A manifest says what a folder must hold, but whoever brings a folder can bring its manifest as well. So
what is sealed here gets a mark that only this user on this machine can make: an HMAC of the manifest's
root hash under a key that never leaves the user's own state folder.
"""

import contextlib
import hmac
import os
import secrets
from pathlib import Path

from complab.errors import EnvironmentProblem

KEY = "seal.key"
KEY_BYTES = 32


def mark(root: str) -> str:
    """This machine's mark on a root hash, 64 hex digits."""
    return hmac.new(_key(), root.encode(), "sha256").hexdigest()


def ours(root: str, marked: object) -> bool:
    """Whether ``marked`` is this machine's mark on the root hash."""
    return isinstance(marked, str) and hmac.compare_digest(mark(root).encode(), marked.encode())


def _folders() -> list[Path]:
    """Where the key may lie: the user's state folder, or where no home can be written one of its own."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return [Path(state, "complab"), Path(f"/var/tmp/complab-state-{os.getuid()}")]


def _key() -> bytes:
    for folder in _folders():
        with contextlib.suppress(OSError):
            return _key_in(folder)
    raise EnvironmentProblem(
        f"{_folders()[0]}: the key that seals caches can be kept neither there nor in /var/tmp; "
        "set XDG_STATE_HOME to a writable folder"
    )


def _key_in(folder: Path) -> bytes:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / KEY
    if not path.exists():
        private = folder / f".{KEY}.{os.getpid()}.{secrets.token_hex(4)}"
        descriptor = os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(secrets.token_bytes(KEY_BYTES))
        # A link fails where another process was first: then both use the key of that one.
        with contextlib.suppress(FileExistsError):
            os.link(private, path)
        private.unlink()
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as stream:
        about, key = os.fstat(descriptor), stream.read()
    if about.st_uid != os.getuid() or about.st_mode & 0o077 or len(key) != KEY_BYTES:
        raise EnvironmentProblem(
            f"{path}: is not a key that only you can read; remove it, and what it sealed is made again"
        )
    return key
