"""Functions that create login tokens: the properties that select one, the signature for Amazon MSK, and errors."""

from __future__ import annotations

import base64
import time

import pytest

from frazil.errors import SpecError
from frazil.kafka.client import create_client, property_problems, split_properties

METHOD = "sasl.oauthbearer.method"


def test_a_login_at_msk_is_signed_for_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    properties, make_token = split_properties({METHOD: "aws-msk", "log_level": "0"})
    assert properties == {"log_level": "0"}
    assert make_token is not None
    token, expiry_s = make_token("region=eu-west-1")
    url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    assert url.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert time.time() < expiry_s <= time.time() + 901
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(ValueError, match="the AWS region is unknown"):
        make_token("")


@pytest.mark.parametrize("method", ["oidc", "default", None])
def test_authentication_methods_of_librdkafka_are_left_unchanged(method: str | None) -> None:
    declared = {} if method is None else {METHOD: method}
    assert create_client(dict, declared) == declared


@pytest.mark.parametrize("method", ["no.such.module:token", "json:no_such_function"])
def test_a_token_function_that_cannot_be_imported_is_reported(method: str) -> None:
    with pytest.raises(SpecError, match=f"{METHOD}: {method} cannot be imported"):
        create_client(dict, {METHOD: method})


def test_the_result_of_a_token_function_is_validated_and_not_quoted() -> None:
    _, returns_text = split_properties({METHOD: "os.path:basename"})
    assert returns_text is not None
    with pytest.raises(ValueError, match="must return a token and its expiry") as refused:
        returns_text("a/secret-token")
    assert "secret-token" not in str(refused.value)


def test_validate_accepts_a_token_function_and_explains_unsupported_mechanisms() -> None:
    assert property_problems({"sasl.mechanism": "OAUTHBEARER", METHOD: "aws-msk"}) == {}
    assert property_problems({METHOD: "my_company.kafka:token"}) == {}
    assert METHOD in property_problems({METHOD: "nonsense"})
    assert "aws-msk" in property_problems({"sasl.mechanism": "AWS_MSK_IAM"})["sasl.mechanism"]
    assert "Kerberos" in property_problems({"sasl.mechanism": "GSSAPI"}).get("sasl.mechanism", "Kerberos")
