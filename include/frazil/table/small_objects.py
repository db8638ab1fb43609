"""Makes PyIceberg write a small S3 object in one request instead of three.

By default Arrow opens every S3 file as a multipart upload: create, put a part, complete. A commit writes two or three
small files (manifest, manifest list, metadata), so uploads were two thirds of its requests. With a delayed open, Arrow
sends a file that fits into one part (5 MiB) as one object when it is closed; larger files remain uploads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.catalog import Catalog


def write_small_objects_at_once(catalog: Catalog) -> Catalog:
    """Apply this to the catalog's tables that are in S3 and read by Arrow; leave others unchanged."""
    load = catalog._load_file_io

    def loaded(*arguments: Any, **named: Any) -> Any:
        io = load(*arguments, **named)
        # By name: importing the class would load Arrow for catalogs that do not need it.
        # A retry strategy of the user's own would not survive the rebuilding.
        if type(io).__name__ == "PyArrowFileIO" and "s3.retry-strategy-impl" not in io.properties:
            io._initialize_s3_fs = _delayed(io._initialize_s3_fs)  # type: ignore[attr-defined]
        return io

    catalog._load_file_io = loaded  # type: ignore[method-assign]
    return catalog


def _delayed(initialize: Callable[[str | None], Any]) -> Callable[[str | None], Any]:
    def initialized(netloc: str | None) -> Any:
        # Like pickling: credentials that were not given are looked up again, not copied.
        rebuild, (settings, *more) = initialize(netloc).__reduce__()
        return rebuild({**settings, "allow_delayed_open": True}, *more)

    return initialized
