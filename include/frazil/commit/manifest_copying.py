"""Copies a manifest's entries, without decoding them, into a manifest that replaces it.

Other engines write entries with fields that PyIceberg does not know. Entries that are not decoded keep these fields
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import SYNC_SIZE, AvroFile
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.schema import Schema

_FIELDS = [(0, True), (1, False), (3, False), (4, False), (2, True)]
"""The field ids of a manifest entry in format version 2, and whether each field is required. The last field is the data
file.
"""


@dataclass(frozen=True, slots=True)
class CopiedEntries:
    """The header and the live entries of a manifest, in order."""

    schema: Schema
    header: Mapping[str, str]
    data_files: tuple[bytes, ...]
    """The encoded data file of each entry."""

    @classmethod
    def of(cls, manifest: ManifestFile, io: FileIO) -> CopiedEntries | None:
        """Copy a manifest's entries; returns None for a manifest of format version 1, whose entries have other
        fields.
        """
        file = _Blocks(io.new_input(manifest.manifest_path))
        with file:
            if [(field.field_id, field.required) for field in file.schema.fields] != _FIELDS:
                return None
            readers = [reader for _, reader in construct_reader(file.schema).field_readers]  # type: ignore[attr-defined]
            found = []
            for count, block in file.blocks():
                decoder = new_decoder(block)
                for _ in range(count):
                    status, *_ = (reader.read(decoder) for reader in readers[:-1])
                    start = decoder.tell()
                    readers[-1].read(decoder)  # PyIceberg cannot skip maps
                    if status != ManifestEntryStatus.DELETED:
                        found.append(block[start : decoder.tell()])
            return cls(file.schema, file.header.meta, tuple(found))

    def writer(self) -> CopyingWriter:
        return CopyingWriter(iter(self.data_files))


@dataclass(frozen=True, slots=True)
class CopyingWriter:
    """Replaces Avro's record writer; takes entries in the order in which their data files were copied."""

    data_files: Iterator[bytes]

    def write(self, encoder: BinaryEncoder, entry: ManifestEntry) -> None:
        encoder.write_int(entry.status)
        for number in (entry.snapshot_id, entry.sequence_number, entry.file_sequence_number):
            encoder.write_int(0 if number is None else 1)
            if number is not None:
                encoder.write_int(number)
        encoder.write(next(self.data_files))


class _Blocks(AvroFile[ManifestEntry]):
    """An Avro file that yields its blocks decompressed but not decoded."""

    def blocks(self) -> Iterator[tuple[int, bytes]]:
        codec = self.header.compression_codec()
        while True:
            try:
                count = self.decoder.read_int()
            except EOFError:
                return
            block = self.decoder.read_bytes()
            yield count, codec.decompress(block) if codec else block
            if self.decoder.read(SYNC_SIZE) != self.header.sync:
                raise ValueError(f"{self.input_file.location}: a block does not end with the file's sync marker")
