"""Compiles loops over the bytes of records with Numba: the decorator, its cache, and access to raw memory.

The cache is the folder `compiled/<digest>` in the user's cache folder, or else in the system's temporary folder. The
digest covers Numba's version, flags and all sources.
"""

# ruff: noqa: ARG001, ARG002 - intrinsics generate code from the types of their arguments; listeners get events

from __future__ import annotations

import fcntl
import grp
import hashlib
import inspect
import logging
import os
import pwd
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, TypeVar

import numba
from llvmlite import ir
from numba.core import caching, cgutils, types
from numba.core.event import Event, Listener, register
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from frazil.home import cache_folder
from frazil.ingest.progress import compilation

log = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])

PREFIX_FOLDER = Path("share", "frazil", "compiled")
"""Folder below Python's prefix. Container images and archives of `frazil package` store compiled code there."""
MAX_UNUSED_S = 30 * 86_400
SOURCES = ("frazil.ingest", "frazil.kafka")
"""Packages whose source code affects compiled code. `frazil.kafka` defines the layout of a message."""
NUMBA_FLAGS = ("BOUNDSCHECK", "OPT", "DEBUGINFO_DEFAULT")
"""Flags that change the code but are not in Numba's cache key: NUMBA_BOUNDSCHECK, NUMBA_OPT and NUMBA_DEBUGINFO."""
_saving = threading.Lock()
_warned = False
_notice: str | None = None
_compiled: str | None = None


class _CompilationListener(Listener):  # type: ignore[misc]
    def on_start(self, event: Event) -> None:
        compilation.begin()

    def on_end(self, event: Event) -> None:
        compilation.end()


register("numba:compile", _CompilationListener())


def compiled(function: Function, *, allocates: bool = True) -> Function:
    """Compile the function when it is first called with given argument types, or load its code from the cache.

    The code releases the GIL, does not check indexes, and divides as NumPy does. Always pass arrays of the same layout:
    a read-only or non-contiguous array causes another compilation. An address (`array.ctypes.data`) is an int64. With
    `allocates=False`, arrays have no reference counts; the function must not allocate memory.
    """
    dispatcher: Any = numba.njit(nogil=True, error_model="numpy", _nrt=allocates)(function)
    dispatcher._cache = _Cache(function)  # like `cache=True`, but with a cache that cannot fail
    return dispatcher  # type: ignore[no-any-return]


def compiler_notices() -> tuple[str, ...]:
    """Return notices for operators about compilation since the last call. Every call reports a missing cache."""
    global _compiled
    notice, _compiled = _notice or _compiled, None
    return () if notice is None else (notice,)


def start_compiler() -> None:
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


class _Cache(caching.NullCache):  # type: ignore[misc]
    """Numba's cache for one function. If the cache fails, the function is compiled in memory."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._inner: Any = None

    @property
    def cache_path(self) -> str | None:
        folder = code_folder()
        return None if folder is None else str(folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return self._open_inner().load_overload(sig, target_context)
        except Exception:  # a damaged cache file is replaced
            with suppress(Exception):
                self._open_inner().flush()
            return None

    def save_overload(self, sig: Any, cres: Any) -> None:
        global _compiled  # noqa: PLW0603 - as in `compiler_notices`
        _compiled = (
            "the loops over records had to be compiled while a batch waited, which takes seconds of CPU once per user, "
            "host and version. To compile them beforehand, run `python -m frazil.ingest.precompile`"
        )
        try:
            if (folder := code_folder()) is not None:
                with _saving, (folder / "lock").open("a") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    self._open_inner().save_overload(sig, cres)
        except Exception as error:
            _warn_uncached(error)

    def _open_inner(self) -> Any:
        if self._inner is None:
            self._inner = caching.NullCache() if code_folder() is None else _FunctionCache(self._function)
        return self._inner


class _Locator(caching.UserProvidedCacheLocator):  # type: ignore[misc]
    """Locates the cache of compiled code by module name. Also works for modules inside archives."""

    def __init__(self, py_func: Any, _: str) -> None:
        self._function = py_func
        self._lineno = py_func.__code__.co_firstlineno
        # Use the module's name, not the file's path: an unpacked package may be elsewhere.
        self._cache_path = str((code_folder() or Path()) / py_func.__module__)

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _Locator:
        return cls(py_func, py_file)

    def get_source_stamp(self) -> str:
        return inspect.getsource(self._function)


class _CacheImpl(caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator,)


class _FunctionCache(caching.Cache):  # type: ignore[misc]
    _impl_class = _CacheImpl


@cache
def code_folder() -> Path | None:
    """Return the folder of compiled code, created if missing; None if no folder can be used.

    The first choice is a folder inside Python's prefix, which may have any owner, like installed packages.
    """
    if (prefix_folder := _prefix_folder()) is not None:
        return prefix_folder
    folders = []
    for base in (cache_folder() / "compiled", Path(tempfile.gettempdir(), f"frazil-{os.getuid()}", "compiled")):
        folder = base / _DIGEST
        try:
            is_new = not folder.exists()
            for owned in (base.parent, base, folder):
                owned.mkdir(mode=0o700, parents=True, exist_ok=True)
                _check_owner(owned)
            if is_new:
                _remove_old(base)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            folders.append(str(error))
        else:
            return folder
    _warn_uncached("; ".join(folders))
    return None


def _prefix_folder() -> Path | None:
    base = Path(sys.prefix) / PREFIX_FOLDER
    folder = base / _DIGEST
    if base.is_dir():
        with suppress(OSError):  # the image may be read-only
            folder.mkdir(exist_ok=True)
    return folder if folder.is_dir() else None


def _remove_old(base: Path) -> None:
    for folder in base.iterdir():
        with suppress(OSError):  # another process removes it
            if time.time() - folder.stat().st_mtime > MAX_UNUSED_S:
                shutil.rmtree(folder)


def _check_owner(folder: Path) -> None:
    status = folder.stat()
    by_group = status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid)
    if status.st_uid != os.getuid() or status.st_mode & stat.S_IWOTH or by_group:
        raise PermissionError(f"another user owns {folder} or can write to it; run `chmod go-w {folder}` as its owner")


def _is_private(group: int) -> bool:
    """Return whether the group is the user's private group, without other members."""
    try:
        user, group_entry = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and group_entry.gr_name == user.pw_name and set(group_entry.gr_mem) <= {user.pw_name}


