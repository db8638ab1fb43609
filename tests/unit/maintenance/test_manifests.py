"""When manifests are rewritten, and when not again."""

from __future__ import annotations

import pytest

from frazil.maintenance.due import DEFAULT_MANIFEST_BYTES, plan_manifests
from frazil.maintenance.health import ManifestGroup
from frazil.spec.maintenance import Manifests


@pytest.mark.parametrize(
    ("manifests", "spec_ids"),
    [
        ([(0, False, 9, 9)], ()),
        ([(0, False, 10, 10)], (0,)),
        ([(0, False, 10, 5 * DEFAULT_MANIFEST_BYTES)], (0,)),
        ([(0, False, 10, 5 * DEFAULT_MANIFEST_BYTES + 1)], ()),
        ([(0, False, 1, 1), (1, False, 9, 9)], (1,)),
        ([(0, False, 6, 6), (1, False, 6, 6)], (0, 1)),
        ([(0, False, 1, 1), (0, True, 9, 9)], (0,)),
        ([(spec, deletes, 1, 1) for spec in range(5) for deletes in (False, True)], ()),
        ([], ()),
    ],
)
def test_manifests_are_rewritten_where_there_are_many_and_half_of_them_would_do(manifests, spec_ids):
    assert plan_manifests([ManifestGroup(*of) for of in manifests], Manifests(max_count=10)).spec_ids == spec_ids


def test_only_manifests_of_one_spec_and_content_become_fewer():
    groups = [ManifestGroup(0, False, 9, 9), ManifestGroup(0, True, 1, 1), ManifestGroup(1, False, 1, 1)]
    assert plan_manifests(groups, Manifests(max_count=10)).sentence == "11 manifests become about 3"


def test_a_manifest_rewrite_with_a_small_target_size_needs_more_manifests():
    plan = plan_manifests([ManifestGroup(0, False, 10, 1_000)], Manifests(max_count=10), target_bytes=100)
    assert not plan.spec_ids
    assert plan.sentence == "a rewrite would not halve 10 manifests: 10 would remain"
