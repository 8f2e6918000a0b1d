"""What a model's folder says of the model: the ids that end a text, the size of the vocabulary."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from replay.engines.base import Model
from replay.errors import ConfigError


def model_from_folder(model: Model, folder: str) -> Model:
    """Return *model* with what `config.json` and `generation_config.json` in *folder* say.

    The vocabulary is the smaller of the two, so that every id that is made up can be decoded.  A
    file that is not there says nothing.  Raises ConfigError for a folder or a file that cannot be
    read.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError([f"tokenizer: {folder} is not a folder"])
    config = _read(path / "config.json")
    generation = {**config, **_read(path / "generation_config.json")}
    found: dict[str, Any] = {"tokenizer": str(path.resolve())}
    if _is_id(config.get("vocab_size")) and config["vocab_size"]:
        found["vocab_size"] = min(model.vocab_size, config["vocab_size"])
    eos = generation.get("eos_token_id")
    eos_ids = eos if isinstance(eos, list) else [eos]
    if all(_is_id(each) for each in eos_ids):
        found["eos_token_ids"] = tuple(eos_ids)
    for name in ("bos_token_id", "pad_token_id"):
        if _is_id(generation.get(name)):
            found[name] = generation[name]
    if isinstance(config.get("model_type"), str):
        found["model_type"] = config["model_type"]
    architectures = config.get("architectures")
    if isinstance(architectures, list) and all(isinstance(each, str) for each in architectures):
        found["architectures"] = tuple(architectures)
    return attrs.evolve(model, **found)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError([f"tokenizer: cannot read {path}: {error.strerror}"]) from error
    except ValueError as error:
        raise ConfigError([f"tokenizer: {path} is not JSON"]) from error
    if not isinstance(found, dict):
        raise ConfigError([f"tokenizer: {path} is not a JSON object"])
    return found
