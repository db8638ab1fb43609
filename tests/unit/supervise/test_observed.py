"""A supervisor's observations of a writer."""

from __future__ import annotations

import pytest

from frazil.errors import CommitUnavailable, Fenced
from frazil.supervise.decision import error_name


class _OneOfItsOwn(CommitUnavailable):
    """An error of a module that catches it itself."""


@pytest.mark.parametrize("error", [CommitUnavailable, Fenced])
def test_an_exit_code_has_the_name_of_the_error_that_declares_it(error: type[CommitUnavailable | Fenced]):
    assert _OneOfItsOwn.exit_code == CommitUnavailable.exit_code
    assert error_name(error.exit_code) == error.__name__


def test_an_exit_code_that_no_error_class_declares_has_no_name():
    assert [error_name(code) for code in (0, 1, 77)] == ["", "", ""]
