"""h2 as the other end: the version that purerpc pins, with its one fault mended here."""

from typing import Any

import h2.config
import h2.connection
import h2.exceptions
from hyperframe.frame import WindowUpdateFrame


class H2Connection(h2.connection.H2Connection):
    """h2 3.2.0 takes a WINDOW_UPDATE on a stream that has ended for an error of the connection."""

    def __init__(self, *, client_side: bool) -> None:
        config = h2.config.H2Configuration(client_side=client_side, header_encoding=None)
        super().__init__(config)
        self._frame_dispatch_table[WindowUpdateFrame] = self._window_update

    def _window_update(self, frame: Any) -> Any:
        try:
            return super()._receive_window_update_frame(frame)
        except h2.exceptions.StreamClosedError:
            return [], []
