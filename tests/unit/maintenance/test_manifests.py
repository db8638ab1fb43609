"""When manifests are rewritten, and when not again."""

from __future__ import annotations

import pytest

from frazil.maintenance.due import DEFAULT_MANIFEST_BYTES, plan_manifests
from frazil.spec.maintenance import Manifests


@pytest.mark.parametrize(
    ("manifests", "spec_ids"),
    [
        ({0: (9, 9)}, ()),
        ({0: (10, 10)}, (0,)),
        ({0: (10, 5 * DEFAULT_MANIFEST_BYTES)}, (0,)),
        ({0: (10, 5 * DEFAULT_MANIFEST_BYTES + 1)}, ()),
        ({0: (1, 1), 1: (9, 9)}, (1,)),
        ({0: (6, 6), 1: (6, 6)}, (0, 1)),
        ({}, ()),
    ],
)
def test_manifests_are_rewritten_where_there_are_many_and_half_of_them_would_do(manifests, spec_ids):
    assert plan_manifests(manifests, Manifests(most=10)).spec_ids == spec_ids


def test_a_smaller_target_needs_more_of_them():
    plan = plan_manifests({0: (10, 1_000)}, Manifests(most=10), target_bytes=100)
    assert not plan.spec_ids
    assert plan.sentence == "a rewrite would not halve 10 manifests: 10 would remain"
