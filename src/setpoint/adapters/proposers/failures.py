"""Kinds of failure: what a provider's status, error code or broken connection means for the route.

Tables, so that a test can walk every row. Total: what is not known is the server's trouble, never a reply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from setpoint.adapters.proposers.wire import plain_text

MESSAGE_CHARS_MAX: Final = 600
RETRY_AFTER_MS_MAX: Final = 24 * 3_600_000
"""A provider that asks for a longer pause is asking for another route."""

CODE_KINDS: Final[Mapping[str, str]] = {
    # Codes that say more than the status they come with.
    "insufficient_quota": "exhausted",
    "billing_hard_limit_reached": "exhausted",
    "billing_error": "exhausted",
    "content_policy_violation": "refused",
    "content_filter": "refused",
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "invalid_api_key": "auth",
}
STATUS_KINDS: Final[Mapping[int, str]] = {
    401: "auth",
    402: "exhausted",
    403: "auth",
    408: "timeout",
    429: "rate_limited",
    504: "timeout",
}
TYPE_KINDS: Final[Mapping[str, str]] = {
    # Types of an error event in the middle of a stream, whose HTTP status was 200.
    "authentication_error": "auth",
    "permission_error": "auth",
    "timeout_error": "timeout",
    "invalid_request_error": "invalid",
    "not_found_error": "invalid",
    "request_too_large": "invalid",
}


def kind_of_failure(status: int | None, body: object) -> str:
    """The fault kind of an error the provider reported. Total: what is unknown is the server's trouble."""
    codes = _codes(body)
    for code in codes:
        if code in CODE_KINDS:
            return CODE_KINDS[code]
    if status is not None and status >= 400:
        return STATUS_KINDS.get(status, "overloaded" if status >= 500 else "invalid")
    for code in codes:
        if code in TYPE_KINDS:
            return TYPE_KINDS[code]
    return "overloaded"


def _codes(body: object) -> list[str]:
    if not isinstance(body, Mapping):
        return []
    inner = body.get("error")
    source = inner if isinstance(inner, Mapping) else body
    return [value for value in (source.get("code"), source.get("type")) if isinstance(value, str)]


def kind_of_transport_failure(error: BaseException | None) -> str:
    """The fault kind of a connection that failed, by the names the HTTP libraries share.

    A connection that never stood cost nothing and the endpoint may be back soon; one that broke may have been billed.
    """
    names = {cls.__name__ for cls in type(error).__mro__}
    if names & {"ConnectError", "ConnectTimeout"}:
        return "overloaded"
    return "timeout" if "TimeoutException" in names else "broken_stream"


def retry_after_ms(headers: Mapping[str, str], now: datetime | None = None) -> int | None:
    """The pause a provider asks for: ``retry-after-ms``, else ``retry-after`` in seconds or as an HTTP date."""
    exact = headers.get("retry-after-ms", "").strip()
    if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", exact):
        return min(int(float(exact)), RETRY_AFTER_MS_MAX)
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,6})?", value):
        return min(round(float(value) * 1000), RETRY_AFTER_MS_MAX)
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, TypeError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    pause = (at - (now or datetime.now(UTC))).total_seconds()
    return max(0, min(round(pause * 1000), RETRY_AFTER_MS_MAX))


def told(text: str, key: str = "") -> str:
    """A provider's words for a message: bounded, printable, without the key."""
    clean = plain_text(text if len(key) < 8 else text.replace(key, "***"))
    return "".join(c if c.isprintable() else " " for c in clean)[:MESSAGE_CHARS_MAX]


def failure_of(sdk: Any, error: Exception) -> tuple[str, int | None] | None:
    """Kind and asked-for pause of an exception out of an official client library, or of the HTTP library under it.

    ``sdk`` is the library's module; both libraries name their exceptions alike. None: not a failure of the provider.
    """
    match error:
        case sdk.APITimeoutError():
            return "timeout", None
        case sdk.APIConnectionError():
            return kind_of_transport_failure(error.__cause__), None
        case sdk.APIStatusError():
            return kind_of_failure(error.status_code, error.body), retry_after_ms(error.response.headers)
        case sdk.APIError():
            return kind_of_failure(None, error.body), None
        case ValueError():
            return "invalid", None  # JSON that is none, in the middle of a stream
        case _ if any(cls.__name__ == "RequestError" for cls in type(error).__mro__):
            return kind_of_transport_failure(error), None  # not every library wraps what breaks while reading
        case _ if type(error).__module__.partition(".")[0] == sdk.__name__:
            return "invalid", None  # the library itself will not send such a request
        case _:
            return None
