"""Validates rows with Great Expectations, and renders the result. No other module imports Great Expectations."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any

import great_expectations as gx
import numpy as np
from great_expectations.core import ExpectationSuiteValidationResult
from great_expectations.data_context.types.base import ProgressBarsConfig
from great_expectations.exceptions.exceptions import GreatExpectationsError
from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
from great_expectations.render.view.view import DefaultJinjaPageView
from pydantic.v1 import ValidationError

from frazil.errors import SpecError
from frazil.quality.gate import Suite
from frazil.safe_text import shorten

MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARACTERS = 80
_NON_TERM_KEYS = {"column", "column_A", "column_B", "column_list", "batch_id"}


@dataclass(frozen=True, slots=True)
class ValidationResult:
    failures: tuple[str, ...]
    html: str
    """All expectations with their results, as in Data Docs."""


def validate(suite: Suite, frame: Any, *, spark: bool) -> ValidationResult:
    """Evaluate the suite on a DataFrame, and collect details of failed expectations only. Raises SpecError."""
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    source = context.data_sources.add_spark("window") if spark else context.data_sources.add_pandas("window")
    definition = source.add_dataframe_asset("window").add_batch_definition_whole_dataframe("window")
    batch = definition.get_batch(batch_parameters={"dataframe": frame})
    validation = batch.validate(_build_suite(suite, suite.content["expectations"]), result_format="BOOLEAN_ONLY")
    if problems := [text for result in validation.results if (text := describe_problem(result))]:
        raise SpecError(f"{suite.path}: {'; '.join(problems)}")
    if not validation.success:
        unmet = [_expectation_of_result(result) for result in validation.results if not result.success]
        second = batch.validate(_build_suite(suite, unmet), result_format="BASIC")
        validation.results = [*(result for result in validation.results if result.success), *second.results]
    for result in validation.results:
        result.result = to_plain(result.result)
    failures = (describe_failure(result) for result in validation.results if not result.success)
    return ValidationResult(tuple(failures), _render(validation))


def _expectation_of_result(result: Any) -> dict[str, Any]:
    """Return the expectation to which a result belongs. Results are not in the order of the suite."""
    config = result.expectation_config.to_json_dict()
    return {**config, "kwargs": {key: value for key, value in config["kwargs"].items() if key != "batch_id"}}


def _build_suite(suite: Suite, expectations: list[dict[str, Any]]) -> gx.ExpectationSuite:
    try:
        return gx.ExpectationSuite(name=suite.content["name"], expectations=expectations)
    except (GreatExpectationsError, ValidationError, TypeError, ValueError) as error:
        # Great Expectations appends its traceback to the message.
        message = str(error).partition("\nTraceback")[0]
        raise SpecError(f"{suite.path}: {'; '.join(message.splitlines())}") from error


def _render(validation: ExpectationSuiteValidationResult) -> str:
    """Render the results as HTML. Escapes the values in `validation` in place."""
    for result in validation.results:
        result.result = escape(result.result)
        if "element_count" not in result.result:
            # A result about distinct values, for which the renderer would need their share of the rows.
            result.result = {"observed_value": result.result.get("observed_value")}
    # The first section is an overview, which the page's head replaces.
    sections = ValidationResultsPageRenderer().render(validation).to_json_dict()["sections"][1:]
    template = DefaultJinjaPageView().env.get_template("section.j2")
    numbered = enumerate(sections, start=1)
    return "".join(template.render(section=section, section_loop={"index": number}) for number, section in numbered)


def to_plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: to_plain(item) for key, item in value.items()}
        case list():
            return [to_plain(item) for item in value]
        case tuple():
            return ", ".join(str(to_plain(item)) for item in value)
        case float() if math.isnan(value):
            return None
    return value.item() if isinstance(value, np.generic) else value


def escape(value: Any) -> Any:
    """Escape strings from the data for HTML. Great Expectations only escapes the suite's texts."""
    match value:
        case str():
            return html.escape(value)
        case dict():
            return {key: escape(item) for key, item in value.items()}
        case list():
            return [escape(item) for item in value]
    return value


def describe_failure(result: Any) -> str:
    config, details = result.expectation_config, result.result
    sentence = f"{config.type} {_describe_terms(config.kwargs)}".rstrip()
    # Great Expectations returns at most 20 examples, with repetitions.
    values = (value for value in details.get("partial_unexpected_list", ()) if value is not None)
    such_as = ", ".join([*dict.fromkeys(map(_format_value, values))][:MAX_EXAMPLES])
    if "element_count" not in details:
        observed = details.get("observed_value")
        return f"{sentence}: found {such_as if observed is None else _format_value(observed)}"
    sentence += f": failed in {details['unexpected_count']:,} of {details['element_count']:,} rows"
    return f"{sentence}, such as {such_as}" if such_as else sentence


def describe_problem(result: Any) -> str | None:
    info = result.exception_info or {}
    # One exception for the expectation, or one for each metric.
    raised = [
        outcome for outcome in ([info] if "raised_exception" in info else info.values()) if outcome["raised_exception"]
    ]
    if not raised:
        return None
    config = result.expectation_config
    message = str(raised[0]["exception_message"]).strip().partition("\n")[0]
    return f"{config.type} {_describe_terms(config.kwargs)} cannot be evaluated: {message}"


def _describe_terms(kwargs: dict[str, Any]) -> str:
    """Describe the expectation's columns and terms, such as `dep_delay (min_value -60, max_value 1800)`."""
    columns = [kwargs[key] for key in ("column", "column_A", "column_B") if key in kwargs]
    columns += kwargs.get("column_list", [])
    terms = [f"{key} {_format_value(value)}" for key, value in kwargs.items() if key not in _NON_TERM_KEYS]
    return f"{', '.join(columns)} ({', '.join(terms)})" if terms else ", ".join(columns)


def _format_value(value: Any) -> str:
    if isinstance(value, dict) and not value.keys() & {"type"}:
        text = " ".join(f"{key}={item}" for key, item in value.items())
    else:
        text = str(value).replace("\n", "\\n")
    return shorten(text, MAX_EXAMPLE_CHARACTERS)
