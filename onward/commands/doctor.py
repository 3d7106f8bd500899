"""`onward doctor`: checks one by one what a service needs, and says what to do where a check fails."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from rich.table import Table
from rich.text import Text

from core.blobs import FsspecBlobs
from core.errors import ConfigError, OnwardError, StoreUnavailable
from core.model.files import check_weights, weight_files
from core.operations.keys import StoredKey
from core.profile import Expectation, Work
from core.reward_spec import load_reward_spec
from core.reward_spec.late_outcomes import require_that_they_correct
from core.reward_spec.outcome_ages import with_ages
from core.secrets import redacted
from core.settings import Settings
from onward.commands.client import opened, readiness
from onward.directory.layout import SHIPPED_MODEL, Layout
from onward.output import console
from onward.profiles import held
from onward.profiles.init import this_machine
from onward.profiles.loadable import require_loadable
from onward.wiring.foundation import is_distributed, look_at_directory, open_store, spec_path

if TYPE_CHECKING:
    from serving.engines.sglang.admin import AdapterRoom

_MAX_SKEW_S = 1.0
_OK = Text("ok", style="green")
_WRONG = Text("wrong", style="red")


@dataclass(frozen=True)
class Check:
    """`look` returns what was found, or raises OnwardError or OSError, whose message says what is wrong."""

    name: str
    look: Callable[[], str]
    advice: str


def examine(directory: Path, overrides: Mapping[str, str], work: Work = "chat") -> int:
    """Print a table of checks; return 0 when all pass, else 1. Makes nothing that was not there."""
    try:
        layout, settings = look_at_directory(directory, overrides)
    except ConfigError as error:
        console().print(_WRONG, Text(f"{redacted(str(error))}\n  see docs/settings.md"))
        return 1
    except OSError as error:
        told = f"{error.filename or directory}: {error.strerror or error}"
        console().print(
            _WRONG, Text(f"{redacted(told)}\n  allow us to read and write there, or take another directory")
        )
        return 1
    table = Table("what", "", "found", "to do")
    wrong = 0
    for check in _checks(layout, settings, work):
        try:
            table.add_row(check.name, _OK, Text(redacted(check.look())), "")
        except (OnwardError, OSError) as error:
            wrong += 1
            table.add_row(check.name, _WRONG, Text(redacted(str(error))), Text(check.advice))
    console().print(table)
    return 1 if wrong else 0


def _checks(layout: Layout, settings: Settings, work: Work) -> Iterator[Check]:
    yield Check(
        "directory", lambda: _directory(layout, settings), "make room, allow us to write there, or take another"
    )
    yield Check("model", lambda: _model(settings), "point serving.model at a whole Hugging Face directory")
    yield from _profile_checks(layout, settings, work)
    yield Check("rewards", lambda: _rewards(layout, settings), "mend the file; docs/rewards.md says how it is written")
    yield Check("api keys", lambda: _keys(settings, layout), "docs/settings.md, [api]")
    yield Check("blobs", lambda: _place("blobs", settings.blobs, layout), "allow us to read, write and delete there")
    if settings.archive.has_work:
        yield Check("archive", lambda: _archive(settings, layout), "allow us to read, write and delete there")
    if settings.judge.enabled:
        yield Check("judge", lambda: _judge(settings), "start its endpoint, or mend [judge]; without it all else works")
    if settings.serving.engine == "sglang":
        yield from _engine_checks(layout, settings)
    if is_distributed(settings):
        yield Check("Kafka", lambda: _kafka(settings), "start it, mend [kafka], or run `onward migrate`")
        yield Check("Postgres", lambda: _postgres(settings), "start it, mend [postgres], or run `onward migrate`")
        yield Check("Redis", lambda: _redis(settings), "start it or mend [redis]; without it all works, but slower")
    else:
        yield Check("log and store", lambda: _embedded(layout, settings), "restore a backup, or take a new directory")


def _directory(layout: Layout, settings: Settings) -> str:
    layout.require_ours()
    place = _tried(layout.root)
    free = shutil.disk_usage(place).free
    if free < settings.ingest.spool_bytes:
        raise ConfigError(
            f"{layout.root}: {free:,} bytes are free, ingest.spool_bytes is {settings.ingest.spool_bytes:,}"
        )
    new = "" if layout.root.exists() else "; it is made at the first start"
    return f"{layout.root}, {free / 1e9:.1f} GB free{new}"


def _tried(folder: Path) -> Path:
    """Write and read in a folder, or in the one that it would be made in, and leave no trace; return which it was.

    Raises ConfigError, OSError."""
    place = next(each for each in (folder, *folder.parents) if each.exists())
    if not place.is_dir():
        raise ConfigError(f"{place}: is no directory")
    probe, content = place / f".doctor-{uuid4().hex}", b"onward"
    try:
        probe.write_bytes(content)
        found = probe.read_bytes()
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror or error}") from error
    finally:
        probe.unlink(missing_ok=True)
    if found != content:
        raise ConfigError(f"{place} gave back something else than was put there")
    return place


def _model(settings: Settings) -> str:
    from serving.engines.model_facts import read_model_facts
    from serving.rendering import report_family

    directory = settings.serving.model or SHIPPED_MODEL
    facts = read_model_facts(directory)
    if settings.serving.engine == "local" or settings.learner.enabled:
        require_loadable(directory)
    check_weights(directory)
    if find_spec("torch") is not None:  # where it is not, nothing loads weights
        from serving.engines.local.modules.plain import check_plain_weights

        check_plain_weights(directory)
    report = report_family(directory, settings.serving.family)
    return f"{directory}: {facts.vocabulary:,} tokens, context {facts.context_length:,}; {report}"


def _profile_checks(layout: Layout, settings: Settings, work: Work) -> Iterator[Check]:
    """Yield checks of what the model takes, by its shape and the settings, and of what a running service takes."""
    from core.profile import expect, read_shape

    try:
        shape = read_shape(settings.serving.model or SHIPPED_MODEL)
    except ConfigError:
        return  # a model of another kind, or none: no profile is known
    machine = this_machine("cpu" if settings.learner.device == "cpu" else None, None, None)
    if settings.learner.device != "cpu" and not machine.cards:
        return
    expected = expect(shape, settings, machine, work=work)
    less = "shorten serving.context_length, take fewer serving.local.slots, or run `onward init` anew"
    if settings.serving.engine == "local":
        yield Check("profile", lambda: held.fits(expected, machine.memory_bytes), less)
    yield Check("base", lambda: _base(layout, settings), "restore the model's files, or take a new directory")
    running = held.running(layout)
    if running is not None:
        yield from _running_checks(layout, expected, running, less)


def _running_checks(layout: Layout, expected: Expectation, running: held.Running, less: str) -> Iterator[Check]:
    yield Check("service", lambda: _components(layout), "its log and `GET /v1/stages` say why")
    yield Check("memory: service", lambda: held.memory(running.service, expected.service_bytes), less)
    learner = running.learner
    if learner is not None:
        most = expected.learner_most_bytes
        yield Check("memory: learner", lambda: held.memory(learner, most), "see learner.compute in docs/settings.md")
    yield Check(
        "disk", lambda: held.disk(layout, expected.disk_bytes), "see serving.versions.keep, learner.checkpoints"
    )
    slow = "the page Releases says what a version waits for; if for nothing, feedback comes faster than it is learned"
    slow += " from: a smaller learner.batch.backlog_turns, or a faster machine; `--for agent`, if agents ask"
    yield Check("feedback to served", lambda: held.served(samples(layout), expected.served_s), slow)


def _components(layout: Layout) -> str:
    """Ask the running service which of its parts work. Raises ConfigError naming those that do not."""
    found = readiness(layout.root)
    wrong = [f"{name}: {state}" for name, state in found.items() if state != "ok"]
    if wrong:
        raise ConfigError("; ".join(wrong))
    return f"all of {', '.join(found)} work"


def samples(layout: Layout) -> dict[str, float]:
    """Return the metrics of the service that runs there. Raises OnwardError where it refuses them."""
    try:
        with opened(layout.root, "GET", "/metrics", os.environ.get("ONWARD_KEY")) as answer:
            lines = answer.read().decode().splitlines()
    except OnwardError as error:
        raise OnwardError(f"/metrics: {error} (ONWARD_KEY may hold it)") from error
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[:1] not in "# "}


def _base(layout: Layout, settings: Settings) -> str:
    """Compare the model's weights with those that published adapters stand upon."""
    from core.model.weights_digest import digest_of_shards
    from serving.weights.deltas.manifest import read_manifest

    if settings.blobs is None and not layout.blobs.exists():
        return "no adapters are published"
    blobs = FsspecBlobs(settings.blobs or layout.blobs, layout.cache)
    manifests = [read_manifest(blobs, path) for path in blobs.list("weights/") if path.endswith("/manifest.json")]
    adapters = {each.version: each.adapter for each in manifests if each.adapter is not None}
    if not adapters:
        return "no adapters are published"
    found = digest_of_shards(weight_files(settings.serving.model or SHIPPED_MODEL))
    for version, adapter in adapters.items():
        if adapter.base_digest != found:
            raise ConfigError(
                f"version {version} stands upon weights {adapter.base_digest[:12]}, the model's are {found[:12]}"
            )
    return f"{len(adapters)} adapters stand upon the model's weights {found[:12]}"


