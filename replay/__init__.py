"""Stands in for an LLM engine, mirrors live traffic, replays it and compares the answers."""

from importlib.metadata import version as _version

__version__ = _version("replay")
