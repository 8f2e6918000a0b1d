"""Results on a disk, and disks that do not take them."""

from pathlib import Path

import pytest
import trio

from replay.player.observation import Observation
from replay.player.results import RunHead, read_results
from replay.player.results_file import ResultsError, ResultsFile
from replay.player.traces.fault import Notes
from replay.player.traces.lines import split_lines

HEAD = RunHead(source="s", target="t", pace="original", started_unix_ns=1)


async def test_what_is_handed_over_is_written_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    file = ResultsFile(path, HEAD)
    async with trio.open_nursery() as writing:
        writing.start_soon(file.run)
        for number in range(1_000):
            file.put(Observation(request_id=f"r{number}"))
            if number % 100 == 0:
                await trio.lowlevel.checkpoint()
        file.finish({"sent": 1_000})
    file.close()
    results = read_results(split_lines([path.read_bytes()]), Notes())
    assert [each.request_id for each in results.observations] == [f"r{at}" for at in range(1_000)]
    assert results.end == {"sent": 1_000}
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_full_disk_ends_the_writing_with_a_sentence() -> None:
    file = ResultsFile(Path("/dev/full"), HEAD)
    await file.run()
    assert file.failed.is_set()
    assert str(file.fault).startswith("cannot write results to /dev/full: No space left")
    file.put(Observation(request_id="lost"))
    file.close()


async def test_a_path_that_cannot_be_opened_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="No such file"):
        ResultsFile(tmp_path / "absent" / "results.jsonl", HEAD)
