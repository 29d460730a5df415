"""What the requests of docs/http-steps.md arrive at: receiver.py PORT FILE.

/orders/ID/reservations answers with JSON; /hooks takes only what is signed with the secret in the file `secret`, by the
lights of `is_genuine`, which is the page's own and in FILE; /jobs answers 202, and calls back when it has done so.
"""

import http.server, importlib.util, json, pathlib, sys, threading, urllib.request

port, file = int(sys.argv[1]), sys.argv[2]
page = importlib.util.spec_from_file_location("page", file).loader.load_module()


def call_back(url):
    body = json.dumps({"result": {"film": "ready"}}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    print("callback:", urllib.request.urlopen(request).read().decode(), flush=True)


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        print(self.path, body.decode(), flush=True)
        if self.path.startswith("/orders/"):
            self.answer(200, {"shelf": "B-17"})
        elif self.path == "/hooks":
            secret = pathlib.Path("secret").read_text().strip()
            forged = page.is_genuine(secret, self.headers, body + b" ")
            self.answer(200 if page.is_genuine(secret, self.headers, body) and not forged else 401, {})
        else:
            self.answer(202, {})
            threading.Thread(target=call_back, args=[self.headers["flowline-callback-url"]]).start()

    def answer(self, status, body):
        body = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Receiver)
pathlib.Path("receiving").touch()
server.serve_forever()
