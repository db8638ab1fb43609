"""One expectation's result as a sentence that an operator reads. Pure."""

from __future__ import annotations

from typing import Any

EXAMPLES = 5
EXAMPLE_CHARACTERS = 80
_SAID_ELSEWHERE = {"column", "column_A", "column_B", "column_list", "batch_id"}


def failure(result: Any) -> str:
    """Of an ExpectationValidationResult that did not succeed: expectation, column, how many of how many, examples."""
    config, found = result.expectation_config, result.result
    sentence = f"{config.type} {_subject(config.kwargs)}".rstrip()
    # 20 are handed on at most, with repetitions.
    examples = dict.fromkeys(_shown(value) for value in found.get("partial_unexpected_list", ()) if value is not None)
    such_as = ", ".join(list(examples)[:EXAMPLES])
    if "element_count" not in found:
        observed = found.get("observed_value")
        return f"{sentence}: found {such_as if observed is None else _shown(observed)}"
    sentence += f": not so in {found['unexpected_count']:,} of {found['element_count']:,} rows"
    return f"{sentence}, such as {such_as}" if such_as else sentence


def problem(result: Any) -> str | None:
    """Why an expectation could not be evaluated, or None where it was."""
    info = result.exception_info or {}
    # One for the expectation, or one by metric.
    raised = [one for one in ([info] if "raised_exception" in info else info.values()) if one["raised_exception"]]
    if not raised:
        return None
    config = result.expectation_config
    said = str(raised[0]["exception_message"]).strip().partition("\n")[0]
    return f"{config.type} {_subject(config.kwargs)} cannot be evaluated: {said}"


def _subject(kwargs: dict[str, Any]) -> str:
    """`dep_delay (min_value -60, max_value 1800)`."""
    columns = [kwargs[key] for key in ("column", "column_A", "column_B") if key in kwargs]
    columns += kwargs.get("column_list", [])
    terms = [f"{key} {_shown(value)}" for key, value in kwargs.items() if key not in _SAID_ELSEWHERE]
    return f"{', '.join(columns)} ({', '.join(terms)})" if terms else ", ".join(columns)


def _shown(value: Any) -> str:
    if isinstance(value, dict) and not value.keys() & {"type"}:
        text = " ".join(f"{key}={one}" for key, one in value.items())
    else:
        text = str(value).replace("\n", "\\n")
    return text if len(text) <= EXAMPLE_CHARACTERS else f"{text[: EXAMPLE_CHARACTERS - 1]}…"
