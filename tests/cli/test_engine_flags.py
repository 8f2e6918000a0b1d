"""The flags that choose an engine and set it."""

import attrs
from click.testing import CliRunner

from replay.cli import main
from replay.cli.realistic_flags import REALISTIC_FLAGS
from replay.cli.serve import FLAGS
from replay.config import RealisticConfig, UpstreamConfig, load_config

#: Polynomials are lists, which a flag cannot say.
WITHOUT_FLAG = {"prefill_poly", "decode_poly"}


def test_every_setting_of_the_realistic_engine_has_a_flag_of_its_name() -> None:
    keys = {flag.key: flag.name for flag in FLAGS}
    for field in attrs.fields(RealisticConfig):
        if field.name not in WITHOUT_FLAG:
            name = f"--{field.name.replace('_', '-')}"
            assert keys[f"worker.engine.{field.name}"] == name


def test_the_flags_of_the_realistic_engine_are_read_as_the_file_is() -> None:
    texts = {
        int: "7",
        float: "0.5",
        bool: "false",
        int | None: "4000",
    }
    own = {"timing": "linear", "kv_events_wire": "sglang", "kv_events_topic": "kv"}
    settings = {flag.name: flag.setting for flag in FLAGS}
    given = [(settings["--engine"], "realistic")]
    for name, key, _, _ in REALISTIC_FLAGS:
        field = getattr(attrs.fields(RealisticConfig), key.rpartition(".")[2])
        if field.name == "prefill_first":
            given.append((settings[name], "true"))
        elif field.name != "kv_tokens":  # not together with kv_blocks
            given.append((settings[name], own.get(field.name) or texts[field.type]))
    engine = load_config(flags=given, environ={}).worker.engine
    assert isinstance(engine, RealisticConfig)
    left = [
        field.name
        for field in attrs.fields(RealisticConfig)
        if getattr(engine, field.name) == field.default
    ]
    assert set(left) == WITHOUT_FLAG | {"output_tokens", "seed", "kv_tokens"}
    assert (engine.max_running, engine.speedup, engine.kv_blocks) == (7, 0.5, 4000)


def test_an_upstream_is_named_by_two_flags() -> None:
    settings = {flag.name: flag.setting for flag in FLAGS}
    given = [(settings["--engine"], "upstream"), (settings["--upstream"], "grpc://[::1]:7")]
    assert load_config(flags=given, environ={}).worker.engine == UpstreamConfig(
        upstream="grpc://[::1]:7"
    )


def test_the_help_shows_the_defaults_of_every_engine() -> None:
    text = " ".join(CliRunner().invoke(main, ["serve", "--help"]).output.split())
    assert "Tokens that the KV pool holds. [default: 524288]" in text
    assert "Send old ones again. [default: true]" in text
    assert "Worker that requests are passed on to. --script" in text


def test_a_flag_of_another_engine_is_refused_by_name() -> None:
    for flags in (["--kv-tokens", "9"], ["--engine", "realistic", "--gen-ms", "1"]):
        refused = CliRunner().invoke(main, ["serve", *flags])
        assert refused.exit_code == 2
        assert f"{flags[-2]}: unknown key" in refused.output
