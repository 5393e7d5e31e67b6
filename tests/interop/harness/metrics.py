"""An engine's metrics page."""

import http.server
import threading


class Metrics:
    """An engine's front end that knows when it started."""

    def __init__(self, start_time):
        self.start_time, self.asked, self.more = start_time, 0, ""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.asked += 1
                body = f"process_start_time_seconds {outer.start_time}\n{outer.more}".encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
