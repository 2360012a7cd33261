"""Atomic writing of files."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..common.errors import InputError

#: Endings of files of pictures.
PICTURES = (".png", ".svg", ".pdf")
#: Endings of files of self-contained pages.
PAGES = (".htm", ".html")

_REMEDY = {
    errno.ENOENT: "the folder does not exist; make it first",
    errno.ENOTDIR: "a part of the path is not a folder; correct it",
    errno.EISDIR: "it is a folder; name a file in it",
    errno.EACCES: "no permission to write there; choose another folder",
    errno.EPERM: "no permission to write there; choose another folder",
    errno.EROFS: "the disk is read-only; choose another folder",
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "it would be longer than files may be here; see ulimit -f",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


def check_target(path: Path, endings: Sequence[str] = ()) -> None:
    """Refuse a path that cannot be written to, before the work whose result it would hold.

    InputError if its folder does not exist, nothing may be written there, it is a folder itself,
    or its name has none of the `endings` (if there are any).
    """
    try:
        there, taken = path.absolute().parent.is_dir(), path.is_dir()
        target = Path(os.path.realpath(path))
        special = target.exists() and not target.is_file()  # written straight, not beside itself
        writable = [file for file in (target.parent, target) if file.exists() and not special]
    except (OSError, ValueError) as error:  # a name that is too long, or holds a null character
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{str(path)[:200]}: it cannot be written: {reason}") from None
    if not there:
        raise InputError(f"{path}: its folder does not exist; create it first")
    if taken:
        raise InputError(f"{path}: it is a folder; name a file in it")
    if endings and path.suffix.lower() not in endings:
        raise InputError(f"{path}: it must end in {', '.join(endings[:-1])} or {endings[-1]}")
    if not all(os.access(file, os.W_OK) for file in writable):
        raise InputError(f"{path}: {_REMEDY[errno.EACCES]}")


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file completely or not at all: a reader of `path` sees the old content or the new.

    A temporary file in the same folder is forced to disk and renamed; links are followed. Pipes,
    ``/dev/stdout`` and the like are written directly. After InputError nothing has changed.
    """
    try:
        data = content.encode() if isinstance(content, str) else content
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
            return
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "not writable")
        _replace(target, data)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not written: {why_not(error)}") from None


def why_not(error: Exception) -> str:
    """Return the reason why a file could not be written, or its remedy if one is known."""
    known = _REMEDY.get(getattr(error, "errno", None) or 0)
    return known or getattr(error, "strerror", None) or str(error)


def _replace(target: Path, data: bytes) -> None:
    beside = target.parent / f".stagecut-{secrets.token_hex(8)}.tmp"
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(beside, target)
    except BaseException:
        with suppress(FileNotFoundError):
            beside.unlink()
        raise


def json_text(document: dict[str, object]) -> str:
    """Return readable JSON: a line per key, and a line per item of lists of objects or lists.

    Floats are written with the digits that bring them back exactly.
    """
    lines = []
    for key, value in document.items():
        lines.append(f"  {_inline(key)}: {_lines(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(value: object, indent: str = "    ") -> str:
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(indent + _inline(item) for item in value) + f"\n{indent[2:]}]"
    if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
        items = [f"{indent}{_inline(k)}: {_lines(v, indent + '  ')}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent[2:]}}}"
    return _inline(value)


def _inline(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
