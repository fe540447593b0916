"""A local chat completions endpoint that answers, or misbehaves to order."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DRIPS = 400
DRIP_EVERY_S = 0.02


@dataclass(frozen=True)
class Answer:
    """One HTTP answer. A body that is no bytes is sent as JSON.

    `delay_s` is the time before it. `drip` sends single bytes for ever so long, `cut` promises more bytes than come.
    """

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    drip: bool = False
    cut: bool = False


def says(text: str | None, **changes: Any) -> Answer:
    """A proper answer with this text; `changes` are other fields of `Answer`."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    return Answer({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}, **changes)


@dataclass
class ApiServer:
    """What a running endpoint gives, in turn, the last one for ever; and what it was asked."""

    base_url: str
    answers: list[Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str | None] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_answer(self) -> Answer:
        """The next in turn."""
        with self.lock:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def api_server(answers: Sequence[Answer]) -> Iterator[ApiServer]:
    """Run an endpoint on a free port. Bodies may hold `{authorization}`, which the header of the request replaces."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            with state.lock:
                state.at_once += 1
                state.most_at_once = max(state.most_at_once, state.at_once)
                state.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                state.authorizations.append(self.headers["Authorization"])
            answer = state.next_answer()
            time.sleep(answer.delay_s)
            with state.lock:
                state.at_once -= 1
            self.close_connection = answer.drip or answer.cut
            try:
                self.send(answer)
            except OSError:  # the client gave up, as it should
                self.close_connection = True

        def send(self, answer: Answer) -> None:
            body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            body = body.replace(b"{authorization}", str(self.headers["Authorization"]).encode())
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body) + (DRIPS if answer.drip or answer.cut else 0)))
            self.end_headers()
            self.wfile.write(body)
            for _ in range(DRIPS if answer.drip else 0):
                time.sleep(DRIP_EVERY_S)
                self.wfile.write(b" ")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    state = ApiServer(f"http://127.0.0.1:{server.server_port}/v1", list(answers))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
