"""The commands that talk to a running service, through its public API like everybody else."""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rich.table import Table

from core.errors import OnwardError
from onward.directory.addresses import find_certificate, find_urls
from onward.http.tls import client_context
from onward.output import console, show_list

_TIMEOUT_S = 90


def show_policies(directory: Path, key: str | None, *, as_json: bool) -> None:
    table = Table(title="Policy versions")
    for column in ("version", "state", "can serve", "parent", "turns", "digest", "created"):
        table.add_column(column, no_wrap=column == "state")  # which people and programs look for
    answer = call(directory, "GET", "/v1/policies", key)
    for policy in answer["data"]:
        table.add_row(
            str(policy["version"]),
            _standing(policy, answer),
            _soon(policy),
            str(policy["parent"] or "-"),
            str(policy["turns"]),
            policy["digest"][:12],
            policy["created_at"],
        )
    if show_list(answer, table, as_json=as_json):
        _show_what_waits(answer)


def _show_what_waits(answer: dict[str, Any]) -> None:
    """Show verdicts, the running canary, the newest orders, and alarms that hold releases."""
    out = console()
    for policy in answer["data"]:
        if policy["verdict"] is not None:
            out.print(f"version {policy['version']}: {policy['verdict']['action']}: {policy['verdict']['why']}")
    experiment = answer["experiment"]
    if experiment is not None:
        share = f"{experiment['share']:.0%} of the users"
        before = f", after {', '.join(map(str, experiment['lane']))} in its lane" if experiment["lane"] else ""
        out.print(f"canary: version {experiment['canary']} against {experiment['control']}, on {share}{before}")
    for order in reversed(answer["orders"]):
        out.print(_order_line(order))
    for alarm in answer["held_by"]:
        out.print(_waiting_line(alarm["alarm_id"]))


def _waiting_line(alarm_id: str | None) -> str:
    if alarm_id is None:
        return "releases wait for an alarm of another namespace, whose operators acknowledge it"
    return f"releases wait for alarm {alarm_id}: `onward alarms ack {alarm_id}`"


def _order_line(order: dict[str, Any]) -> str:
    came = "waits" if order["done_at"] is None else order["done_at"] if order["error"] is None else order["error"]
    return f"order: {order['kind']} {order['version']}, by {order['by']}: {order['why']} ({came})"


def _soon(found: dict[str, Any]) -> str:
    """Return in words how soon a version could serve."""
    return {"now": "now", "lost": "no more"}.get(found["servable"]) or f"in about {found['about_s']:.0f} s"


def _standing(policy: dict[str, Any], answer: dict[str, Any]) -> str:
    marks = [word for word, holds in (("pinned", policy["version"] == answer["pinned"]),) if holds]
    marks += ["held"] if policy["version"] in answer["held"] else []
    judged = policy["verdict"]
    marks += (
        ["waits for `onward promote`"]
        if policy["state"] == "candidate" and judged and judged["action"] == "hold"
        else []
    )
    marks += ["waits for an alarm"] if policy["state"] == "candidate" and answer["held_by"] else []
    return ", ".join([policy["state"], *marks])


def show_fleet(directory: Path, key: str | None, *, as_json: bool) -> None:
    answer = call(directory, "GET", "/v1/fleet", key)
    table = Table(title=f"Fleet (live: version {answer['live']})")
    for column in ("engine", "state", "lane", "serves", "shall serve", "holds", "heard", "url"):
        table.add_column(column)
    for replica in answer["data"]:
        table.add_row(
            replica["name"],
            replica["state"],
            replica["lane"],
            str(replica["serving"] or "-"),
            str(replica["target"] or "-"),
            ", ".join(map(str, replica["held"])),
            f"{replica['heartbeat_age_s']:.1f} s ago",
            replica["url"] or "within the service",
        )
    if not show_list(answer, table, as_json=as_json):
        return
    for replica in answer["data"]:
        for version, why in replica["refused"].items():
            console().print(f"{replica['name']} refuses version {version}: {why}")


def give_order(directory: Path, kind: str, version: int, why: str, key: str | None) -> None:
    if kind == "rollback":
        found = call(directory, "GET", f"/v1/policies/{version}/rollback", key)
        if found["servable"] == "rebuild":
            console().print(f"version {version} is made again first, which takes about {found['about_s']:.0f} s")
    answer = call(directory, "POST", f"/v1/policies/{version}/{kind}", key, {"why": why})
    console().print(f"version {version}: {answer['status']}, by {answer['by']}")


def call(directory: Path, method: str, path: str, key: str | None, body: dict[str, Any] | None = None) -> Any:
    """Return the answer's JSON. Raises OnwardError with the service's message."""
    with opened(directory, method, path, key, body) as response:
        text = response.read()
    try:
        return json.loads(text)
    except ValueError as error:
        raise OnwardError(f"{find_urls(directory)[0]}{path} answers no JSON: is there a proxy between?") from error


def readiness(directory: Path) -> dict[str, str]:
    """Return what `/readyz` says of each part of the service, whether or not it is ready. Raises OnwardError."""
    certificate = find_certificate(directory)
    opener = directly(None if certificate is None else client_context(certificate))
    try:
        with opener.open(find_urls(directory)[0] + "/readyz", timeout=_TIMEOUT_S) as response:
            found = json.load(response)
    except urllib.error.HTTPError as error:
        found = json.load(error)
    except (OSError, ValueError) as error:
        raise OnwardError(f"the service does not answer: {error}") from error
    return dict(found["components"])


@contextmanager
def opened(
    directory: Path,
    method: str,
    path: str,
    key: str | None,
    body: dict[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[IO[bytes]]:
    """Open a request; its answer can be read as it arrives."""
    certificate = find_certificate(directory)
    tls = None if certificate is None else client_context(certificate)
    request = urllib.request.Request(
        find_urls(directory)[0] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {key}"} if key else {}),
            **(headers or {}),
        },
    )
    try:
        with directly(tls).open(request, timeout=_TIMEOUT_S) as response:
            yield response
    except urllib.error.HTTPError as error:
        raise OnwardError(_message_of(error)) from error
    except urllib.error.URLError as error:
        raise OnwardError(f"the service does not answer: {error.reason}") from error
    except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
        raise OnwardError(f"the service broke off its answer: {error or type(error).__name__}") from error


def directly(tls: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    """Return what opens URLs of this machine, before which no proxy stands: urllib knows no `no_proxy` for IPv6."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))


def _message_of(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):  # not what this service says: a proxy's page, perhaps
        kind = error.headers.get("content-type", "no type")
        return f"{error.url} answers {error.code} with {kind} that is not this service's: is there a proxy between?"
