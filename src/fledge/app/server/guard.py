"""Check every request before it reaches the app, and add security headers to every answer.

A request passes if
- its Host is a name of this server: on localhost only localhost's names, which stops DNS rebinding; otherwise an address,
  this machine's name, or a configured one;
- headers that these checks read do not occur twice;
- it does not come from another site: websockets and methods other than GET and HEAD need our own Origin, and a GET that the
  browser marks as cross-site passes only as navigation;
- it has the token, if there is one: first in the link, then in an HttpOnly, SameSite=Strict cookie;
- it is not larger than `MAX_BODY`.
Other requests get a page with one sentence that says why.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import ipaddress
import re
import secrets
import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from fledge.app.server.departure import Departure

Scope = dict[str, Any]

MAX_BODY = 1_000_000  # bytes of a request
MAX_MESSAGE = 1_000_000  # bytes of a websocket message
TOO_LARGE = f"This request is too large: send at most {MAX_BODY:,} bytes."
LOCAL = ("localhost", "127.0.0.1", "::1")
HOST = re.compile(r"(?:([a-z0-9._-]+)|\[([0-9a-f:.]+)\])(?::[0-9]{1,5})?", re.ASCII)
SINGLE = ("host", "origin", "content-length", "sec-fetch-site", "sec-fetch-mode")  # headers that may not occur twice
COOKIE = "fledge_token_{port}"  # browsers share cookies between ports, and a machine may run two servers
STRIPPED = ("x-forwarded-prefix",)  # NiceGUI would write it into pages
MIN_TOKEN = 16  # characters of a given token

# NiceGUI evaluates handlers from the server and sets styles on elements: it needs unsafe-eval and unsafe-inline
POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; media-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}

STYLE = (
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}"
    "p{border-left:4px solid #0b6fae;padding-left:1rem}"
)
STYLE_HASH = f"'sha256-{base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()}'"


@dataclass(frozen=True)
class Refusal(Exception):
    """A refused request: status code and message."""

    status: int
    sentence: str


def is_local(host: str) -> bool:
    """Return whether a server bound to this host can be reached only from this machine."""
    address = host.strip("[]")
    return host == "localhost" or (is_address(address) and ipaddress.ip_address(address).is_loopback)


def same_token(given: str, token: str) -> bool:
    """Return whether two tokens are equal, in constant time."""
    return hmac.compare_digest(hashlib.sha256(given.encode()).digest(), hashlib.sha256(token.encode()).digest())


class Guard:
    """ASGI middleware around the whole app that checks requests and adds headers.

    Args:
        host, port: Host and port that the server is bound to.
        token: Token that requests must have; None is allowed only on localhost.
        names: Further host names of the server.
    """

    def __init__(
        self, app: Any, host: str, token: str | None = None, names: Collection[str] = (), port: int = 0
    ) -> None:
        assert token or is_local(host), "a server that others reach needs a token"
        self.app, self.token = app, token
        self._cookie = COOKIE.format(port=port)
        self._local = is_local(host)
        self._names = {name.lower() for name in (*names, *LOCAL)}
        if not self._local:
            self._names |= {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self.app(scope, receive, send)
        pairs = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = dict(pairs)
        try:
            check_single(pairs)
            self._check_host(headers)
            self._check_origin(scope, headers)
            if scope["type"] == "http" and self._brings_token(scope):
                return await self._welcome(scope, send)
            self._check_token(headers)
            check_size(headers)
        except Refusal as refusal:
            return await refuse(scope, receive, send, refusal)
        nonce = secrets.token_urlsafe(16)
        kept = [pair for pair in scope["headers"] if pair[0].decode("latin-1").lower() not in STRIPPED]
        scope = {**scope, "headers": kept, "state": {**scope.get("state", {}), "nonce": nonce}}
        departure = Departure()
        try:
            await self.app(scope, limited(departure.receive(receive)), with_headers(departure.send(send), nonce))
        except Refusal as refusal:  # the body was too large
            await refuse(scope, receive, send, refusal)
        except Exception as error:
            if not departure.explains(error):
                raise

    def _check_host(self, headers: Mapping[str, str]) -> None:
        found = HOST.fullmatch(headers.get("host", "").lower())
        name = (found[1] or found[2]) if found else ""
        if name not in self._names and (self._local or not is_address(name)):
            raise Refusal(
                421, "This host name is not a name of this server. Open the link that it printed when it started."
            )

    def _check_origin(self, scope: Scope, headers: Mapping[str, str]) -> None:
        origin, host = headers.get("origin"), headers.get("host", "")
        ours = origin in (f"http://{host}", f"https://{host}")
        quiet = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "navigate")
        foreign = site in ("cross-site", "same-site") and mode != "navigate"
        if foreign or not (ours or (quiet and origin is None)):
            raise Refusal(
                403, "Requests from other sites are refused. Open the link that the server printed in a browser."
            )

    def _brings_token(self, scope: Scope) -> bool:
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token")
        if self.token is None or given is None:
            return False
        if not same_token(given, self.token):
            raise Refusal(403, "The token is wrong. Open the link that the server printed when it started.")
        return True

    def _check_token(self, headers: Mapping[str, str]) -> None:
        if self.token is None:
            return
        crumbs = [crumb.strip().partition("=") for crumb in headers.get("cookie", "").split(";")]
        if not any(name == self._cookie and same_token(value, self.token) for name, _, value in crumbs):
            raise Refusal(401, "This server needs a token. Open the link that it printed when it started.")

    async def _welcome(self, scope: Scope, send: Any) -> None:
        """Answer with a page that sets the cookie and opens the same address without the token.

        A redirect would not work: after a click on another site, browsers follow it without the SameSite=Strict cookie.
        """
        rest = [pair for pair in parse_qsl(scope["query_string"].decode("latin-1")) if pair[0] != "token"]
        # quoted: browsers read a backslash as a slash and ignore tabs, and //name is another site
        target = "/" + quote(scope["path"].lstrip("/")) + (f"?{urlencode(rest)}" if rest else "")
        page = f'<meta http-equiv="refresh" content="0;url={html.escape(target)}"><title>Fledge</title>'
        cookie = f"{self._cookie}={self.token}; Path=/; Max-Age=31536000; HttpOnly; SameSite=Strict"
        await answer(send, 200, page, {"set-cookie": cookie})


def is_address(name: str) -> bool:
    """Return whether a name is an IP address (safe from DNS rebinding, which needs a domain name)."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_single(pairs: Iterable[tuple[str, str]]) -> None:
    """Raise Refusal if a header in SINGLE occurs twice: a proxy may have checked one value and we the other."""
    names = [name for name, _ in pairs if name in SINGLE]
    for name in names:
        if names.count(name) > 1:
            raise Refusal(400, f"The request has the header {name} twice. Send it once.")


