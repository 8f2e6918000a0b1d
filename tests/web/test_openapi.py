"""The description of the admin port against the port itself."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from worker_process import running_worker

import replay.web
from replay.engines.script_file import ERROR_CODES
from replay.web.admin import MOST_ENTRIES, USUAL_ENTRIES, admin_routes
from replay.worker import faults
from replay.worker.fleet import PASSES_KEPT, Fleet
from replay.worker.request_records import RECORDS_KEPT

FILE = Path(replay.web.__file__).with_name("openapi.yaml")
DESCRIPTION: dict[str, Any] = yaml.safe_load(FILE.read_text())
SCHEMAS = DESCRIPTION["components"]["schemas"]


def test_every_path_is_described_and_every_description_has_its_path() -> None:
    routes = admin_routes(Fleet([]), lambda number: {}, token=None)
    served = {(route.path, method) for route in routes for method in route.endpoint.handlers}
    described = {
        (path, method.upper())
        for path, operations in DESCRIPTION["paths"].items()
        for method in operations
        if method != "parameters"
    }
    assert described == served


@pytest.mark.parametrize(
    ("cls", "properties"),
    [
        (
            faults.Failing,
            {
                **SCHEMAS["StallingValues"]["properties"],
                **SCHEMAS["FailingValues"]["allOf"][1]["properties"],
            },
        ),
        (faults.Stalling, SCHEMAS["StallingValues"]["properties"]),
        (faults.Admission, SCHEMAS["Admission"]["properties"]),
        (faults.KvEventLoss, SCHEMAS["KvEventLoss"]["properties"]),
    ],
)
def test_the_defaults_are_those_of_the_program(cls: Any, properties: dict[str, Any]) -> None:
    needed = {"code": "ABORTED"} if cls is faults.Failing else {}
    fault = cls(**needed)
    assert {name: each.get("default", needed.get(name)) for name, each in properties.items()} == {
        name: getattr(fault, name) for name in properties
    }
    assert set(properties) == {field.name for field in cls.__attrs_attrs__}


def test_numbers_in_the_text_are_those_of_the_program() -> None:
    assert SCHEMAS["FailingValues"]["allOf"][1]["properties"]["code"]["enum"] == list(ERROR_CODES)
    limit = DESCRIPTION["components"]["parameters"]["Limit"]["schema"]
    assert (limit["maximum"], limit["default"]) == (MOST_ENTRIES, USUAL_ENTRIES)
    said = {
        path: re.findall(r"last ([\d,]+) are kept", operations["get"].get("description", ""))
        for path, operations in DESCRIPTION["paths"].items()
        if "get" in operations
    }
    assert {path: numbers for path, numbers in said.items() if numbers} == {
        "/admin/requests": [f"{RECORDS_KEPT:,}"],
        "/admin/workers/{worker}/passes": [f"{PASSES_KEPT:,}"],
    }


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a process with two workers serves admin."""
    log = tmp_path_factory.mktemp("openapi") / "worker.log"
    flags = ("--engine", "realistic", "--grpc-count", "2", "--http-port", "0", "--admin")
    with running_worker(*flags, log=log):
        events = [json.loads(line) for line in log.read_text().splitlines()]
        (found,) = [each["address"] for each in events if each["event"] == "http"]
        yield found


def test_the_port_does_what_its_description_says(address: str, tmp_path: Path) -> None:
    """Each operation with right and wrong values; every answer has to be one that is described."""
    program = Path(sys.executable).with_name("schemathesis")
    done = subprocess.run(
        [
            program,
            *("run", FILE, "--url", f"http://{address}", "--phases", "coverage,fuzzing"),
            *("--max-examples", "8", "--seed", "1", "--no-color"),
        ],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    operations = sum(len(each) - ("parameters" in each) for each in DESCRIPTION["paths"].values())
    assert f"Tested: {operations}" in done.stdout
    assert "No issues found" in done.stdout
