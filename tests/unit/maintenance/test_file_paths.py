"""Paths: all spellings of a path are one location, and different paths are different locations."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.maintenance.orphans import below, normalise_path

NAMES = st.lists(
    st.text(st.sampled_from("abz019-_=:. %+é"), min_size=1, max_size=6).filter(
        lambda n: n.strip(". ") and "%" not in n
    ),
    min_size=1,
    max_size=4,
)
ROOTS = {
    "local": ["/", "//", "file:/", "file://", "file:///", "FILE:///"],
    "s3": ["s3://Bucket/", "s3a://bucket/", "s3n://bucket//", "S3://bucket/"],
    "gs": ["gs://bucket/", "gcs://bucket/"],
    "azure": ["abfs://c@a.host/", "abfss://c@a.host/", "wasb://c@A.host/", "wasbs://c@a.host/"],
}


@st.composite
def spellings(draw: st.DrawFn, names: list[str]) -> str:
    """Return one way to write the path of these names."""
    path = ""
    for name in names:
        text = draw(st.sampled_from([name, quote(name), quote(name, safe=""), quote(quote(name, safe=""), safe="")]))
        path += text + draw(st.sampled_from(["/", "//", "/./"]))
    return path if draw(st.booleans()) else path.rstrip("/.") if not names[-1].endswith(".") else path


@given(st.data(), NAMES, st.sampled_from(sorted(ROOTS)))
def test_all_spellings_of_a_path_normalise_to_one_location(data: st.DataObject, names: list[str], kind: str):
    one, other = (data.draw(st.sampled_from(ROOTS[kind])) + data.draw(spellings(names)) for _ in range(2))
    assert normalise_path(one) == normalise_path(other)
    assert normalise_path(one).path == "/" + "/".join(names)
    folder = normalise_path(data.draw(st.sampled_from(ROOTS[kind])) + "/".join(quote(n) for n in names[:-1]))
    assert normalise_path(one).is_inside(folder)


@given(NAMES, NAMES, st.sampled_from(["/", "s3://bucket/"]))
def test_different_path_names_are_different_locations(one: list[str], other: list[str], root: str):
    assert (normalise_path(root + "/".join(one)) == normalise_path(root + "/".join(other))) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("s3://a/x", "s3://b/x"), ("s3://a/x", "gs://a/x"), ("s3://a/x", "/x"), ("abfs://c@a/x", "abfs://d@a/x")],
)
def test_equal_paths_in_different_buckets_are_different_locations(one: str, other: str):
    assert normalise_path(one) != normalise_path(other)
    assert normalise_path(one).path == normalise_path(other).path
    assert not normalise_path(one).is_inside(normalise_path(other))


def test_a_table_is_not_inside_another_whose_name_is_a_prefix_of_its_own():
    assert not below("/lake/flights_dead_letters", "/lake/flights")
    assert below("/lake/flights/data", "/lake/flights")
    assert below("/lake", "/")
