"""A configuration file in an empty folder, read under the name `taps.yaml`."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from replay.config import Config, load_config
from replay.config.problems import Setting
from replay.errors import ConfigError

Load = Callable[..., Config]
Problems = Callable[..., list[str]]


def as_settings(flags: Mapping[str, str]) -> list[tuple[Setting, str]]:
    """Return flags by their keys: `worker.grpc_count` is set by `--grpc-count`."""
    return [
        (Setting(f"--{key.rsplit('.', 1)[-1].replace('_', '-')}", tuple(key.split("."))), text)
        for key, text in flags.items()
    ]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Read a text as the file `taps.yaml`, with flags by their keys over it."""
    monkeypatch.chdir(tmp_path)

    def load_text(
        text: str | bytes,
        flags: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Config:
        Path("taps.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
        return load_config("taps.yaml", as_settings(flags or {}), environ=environ or {})

    return load_text


@pytest.fixture
def problems(load: Load) -> Problems:
    """Return the problems of a text; it fails when there are none."""

    def problems_of(*args: object, **kwargs: object) -> list[str]:
        with pytest.raises(ConfigError) as refused:
            load(*args, **kwargs)
        return list(refused.value.problems)

    return problems_of
