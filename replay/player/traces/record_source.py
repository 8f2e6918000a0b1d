"""Record files on a disk: one, the files of a rotation, or packed ones.

These calls block: the player makes them in a thread.
"""

import os
from array import array
from collections.abc import Iterator
from pathlib import Path

from replay.plane.record_file import RecordReader, rotation
from replay.player.arrival import Arrival
from replay.player.observation import Observation
from replay.player.traces.fault import Notes, TraceError
from replay.player.traces.record import read_record
from replay.player.traces.record_scan import (
    Scanned,
    in_order,
    payload_of,
    places_by_arrival,
    record_of,
    scan,
)
from replay.player.traces.unpacking import open_unpacked


class RecordSource:
    """The records at a path, which are read from the start as often as they are asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises FileNotFoundError if there is no file, and none of a rotation, at *path*."""
        self.name = str(path)
        self._records = 0
        self._handed_out = 0
        self.paths = rotation(Path(path))
        if not self.paths:
            raise FileNotFoundError(f"{path}: no record file is there")

    @property
    def fraction(self) -> float | None:
        """Which part of the requests has been handed out; None before the first reading."""
        return self._handed_out / self._records if self._records else None

    def scan(self, notes: Notes | None = None) -> Iterator[Scanned]:
        """Read the head of each record, in the order of the files.  *notes* takes what was lost."""
        for frames in self._frames(notes := notes or Notes()):
            found = self._head(frames, notes)
            if found is not None:
                yield found

    def arrivals(self, notes: Notes) -> Iterator[Arrival]:
        """Read the requests in the order in which they arrived.

        The files are read twice.  Raises TraceError for a record with values of wrong types.
        """
        unheard = Notes()
        times = array("q")
        for frames in self._frames(unheard):
            found = self._head(frames, unheard)
            times.append(-1 if found is None else found.arrival_unix_ns)
        self._records = len(times)
        for arrival in in_order(self._requests(notes), places_by_arrival(times)):
            self._handed_out += 1
            if arrival is not None:
                yield arrival

    def observations(self, notes: Notes) -> Iterator[Observation]:
        """Read what came of the requests, in the order of the files.

        A record without a response is left out.
        """
        for arrival in self._requests(notes):
            if arrival is not None and arrival.recorded is not None:
                yield arrival.recorded

    def _requests(self, notes: Notes) -> Iterator[Arrival | None]:
        for position, frames in enumerate(self._frames(notes), 1):
            record = record_of(frames, notes)
            try:
                yield None if record is None else read_record(record, position, notes)
            except TraceError as error:
                raise error.at(self.name) from None

    @staticmethod
    def _head(frames: list[bytes], notes: Notes) -> Scanned | None:
        payload = payload_of(frames, notes)
        if payload is None:
            return None
        try:
            return scan(payload)
        except ValueError:
            notes.undecodable += 1
            return None

    def _frames(self, notes: Notes) -> Iterator[list[bytes]]:
        for path in self.paths:
            with path.open("rb") as file, open_unpacked(file, notes) as stream:
                reader = RecordReader(stream)
                yield from reader
            notes.torn_bytes += reader.torn_bytes