def _rewards(layout: Layout, settings: Settings) -> str:
    path = spec_path(layout, settings)
    spec = load_reward_spec(path)
    with_ages(settings.learner, spec)
    require_that_they_correct(spec)
    return f"{path}: {', '.join(spec.outcomes)}"


def _keys(settings: Settings, layout: Layout) -> str:
    from api.access.identity import KeyRing

    stored = _stored_keys(layout, settings)
    KeyRing(settings.api, stored)
    if stored is None:
        return f"{len(settings.api.keys)} keys in the settings; the store, which may have more, does not answer"
    if not settings.api.keys and not stored:
        return "none: requests from loopback may do everything"
    in_force = sum(not key.is_over(datetime.now(UTC)) for key in stored)
    return f"{len(settings.api.keys)} keys in the settings, {in_force} in force in the store"


def _stored_keys(layout: Layout, settings: Settings) -> list[StoredKey] | None:
    """Return the store's keys, or None where it does not answer."""
    if not is_distributed(settings) and not layout.store.exists():
        return []  # nothing has run here, and looking makes no store
    try:
        with closing(open_store(layout, settings)) as store, store.look() as view:
            return view.keys.all()
    except StoreUnavailable:
        return None


def _archive(settings: Settings, layout: Layout) -> str:
    days = settings.archive.retention_days
    kept = "the log is kept whole" if days is None else f"the log keeps {days:g} days"
    if not settings.archive.enabled:
        return f"nothing is archived; {kept}"
    return f"{_place('archive.url', settings.archive.url or settings.blobs, layout)}; {kept}"


