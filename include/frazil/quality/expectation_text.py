"""Formats the result of an expectation as a sentence for operators. Pure."""

from __future__ import annotations

from typing import Any

MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARACTERS = 80
_NO_TERMS = {"column", "column_A", "column_B", "column_list", "batch_id"}


def failure_sentence(result: Any) -> str:
    """Return the sentence for an expectation that failed: expectation, column, number of failing rows, examples."""
    config, found = result.expectation_config, result.result
    sentence = f"{config.type} {_subject(config.kwargs)}".rstrip()
    # Great Expectations returns at most 20 examples, with repetitions.
    examples = dict.fromkeys(
        _format_value(value) for value in found.get("partial_unexpected_list", ()) if value is not None
    )
    such_as = ", ".join(list(examples)[:MAX_EXAMPLES])
    if "element_count" not in found:
        observed = found.get("observed_value")
        return f"{sentence}: found {such_as if observed is None else _format_value(observed)}"
    sentence += f": failed in {found['unexpected_count']:,} of {found['element_count']:,} rows"
    return f"{sentence}, such as {such_as}" if such_as else sentence


def problem_sentence(result: Any) -> str | None:
    """Return why an expectation could not be evaluated; None if it was evaluated."""
    info = result.exception_info or {}
    # One exception for the expectation, or one for each metric.
    raised = [one for one in ([info] if "raised_exception" in info else info.values()) if one["raised_exception"]]
    if not raised:
        return None
    config = result.expectation_config
    message = str(raised[0]["exception_message"]).strip().partition("\n")[0]
    return f"{config.type} {_subject(config.kwargs)} cannot be evaluated: {message}"


def _subject(kwargs: dict[str, Any]) -> str:
    """Return the expectation's columns and terms, such as `dep_delay (min_value -60, max_value 1800)`."""
    columns = [kwargs[key] for key in ("column", "column_A", "column_B") if key in kwargs]
    columns += kwargs.get("column_list", [])
    terms = [f"{key} {_format_value(value)}" for key, value in kwargs.items() if key not in _NO_TERMS]
    return f"{', '.join(columns)} ({', '.join(terms)})" if terms else ", ".join(columns)


def _format_value(value: Any) -> str:
    if isinstance(value, dict) and not value.keys() & {"type"}:
        text = " ".join(f"{key}={one}" for key, one in value.items())
    else:
        text = str(value).replace("\n", "\\n")
    return text if len(text) <= MAX_EXAMPLE_CHARACTERS else f"{text[: MAX_EXAMPLE_CHARACTERS - 1]}…"
