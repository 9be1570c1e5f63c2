"""Read the settings of a service from text.

The format is the usual one::

    # a comment
    name = worker

    [http]
    listen  = 0.0.0.0:8080
    timeout = 2.5
    origins = example.org, "a, b.example"

Keys before the first section belong to the section ``""``. Every reader raises
``ConfigError`` for what it cannot read, with the text that was wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DEFAULT_TIMEOUT = 5.0
"""Seconds a request may take when the settings do not say."""

TRUE_WORDS = frozenset({"1", "on", "true", "yes"})
FALSE_WORDS = frozenset({"0", "off", "false", "no"})
SIZE_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


class ConfigError(ValueError):
    """A setting cannot be read."""


@dataclass
class Config:
    """The settings as text, by section and key."""

    sections: dict[str, dict[str, str]] = field(default_factory=dict)

    def get(self, section: str, key: str, default: str | None = None) -> str:
        """The text of one setting. ConfigError when it is missing and has no default."""
        value = self.sections.get(section, {}).get(key, default)
        if value is None:
            raise ConfigError(f"no setting {key!r} in section {section!r}")
        return value

    def has(self, section: str, key: str) -> bool:
        return key in self.sections.get(section, {})


def parse_config(text: str) -> Config:
    """The settings in ``text``. The last of two equal keys wins."""
    config = Config()
    section = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = strip_comment(raw).strip()
        if not line:
            continue
        if line.startswith("["):
            if not line.endswith("]") or not line[1:-1].strip():
                raise ConfigError(f"line {number}: not a section: {line!r}")
            section = line[1:-1].strip().lower()
            config.sections.setdefault(section, {})
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"line {number}: not a setting: {line!r}")
        settings = config.sections.setdefault(section, {})
        settings[key.strip().lower()] = unquote(value.strip())
    return config


def strip_comment(line: str) -> str:
    """``line`` without its comment; a ``#`` inside double quotes is no comment."""
    quoted = False
    for position, character in enumerate(line):
        if character == '"':
            quoted = not quoted
        elif character == "#" and not quoted:
            return line[:position]
    return line


def unquote(value: str) -> str:
    """``value`` without the double quotes around it."""
    if len(value) >= 2 and value[0] == value[-1] == '"' and '"' not in value[1:-1]:
        return value[1:-1]
    return value


def parse_bool(value: str) -> bool:
    """True for on, yes, true, 1; False for off, no, false, 0; in any case."""
    word = value.strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ConfigError(f"not a yes or a no: {value!r}")


def parse_count(value: str) -> int:
    """A whole number of zero or more."""
    digits = value.strip()
    if not digits.isascii() or not digits.isdigit():
        raise ConfigError(f"not a whole number: {value!r}")
    if len(digits) > 18:
        raise ConfigError(f"too large: {value!r}")
    return int(digits)


def parse_size(value: str) -> int:
    """A number of bytes: ``512``, ``64k``, ``10M``, ``1g``."""
    text = value.strip().lower()
    unit = text[-1:] if text[-1:] in SIZE_UNITS else ""
    digits = text[: len(text) - len(unit)].strip()
    if not digits.isascii() or not digits.isdigit():
        raise ConfigError(f"not a size: {value!r}")
    return int(digits) * SIZE_UNITS[unit]


def parse_list(value: str) -> list[str]:
    """The items between commas; a comma inside double quotes separates nothing."""
    items: list[str] = []
    item = ""
    quoted = False
    for character in value:
        if character == '"':
            quoted = not quoted
        if character == "," and not quoted:
            items.append(item)
            item = ""
        else:
            item += character
    if quoted:
        raise ConfigError(f"a quote is not closed: {value!r}")
    items.append(item)
    return [unquote(item.strip()) for item in items if item.strip()]


# Network settings


def parse_timeout(value: str) -> float:
    """The timeout in seconds: ``parse_timeout('2.5')`` is 2.5; an empty value means the default."""
    text = value.strip()
    if not text:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        raise ConfigError(f"not a number of seconds: {value!r}") from None
    if seconds != seconds or seconds == float("inf"):
        raise ConfigError(f"a timeout must be a finite number: {value!r}")
    return seconds


def parse_address(value: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an empty host is every interface."""
    host, colon, port = value.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit():
        raise ConfigError(f"not host:port: {value!r}")
    number = int(port)
    if not 0 < number < 65536:
        raise ConfigError(f"no such port: {value!r}")
    return host or "0.0.0.0", number
