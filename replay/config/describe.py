"""The effective configuration in the form of the file, so that it can be read again.

PURE.  Nothing here is secret: keys and tokens are named by their files.
"""

from enum import StrEnum
from functools import partial
from typing import Any

import cattrs
import yaml

from replay.config.engines import CannedConfig, EngineConfig, RealisticConfig, UpstreamConfig
from replay.config.model import Config
from replay.taps.filter_names import FilterName


def describe(config: Config) -> list[str]:
    """Return the lines of a file that says *config*, every default included."""
    text: str = yaml.safe_dump(as_plain(config), sort_keys=False, allow_unicode=True, width=100)
    return text.splitlines()


def as_plain(config: Config) -> dict[str, Any]:
    """Return *config* as the mappings, lists and scalars that the file would hold."""
    plain: dict[str, Any] = _CONVERTER.unstructure(config)
    plain["worker"]["overrides"] = {
        port: {"engine": engine} for port, engine in plain["worker"]["overrides"].items()
    }
    return plain


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(unstruct_collection_overrides={tuple: list})
    converter.register_unstructure_hook(FilterName, lambda name: name.text)
    converter.register_unstructure_hook(StrEnum, lambda member: member.value)
    for kind in (CannedConfig, RealisticConfig, UpstreamConfig):
        converter.register_unstructure_hook(kind, partial(_tagged, converter))
    return converter


def _tagged(converter: cattrs.Converter, engine: EngineConfig) -> dict[str, Any]:
    return {"kind": engine.kind, **converter.unstructure_attrs_asdict(engine)}


_CONVERTER = _converter()
