"""``MODEL?option=value&...``: what a route says about a provider's model, read strictly."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from setpoint.adapters.proposers.wire import micros_of_usd
from setpoint.kernel.errors import ProposerFault, UsageFault
from setpoint.ports.proposer import RouteLimits

_OPTIONS: Final = ("base_url", "key_env", "context", "output", "in", "out", "temperature")


@dataclass(frozen=True, slots=True)
class ProviderRoute:
    """``MODEL?option=value&...`` of a provider's route.

    ``base_url``: another endpoint of the same wire format. ``key_env``: the environment variable that holds the key
    (a key itself has no place in a route, which is logged). ``context`` and ``output``: the model's window and the
    longest reply, in tokens. ``in`` and ``out``: dollars per million tokens. ``temperature``: sent when given.
    """

    route: str
    model: str
    base_url: str | None
    key_env: str
    temperature: float | None
    limits: RouteLimits

    @classmethod
    def read(cls, route: str, rest: str, *, key_env: str) -> ProviderRoute:
        """UsageFault when an option is unknown or has no such value."""
        model, _, query = rest.partition("?")
        options = _options(route, query)
        default = RouteLimits()
        return cls(
            route=route,
            model=model,
            base_url=_url(route, options.get("base_url")),
            key_env=options.get("key_env", key_env),
            temperature=_temperature(route, options.get("temperature")),
            limits=RouteLimits(
                context_tokens=_tokens(route, "context", options, default.context_tokens),
                output_tokens=_tokens(route, "output", options, default.output_tokens),
                usd_micros_per_mtok_in=_price(route, "in", options),
                usd_micros_per_mtok_out=_price(route, "out", options),
            ),
        )

    def key(self, base_url: str | None) -> str:
        """The key from the environment. A server on this machine needs none; elsewhere its absence is an auth fault."""
        key = os.environ.get(self.key_env, "").strip()
        if key:
            return key
        if base_url is not None and _is_loopback(base_url):
            return "none"
        raise ProposerFault("auth", f"{self.route} needs a key: set the environment variable {self.key_env}.")


# Options


def _options(route: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=32)
    except ValueError as error:
        raise UsageFault(f"The options of the route {route!r} cannot be read: {error}.") from error
    options: dict[str, str] = {}
    for name, value in pairs:
        if name not in _OPTIONS:
            near = get_close_matches(name, _OPTIONS, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Options are {', '.join(_OPTIONS)}."
            if "key" in name and not near:
                hint = "A key has no place in a route, which is logged; name its variable with key_env=NAME."
            raise UsageFault(f"The route {route!r} has an unknown option {name!r}.", hint=hint)
        if name in options:
            raise UsageFault(f"The route {route!r} gives the option {name!r} twice.")
        options[name] = value
    return options


def _url(route: str, text: str | None) -> str | None:
    if text is None:
        return None
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageFault(f"The route {route!r} has base_url={text!r}, which is not an http or https URL.")
    return text


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tokens(route: str, name: str, options: Mapping[str, str], default: int) -> int:
    text = options.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) == 0:
        raise UsageFault(f"The route {route!r} has {name}={text!r}, which is not a number of tokens.")
    return int(text)


def _price(route: str, name: str, options: Mapping[str, str]) -> int | None:
    if name not in options:
        return None
    try:
        return micros_of_usd(options[name])
    except ValueError as error:
        raise UsageFault(f"The route {route!r} has a price {name}= that cannot be used: {error}.") from error


def _temperature(route: str, text: str | None) -> float | None:
    if text is None:
        return None
    if not re.fullmatch(r"[0-2](\.[0-9]{1,6})?", text) or float(text) > 2:
        raise UsageFault(f"The route {route!r} has temperature={text!r}; it goes from 0 to 2.")
    return float(text)