def _digest() -> str:
    flags = [str(getattr(numba.config, name)) for name in NUMBA_FLAGS]
    digest = hashlib.sha256(" ".join([numba.__version__, *flags]).encode())
    for package in SOURCES:
        for source in _sources(resources.files(package)):
            digest.update(source)
    return digest.hexdigest()[:16]


def _sources(folder: Traversable) -> Iterator[bytes]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _sources(entry)
        elif entry.name.endswith(".py"):
            yield entry.read_bytes()


_DIGEST = _digest()


def _warn_uncached(reason: object) -> None:
    global _notice, _warned  # noqa: PLW0603 - set once per process
    _notice = (
        "compiled code cannot be cached, so each Python process that reads records spends seconds of CPU to compile "
        f"it: {reason}. Set XDG_CACHE_HOME for the writer and its executors to a folder that their user can write to"
    )
    if not _warned:
        log.warning("compiled code cannot be cached, and each process compiles its own: %s", reason)
    _warned = True


_byte = ir.IntType(8).as_pointer()


@intrinsic  # type: ignore[untyped-decorator]
def load32(_: Any, address: types.Integer) -> Any:
    return types.int32(types.int64), _load(32)


@intrinsic  # type: ignore[untyped-decorator]
def load64(_: Any, address: types.Integer) -> Any:
    return types.int64(types.int64), _load(64)


@intrinsic  # type: ignore[untyped-decorator]
def load_big_endian(_: Any, address: types.Integer) -> Any:
    return types.uint64(types.int64), lambda *call: call[1].bswap(_load(64)(*call))


def _load(bits: int) -> Any:
    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer()), align=1)

    return generate


@intrinsic  # type: ignore[untyped-decorator]
def store64(_: Any, address: types.Integer, value: types.Integer) -> Any:
    def generate(context: Any, builder: Any, __: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def memcpy(_: Any, to: types.Integer, source: types.Integer, count: types.Integer) -> Any:
    """Copy `count` bytes from one address to another. The two areas must not overlap."""
    return _copy(cgutils.raw_memcpy)


@intrinsic  # type: ignore[untyped-decorator]
def memmove(_: Any, to: types.Integer, source: types.Integer, count: types.Integer) -> Any:
    """Copy `count` bytes from one address to another. The two areas may overlap."""
    return _copy(cgutils.raw_memmove)


def _copy(build: Any) -> Any:
    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        pointers = [builder.inttoptr(argument, _byte) for argument in arguments[:2]]
        build(builder, *pointers, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def load8(_: Any, address: types.Integer) -> Any:
    return types.uint8(types.int64), _load(8)


@intrinsic  # type: ignore[untyped-decorator]
def call64(_: Any, function: types.Integer, first: types.Integer, second: types.Integer) -> Any:
    """Call the C function `int64_t f(void *, void *)` at an address."""
    return types.int64(types.int64, types.int64, types.int64), _call


@intrinsic  # type: ignore[untyped-decorator]
def call_with_outputs(
    _: Any, function: types.Integer, pointer: types.Integer, index: types.Integer, to: types.Integer
) -> Any:
    """Call the C function `int f(void *, size_t, void **, void **, size_t *)`. Stores its outputs at address `to`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        outputs = [builder.add(arguments[3], ir.IntType(64)(8 * i)) for i in range(3)]
        return _call(context, builder, signature, [*arguments[:3], *outputs])

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


def _call(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
    word = ir.IntType(64)  # passed like a pointer
    function = ir.FunctionType(word, [word] * len(arguments[1:])).as_pointer()
    return builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
