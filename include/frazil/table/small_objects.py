"""Makes PyIceberg write a small S3 object with one request instead of three.

By default Arrow uploads every S3 file in three requests: create a multipart upload, put a part, complete. A commit
writes two or three small files (manifest, manifest list, metadata), so uploads were two thirds of its requests. With a
delayed open, Arrow waits until the file is closed. A file that fits into one part (5 MiB) is then sent as one object;
larger files are still uploaded in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.catalog import Catalog


def write_small_objects_at_once(catalog: Catalog) -> Catalog:
    """Enable the delayed open for tables in S3 that Arrow reads and writes.

    Other tables of the catalog are unaffected.
    """
    load = catalog._load_file_io

    def loaded(*arguments: Any, **named: Any) -> Any:
        io = load(*arguments, **named)
        # The class is compared by name, because importing it would load Arrow for catalogs that do not need it. A
        # user's own retry strategy is left alone: it would be lost when the file system is rebuilt.
        if type(io).__name__ == "PyArrowFileIO" and "s3.retry-strategy-impl" not in io.properties:
            io._initialize_s3_fs = _delayed(io._initialize_s3_fs)  # type: ignore[attr-defined]
        return io

    catalog._load_file_io = loaded  # type: ignore[method-assign]
    return catalog


def _delayed(initialize: Callable[[str | None], Any]) -> Callable[[str | None], Any]:
    def initialized(netloc: str | None) -> Any:
        # As with pickling, credentials that were not given explicitly are looked up again, not copied.
        rebuild, (settings, *more) = initialize(netloc).__reduce__()
        return rebuild({**settings, "allow_delayed_open": True}, *more)

    return initialized
