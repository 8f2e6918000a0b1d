"""An OpenAI endpoint that streams made-up words, as a server in a thread of the test."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Handler(BaseHTTPRequestHandler):
    """Answers `/v1/models`, and completions of both kinds with `max_tokens` words."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, dict[str, Any]]]

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._whole({"data": [{"id": "words"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.path, body))
        count = body["max_tokens"]
        usage = {"prompt_tokens": 7, "completion_tokens": count}
        if not body["stream"]:
            choice = {"index": 0, "text": "word " * count, "finish_reason": "length"}
            self._whole({"choices": [choice], "usage": usage})
            return
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        is_chat = self.path.endswith("/chat/completions")
        for number in range(count):
            choice = {"index": 0, "finish_reason": "length" if number + 1 == count else None}
            choice |= {"delta": {"content": "word "}} if is_chat else {"text": "word "}
            self._event({"choices": [choice]})
            time.sleep(0.002)
        self._event({"choices": [], "usage": usage})
        self._piece(b"data: [DONE]\n\n")
        self._piece(b"")

    def _event(self, value: dict[str, Any]) -> None:
        self._piece(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _piece(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _whole(self, value: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that takes its request back is no error."""


@contextmanager
def running_endpoint() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """Give the endpoint's URL, and the requests that it has got."""
    handler = type("Handler", (_Handler,), {"asked": []})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", handler.asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
