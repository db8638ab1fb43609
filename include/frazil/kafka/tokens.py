"""Gets login tokens (SASL/OAUTHBEARER) from a Python function.

`sasl.oauthbearer.method` names the function: `aws-msk`, or `package.module:function`. The function takes the text of
`sasl.oauthbearer.config`, and returns a token and the token's expiry (s since 1970), like confluent-kafka's `oauth_cb`.
Tokens are never stored or logged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from frazil.errors import KafkaUnavailable, SpecError
from frazil.extras import require_module

METHOD, CONFIG = "sasl.oauthbearer.method", "sasl.oauthbearer.config"
AWS_MSK = "aws-msk"
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

Client = TypeVar("Client")
TokenFunction = Callable[[str], tuple[Any, ...]]


def is_function(method: str) -> bool:
    """Return whether the method is a Python function. librdkafka has other methods."""
    return method == AWS_MSK or _FUNCTION.fullmatch(method) is not None


def split_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], TokenFunction | None]:
    """Return librdkafka's properties, and the declared token function. Raises SpecError, MissingExtra."""
    method = properties.get(METHOD, "")
    if not is_function(method):
        return dict(properties), None
    return {key: value for key, value in properties.items() if key != METHOD}, _load(method)


def create_client(client: Callable[[dict[str, Any]], Client], properties: Mapping[str, Any]) -> Client:
    """Create a client of confluent-kafka. If a function makes the client's tokens, calls this function first.

    Without a token, the constructor would leave an error that later ends the process. Raises KafkaUnavailable if the
    function fails, and the errors of `split_properties`.
    """
    settings, make_token = split_properties(properties)
    if make_token is None:
        return client(settings)
    config = properties.get(CONFIG, "")
    try:
        tokens = [make_token(config)]
    except Exception as error:
        raise KafkaUnavailable(
            f"{properties[METHOD]} did not create a token for Kafka: {type(error).__name__}: {error}. Check "
            "sasl.oauthbearer.* in source.properties, and the service that the function calls"
        ) from error
    return client({**settings, "oauth_cb": lambda text: tokens.pop() if tokens else make_token(text)})


def _load(method: str) -> TokenFunction:
    if method == AWS_MSK:
        require_module("aws_msk_iam_sasl_signer")
        return _make_msk_token
    module, _, name = method.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SpecError(
            f"source.properties.{METHOD}: {method} cannot be imported: {error}. Install the module on the hosts of "
            "writers, executors and Airflow's workers"
        ) from error
    return partial(_call_and_check, function, method)


def _call_and_check(function: TokenFunction, method: str, config: str) -> tuple[Any, ...]:
    """Call the user's function, and check its result. Raises ValueError with a text that omits the token."""
    answer = function(config)
    if not (isinstance(answer, tuple) and len(answer) >= 2 and isinstance(answer[0], str)):
        raise ValueError(f"{method} must return a token and its expiry in seconds since 1970")
    return answer


def _make_msk_token(config: str) -> tuple[str, float]:
    """Return an MSK token and its expiry (s since 1970). `config` may have `region=…` and `role=…`."""
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    options = dict(part.partition("=")[::2] for part in re.split(r"[,\s]+", config) if part)
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise ValueError("the AWS region is unknown: write sasl.oauthbearer.config: region=… or set AWS_REGION")
    if role := options.get("role"):
        token, expiry_ms = MSKAuthTokenProvider.generate_auth_token_from_role_arn(region, role)
    else:
        token, expiry_ms = MSKAuthTokenProvider.generate_auth_token(region)
    return token, expiry_ms / 1000
