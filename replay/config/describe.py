"""The effective configuration in the form of the file, so that it can be read again.

PURE.  Nothing here is secret: keys and tokens are named by their files.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import attrs
import yaml

from replay.config.engines import CannedConfig, RealisticConfig, UpstreamConfig
from replay.config.model import Config
from replay.taps.filter_names import FilterName


def describe(config: Config) -> list[str]:
    """Return the lines of a file that says *config*, every default included."""
    text: str = yaml.safe_dump(as_plain(config), sort_keys=False, allow_unicode=True, width=100)
    return text.splitlines()


def as_plain(config: Config) -> dict[str, Any]:
    """Return *config* as the mappings, lists and scalars that the file would hold."""
    plain: dict[str, Any] = _plain(config)
    plain["worker"]["overrides"] = {
        port: {"engine": engine} for port, engine in plain["worker"]["overrides"].items()
    }
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, FilterName):
        return value.text
    if isinstance(value, StrEnum):
        return value.value
    if attrs.has(type(value)):
        tag = {"kind": value.kind} if isinstance(value, _ENGINES) else {}
        return tag | {
            field.name: _plain(getattr(value, field.name)) for field in attrs.fields(type(value))
        }
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


_ENGINES = (CannedConfig, RealisticConfig, UpstreamConfig)