def check_size(headers: Mapping[str, str]) -> None:
    """Raise Refusal if the content-length of a request is invalid or more than MAX_BODY."""
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or len(length) > 12 or int(length) > MAX_BODY:
        raise Refusal(413, TOO_LARGE)


def limited(receive: Any) -> Any:
    """Return `receive` wrapped to raise Refusal if the body has more than MAX_BODY bytes.

    An empty websocket message, which no page sends and NiceGUI's socket cannot read, ends the connection.
    """
    seen = 0

    async def inner() -> Any:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > MAX_BODY:
                raise Refusal(413, TOO_LARGE)
        if message["type"] == "websocket.receive" and not (message.get("text") or message.get("bytes")):
            return {"type": "websocket.disconnect", "code": 1003}
        return message

    return inner


def with_headers(send: Any, nonce: str) -> Any:
    """Return `send` wrapped to add the security headers, and to forbid caching unless the answer has cache-control."""
    ours = {**HEADERS, "content-security-policy": POLICY.format(nonce=nonce)}
    added = [(name.encode(), value.encode()) for name, value in ours.items()]

    async def inner(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            kept = [pair for pair in message.get("headers", []) if pair[0].decode("latin-1").lower() not in ours]
            if not any(pair[0].lower() == b"cache-control" for pair in kept):
                kept.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*kept, *added]}
        await send(message)

    return inner


async def refuse(scope: Scope, receive: Any, send: Any, refusal: Refusal) -> None:
    """Answer a refused request with the refusal's message; a refused websocket is closed before it opens."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    else:
        await answer(send, refusal.status, small_page(refusal.sentence))


def small_page(sentence: str, link: str = "") -> str:
    """Return a page with one sentence, and a link to the start page if given."""
    way = f'<p><a href="{html.escape(link)}">To the start page</a></p>' if link else ""
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
    body = f"<p>{html.escape(sentence)}</p>{way}"
    return f'<!doctype html><html lang="en"><head>{head}<title>Fledge</title></head><body>{body}</body></html>'


async def answer(send: Any, status: int, page: str, headers: Mapping[str, str] | None = None) -> None:
    """Send a small HTML page with the security headers as the whole answer."""
    body = page.encode()
    policy = f"default-src 'none'; style-src {STYLE_HASH}; frame-ancestors 'none'"
    ours = {**HEADERS, "content-security-policy": policy, "cache-control": "no-store"}
    ours |= {"content-type": "text/html; charset=utf-8", "content-length": str(len(body)), **(headers or {})}
    pairs = [(name.encode(), value.encode()) for name, value in ours.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
