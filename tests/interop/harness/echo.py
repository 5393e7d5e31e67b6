"""A backend that says what reached it: headers, length and digest of the body."""

import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def model_of(body):
    try:
        return json.loads(body).get("model")
    except (ValueError, AttributeError):
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512


class Echo:
    """An echo at an address. Headers of a request say how it answers.

    `x-echo-status: 503` answers with that status; `x-echo-events: 5,100` streams five events, 100 ms apart; `x-echo-usage: {...}` adds
    a usage to the answer.
    """

    def __init__(self, host="127.0.0.1", port=0):
        echo = self
        self.requests = []
        self.sent = []
        self.gone = 0

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def body(self):
                if self.headers.get("transfer-encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length", 0)))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.trailers = {}
                while (line := self.rfile.readline().strip()):
                    name, value = line.decode().split(":", 1)
                    self.trailers[name.lower()] = value.strip()
                return b"".join(parts)

            def do_GET(self):
                self.trailers = {}
                body = self.body()
                headers = {name.lower(): value for name, value in self.headers.items()}
                seen = {
                    "served": echo.address, "method": self.command, "path": self.path, "headers": headers,
                    "length": len(body), "sha256": hashlib.sha256(body).hexdigest(), "trailers": self.trailers,
                    "model": model_of(body),
                }
                echo.requests.append({**seen, "body": body})
                if events := headers.get("x-echo-events"):
                    return self.events(seen["model"], *map(int, events.split(",")))
                answer = {**seen, "usage": json.loads(headers.get("x-echo-usage", "null"))}
                text = json.dumps(answer).encode()
                self.send_response(int(headers.get("x-echo-status", 200)))
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET

            def events(self, model, count, pause):
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                try:
                    for at in range(count):
                        event = f"data: {json.dumps({'choices': [{}], 'n': at, 'model': model})}\n\n".encode()
                        echo.sent.append(time.monotonic())
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                        self.wfile.flush()
                        time.sleep(pause / 1000)
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    echo.gone += 1
                    self.close_connection = True

        self.server = _Server((host, port), Handler)
        self.address = f"{host}:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