def _judge(settings: Settings) -> str:
    from scoring.judge.endpoint import try_endpoint

    vote = try_endpoint(settings.judge)
    return f"{settings.judge.base_url}: {settings.judge.model} gives {vote.score:g} to a trivial answer"


def _place(setting: str, url: str | None, layout: Layout) -> str:
    place = url or layout.blobs
    blobs, name, content = FsspecBlobs(place, layout.cache), f"doctor/{uuid4().hex}", b"onward"
    if blobs.directory is not None:  # where a blob would leave its folders
        made = "" if _tried(blobs.directory) == blobs.directory else ", made at the first start"
        return f"{place}{made}"
    blobs.put(name, content)
    found = blobs.get(name)
    blobs.delete(name)
    if found != content:
        raise ConfigError(f"{setting}: {place} gave back something else than was put there")
    return str(place)


def _engine_checks(layout: Layout, settings: Settings) -> Iterator[Check]:
    servers = settings.serving.sglang
    if servers.replicas and not servers.urls:
        yield Check(
            "SGLang", lambda: _interpreter(servers.python), "run `make sglang-cpu`, or set serving.sglang.python"
        )
    for url in servers.urls or _started(layout, settings):
        yield Check(f"SGLang {url}", partial(_engine, url, settings), "start it, or mend serving.sglang.urls")


