"""Decides whether a table's manifests are worth a rewrite. Pure, from the number and size of the manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from frazil.spec.maintenance import Manifests
from frazil.spec.units import counted

TARGET_BYTES = 8 * 2**20
"""Iceberg's default of `commit.manifest.target-size-bytes`."""
TARGET_PROPERTY = "commit.manifest.target-size-bytes"


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    spec_ids: tuple[int, ...]
    """Ids of the partition specs whose manifests are rewritten; Iceberg rewrites one spec at a time."""
    sentence: str


def plan_manifests(
    manifests: Mapping[int, tuple[int, int]], settings: Manifests, *, target_bytes: int = TARGET_BYTES
) -> ManifestPlan:
    """Plan a rewrite of manifests if there are too many and a rewrite at least halves their number.

    Many large manifests are therefore left unchanged. `manifests` maps the id of each partition spec to the number and
    total bytes of its manifests.
    """
    total = sum(count for count, _ in manifests.values())
    if total < settings.most:
        return ManifestPlan((), f"{counted(total, 'manifest', 'is|are')} fewer than {settings.most:,}")
    ideal = {spec: max(-(-size // target_bytes), 1) for spec, (_, size) in manifests.items()}
    worth = tuple(spec for spec, (count, _) in sorted(manifests.items()) if 2 * ideal[spec] <= count)
    if not worth:
        return ManifestPlan(
            (), f"{counted(total, 'manifest')} would not be halved: their bytes take {sum(ideal.values()):,}"
        )
    left = total - sum(manifests[spec][0] - ideal[spec] for spec in worth)
    return ManifestPlan(worth, f"{counted(total, 'manifest', 'becomes|become')} about {left:,}")
