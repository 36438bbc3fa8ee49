"""A server that answers as GitHub's REST API does, for the few requests that are made of it."""

import contextlib
import http.server
import json
import re
import threading
import urllib.parse

TOKEN = "ghs_aB3dE5gH7jK9"
REPOSITORY = "owner/name"
BOT = {"login": "github-actions[bot]", "type": "Bot"}


class FakeGitHub:
    """Comments and pull requests of one repository, and every request that came."""

    def __init__(self):
        self.url = ""
        self.comments = []
        self.pulls = []
        self.requests = []
        self.troubles = []
        """Answers to the next requests, instead of what they ask for: status, headers, text."""
        self.lost = 0
        """How many of the next writes are done, and answered with 502."""
        self.may_write = True
        self.user = None
        """Login of the token's user; a job's token has none."""

    @property
    def asked(self):
        """The requests without their queries."""
        return [f"{method} {path.partition('?')[0]}" for method, path, _, _ in self.requests]

    def comment(self, body, user=BOT):
        """Somebody's comment."""
        number = 1000 + len(self.comments)
        address = f"https://github.com/{REPOSITORY}/pull/7#issuecomment-{number}"
        made = {"id": number, "body": body, "user": user, "html_url": address}
        self.comments.append(made)
        return made

    def answer(self, method, path, query, data):
        """Status and JSON of the answer."""
        if path == "/user":
            return (200, {"login": self.user}) if self.user else (403, REFUSED)
        if path == f"/repos/{REPOSITORY}/pulls":
            (head,) = query["head"]
            labels = {f"{each['head']['repo']['owner']['login']}:{each['head']['ref']}": each for each in self.pulls}
            # As GitHub does with a filter that it does not understand.
            return 200, [labels[head]] if head in labels else self.pulls
        if path == f"/repos/{REPOSITORY}/issues/7/comments" and method == "GET":
            page, size = int(query["page"][0]), int(query["per_page"][0])
            return 200, self.comments[(page - 1) * size : page * size]
        if method in ("POST", "PATCH") and not self.may_write:
            return 403, REFUSED
        if path == f"/repos/{REPOSITORY}/issues/7/comments" and method == "POST":
            return 201, self.comment(data["body"], {"login": self.user, "type": "User"} if self.user else BOT)
        if (found := re.fullmatch(rf"/repos/{REPOSITORY}/issues/comments/(\d+)", path)) and method == "PATCH":
            (comment,) = [each for each in self.comments if each["id"] == int(found[1])]
            comment["body"] = data["body"]
            return 200, comment
        return 404, {"message": "Not Found"}


REFUSED = {"message": "Resource not accessible by integration"}


@contextlib.contextmanager
def running(github):
    """Serve it, at an address that it then knows."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer_request(self):
            address = urllib.parse.urlsplit(self.path)
            text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            data = json.loads(text) if text else None
            github.requests.append((self.command, self.path, data, dict(self.headers)))
            if github.troubles:
                status, headers, body = github.troubles.pop(0)
            elif self.headers["Authorization"] != f"Bearer {TOKEN}":
                status, headers, body = 401, {}, json.dumps({"message": "Bad credentials"})
            else:
                path = urllib.parse.unquote(address.path)
                status, made = github.answer(self.command, path, urllib.parse.parse_qs(address.query), data)
                headers, body = {}, json.dumps(made)
                if data is not None and github.lost:
                    github.lost -= 1
                    status, body = 502, ""
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST = do_PATCH = answer_request  # noqa: N815

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        github.url = f"http://127.0.0.1:{server.server_port}"
        yield github
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