def _started(layout: Layout, settings: Settings) -> list[str]:
    """Return the servers on this machine that hosts have started and that are there."""
    if is_distributed(settings) or not layout.store.exists():
        return []
    try:
        with closing(open_store(layout, settings)) as store, store.look() as view:
            hosts = view.fleet.statuses(settings.serving.cluster)
    except (OnwardError, OSError):
        return []  # "log and store" says what is wrong
    oldest = datetime.now(UTC) - timedelta(seconds=settings.serving.fleet.heartbeat_timeout_s)
    return [host.url for host in hosts if host.url and host.serving is not None and host.heartbeat_at > oldest]


def _interpreter(python: Path) -> str:
    if not python.exists():
        raise ConfigError(f"serving.sglang.python: {python} is not there")
    return str(python)


def _engine(url: str, settings: Settings) -> str:
    from core.model.weights_digest import bytes_of, tensors_of
    from serving.engines.sglang.admin import Admin
    from serving.engines.sglang.checksums import computable
    from serving.engines.sglang.proof import proof_of

    servers = settings.serving.sglang
    files = weight_files(settings.serving.model or SHIPPED_MODEL)
    admin = Admin(url, servers.admin_key, servers.timeouts.admin_s)
    try:
        info, ranks = admin.info(), admin.checksums(bytes_of(tensors_of(files)))
    finally:
        admin.close()
    if info.dtype not in ("auto", servers.dtype):
        raise ConfigError(f"serving.sglang.dtype is {servers.dtype}, and the server has {info.dtype}")
    computed = computable(files, servers.dtype)
    proof = proof_of(ranks, computed, is_quantized=info.is_quantized)
    facts = f"SGLang {info.sglang}, {info.dtype}, context {info.context_length:,}, grammars by {info.grammars}"
    return f"{facts}; {_takes_adapters(info.adapters, settings)}what it loads is shown by {proof}"


def _takes_adapters(room: "AdapterRoom | None", settings: Settings) -> str:
    """Return how a server is given versions that are adapters, where the learner makes such."""
    from onward.wiring.engines import learned_adapters
    from serving.engines.sglang.adapters import kinds_named, why_merged

    lora = settings.learner.lora
    if not lora.rank:
        return ""
    wanted = learned_adapters(settings)
    kinds = kinds_named(lora.targets) or (frozenset() if wanted is None else wanted.targets)
    why = why_merged(room, lora.rank, kinds)
    if why is None and room is not None:
        return f"it loads adapters by name, up to rank {room.max_rank}; "
    return f"each version is merged with the model and each pauses the server: {why}; "


def _kafka(settings: Settings) -> str:
    from ingest.kafka.topics import check

    return check(settings.kafka)


def _postgres(settings: Settings) -> str:
    from core.store import open_postgres
    from core.store.database.postgres import version_and_skew

    store = open_postgres(settings.postgres)
    try:
        version, skew_s = version_and_skew(store)
    finally:
        store.close()
    if abs(skew_s) > _MAX_SKEW_S:
        raise ConfigError(f"its clock is {skew_s:+.1f} s from ours: leases and waits would end at other times")
    return f"{version.split(' (')[0]}, clock {1000 * skew_s:+.0f} ms"


def _redis(settings: Settings) -> str:
    from redis import Redis
    from redis.exceptions import RedisError

    try:
        with Redis.from_url(settings.redis.url, socket_timeout=2.0, socket_connect_timeout=2.0) as client:
            return f"Redis {client.info('server')['redis_version']}"
    except (RedisError, ValueError) as error:
        raise ConfigError(f"redis.url: {error}") from error


def _embedded(layout: Layout, settings: Settings) -> str:
    from core.store import open_sqlite
    from ingest.sqlite.log import SqliteEventLog

    present = [path for path in (layout.log, layout.store) if path.exists()]
    if not present:
        return "a new directory"
    if layout.log in present:
        SqliteEventLog(layout.log, settings.ingest.partitions, settings.ingest.poll_s).close()
    if layout.store in present:
        open_sqlite(layout.store).close()
    missing = [f"{path.name} is made at the next start" for path in (layout.log, layout.store) if path not in present]
    return ", ".join([*(path.name for path in present), *missing])
