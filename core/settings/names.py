"""Names of settings: where they stand, what they were called before, and what somebody probably meant."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from core.errors import ConfigError

FORMER: Final[Mapping[str, str]] = {
    "api.allowed_hosts": "api.web.allowed_hosts",
    "api.allowed_origins": "api.web.allowed_origins",
    "api.clock_skew_s": "api.feedback.clock_skew_s",
    "api.default_max_tokens": "api.advanced.default_max_tokens",
    "api.default_namespace": "api.advanced.default_namespace",
    "api.environment": "api.advanced.environment",
    "api.feedback_lookup_s": "api.feedback.lookup_s",
    "api.max_body_bytes": "api.bodies.max_bytes",
    "api.order_wait_s": "api.advanced.order_wait_s",
    "api.tls_certificate": "api.tls.certificate",
    "api.tls_key": "api.tls.key",
    "api.user_feedback_per_minute": "api.feedback.user_per_minute",
    "judge.give_up_s": "judge.requests.give_up_s",
    "judge.max_age_s": "judge.turns.max_age_s",
    "judge.max_characters": "judge.turns.max_characters",
    "judge.max_tokens": "judge.requests.max_tokens",
    "judge.purposes": "judge.turns.purposes",
    "judge.requests_under_way": "judge.requests.under_way",
    "judge.share": "judge.turns.share",
    "judge.temperature": "judge.requests.temperature",
    "judge.timeout_s": "judge.requests.timeout_s",
    "judge.turns_per_minute": "judge.turns.per_minute",
    "judge.votes": "judge.requests.votes",
    "judge.workloads": "judge.turns.workloads",
    "kafka.buffer_bytes": "kafka.client.buffer_bytes",
    "kafka.delivery_timeout_s": "kafka.client.delivery_timeout_s",
    "kafka.flush": "kafka.topics.flush",
    "kafka.linger_s": "kafka.client.linger_s",
    "kafka.max_poll_interval_s": "kafka.client.max_poll_interval_s",
    "kafka.max_record_bytes": "kafka.topics.max_record_bytes",
    "kafka.min_insync_replicas": "kafka.topics.min_insync_replicas",
    "kafka.replication_factor": "kafka.topics.replication_factor",
    "kafka.retention_s": "kafka.topics.retention_s",
    "kafka.sasl_mechanism": "kafka.security.sasl_mechanism",
    "kafka.sasl_password": "kafka.security.sasl_password",
    "kafka.sasl_username": "kafka.security.sasl_username",
    "kafka.security_protocol": "kafka.security.protocol",
    "kafka.session_timeout_s": "kafka.client.session_timeout_s",
    "kafka.ssl_cafile": "kafka.security.ssl_cafile",
    "kafka.ssl_certfile": "kafka.security.ssl_certfile",
    "kafka.ssl_check_hostname": "kafka.security.ssl_check_hostname",
    "kafka.ssl_keyfile": "kafka.security.ssl_keyfile",
    "learner.advantage": "learner.advantage.baseline",
    "learner.anchor_versions": "learner.objective.kl.anchor_versions",
    "learner.backlog_turns": "learner.batch.backlog_turns",
    "learner.batch_turns": "learner.batch.turns",
    "learner.beta1": "learner.optimizer.beta1",
    "learner.beta2": "learner.optimizer.beta2",
    "learner.channels": "learner.advantage.channels",
    "learner.clip_high": "learner.objective.clip_high",
    "learner.clip_low": "learner.objective.clip_low",
    "learner.correction": "learner.objective.correction.method",
    "learner.default_max_age_s": "learner.admission.default_max_age_s",
    "learner.distrust": "learner.users.distrust",
    "learner.dual_clip": "learner.objective.dual_clip",
    "learner.ema_decay": "learner.advantage.ema_decay",
    "learner.entropy_coefficient": "learner.objective.entropy_coefficient",
    "learner.entropy_normaliser": "learner.objective.entropy_normaliser",
    "learner.geometric_band": "learner.objective.correction.geometric_band",
    "learner.gradient_checkpointing": "learner.compute.gradient_checkpointing",
    "learner.gradient_clip": "learner.optimizer.gradient_clip",
    "learner.icepop_band": "learner.objective.correction.icepop_band",
    "learner.keep_checkpoints": "learner.checkpoints.keep",
    "learner.keep_out": "learner.admission.keep_out",
    "learner.kl_coefficient": "learner.objective.kl.coefficient",
    "learner.kl_estimator": "learner.objective.kl.estimator",
    "learner.kl_normaliser": "learner.objective.kl.normaliser",
    "learner.kl_placement": "learner.objective.kl.placement",
    "learner.kto_beta": "learner.objective.kto_beta",
    "learner.kto_outcomes": "learner.admission.kto_outcomes",
    "learner.late": "learner.admission.late",
    "learner.late_max_age_s": "learner.admission.late_max_age_s",
    "learner.learning_rate": "learner.optimizer.learning_rate",
    "learner.lora_alpha": "learner.lora.alpha",
    "learner.lora_rank": "learner.lora.rank",
    "learner.lora_targets": "learner.lora.targets",
    "learner.loss": "learner.objective.loss",
    "learner.max_divergence": "learner.admission.max_divergence",
    "learner.max_lead": "learner.checkpoints.max_lead",
    "learner.max_outcome_age_s": "learner.admission.max_outcome_age_s",
    "learner.max_user_share": "learner.users.max_share",
    "learner.max_versions_behind": "learner.admission.max_versions_behind",
    "learner.max_wait_s": "learner.batch.max_wait_s",
    "learner.micro_batch_tokens": "learner.compute.micro_batch_tokens",
    "learner.min_ess": "learner.admission.min_ess",
    "learner.min_turns": "learner.batch.min_turns",
    "learner.normaliser_tokens": "learner.objective.normaliser_tokens",
    "learner.packed": "learner.compute.packed",
    "learner.peak_tflops": "learner.compute.peak_tflops",
    "learner.policy_normaliser": "learner.objective.policy_normaliser",
    "learner.precision": "learner.compute.precision",
    "learner.ratio_cap": "learner.objective.correction.ratio_cap",
    "learner.reward_range": "learner.advantage.reward_range",
    "learner.share_repeats": "learner.users.share_repeats",
    "learner.turn_discount": "learner.advantage.turn_discount",
    "learner.value_learning_rate": "learner.advantage.value_learning_rate",
    "learner.warmup_updates": "learner.optimizer.warmup_updates",
    "learner.weight_decay": "learner.optimizer.weight_decay",
    "release.alpha": "release.canary.alpha",
    "release.canary": "release.canary.enabled",
    "release.canary_share": "release.canary.share",
    "release.guard_turns": "release.canary.guard_turns",
    "release.holdback_salt": "release.holdback.salt",
    "release.holdback_share": "release.holdback.share",
    "release.horizon_s": "release.canary.horizon_s",
    "release.horizon_turns": "release.canary.horizon_turns",
    "release.margin": "release.canary.margin",
    "release.maturity_s": "release.canary.maturity_s",
    "release.min_users": "release.canary.min_users",
    "serving.anchor_every": "serving.versions.anchor_every",
    "serving.cached_versions": "serving.versions.cached",
    "serving.device": "serving.local.device",
    "serving.dtype": "serving.local.dtype",
    "serving.engine_wait_s": "serving.fleet.engine_wait_s",
    "serving.gate_max_entropy_share": "release.gate.max_entropy_share",
    "serving.gate_max_kl": "release.gate.max_kl",
    "serving.gate_min_entropy": "release.gate.min_entropy",
    "serving.heartbeat_timeout_s": "serving.fleet.heartbeat_timeout_s",
    "serving.keep_versions": "serving.versions.keep",
    "serving.min_swap_interval_s": "serving.versions.min_swap_interval_s",
    "serving.prefill_tokens": "serving.local.prefill_tokens",
    "serving.sglang.admin_timeout_s": "serving.sglang.timeouts.admin_s",
    "serving.sglang.drain_s": "serving.sglang.timeouts.drain_s",
    "serving.sglang.health_every_s": "serving.sglang.timeouts.health_every_s",
    "serving.sglang.health_timeout_s": "serving.sglang.timeouts.health_s",
    "serving.sglang.silence_s": "serving.sglang.timeouts.silence_s",
    "serving.sglang.start_timeout_s": "serving.sglang.timeouts.start_s",
    "serving.slots": "serving.local.slots",
}
"""Settings that have another name now, by their former one. Sections took the places of settings of the same name."""


class Removed(NamedTuple):
    value: Any  # as with which the program goes on
    holds: str


REMOVED: Final[Mapping[str, Removed]] = dict.fromkeys(
    ("learner.discount", "learner.gae_lambda", "learner.advantage.discount", "learner.advantage.gae_lambda"),
    Removed(1.0, "every token of a turn has the turn's whole reward, as with the former default 1"),
)
"""Settings that no longer exist, under each of their names."""


def refuse_former(sources: Iterable[Mapping[str, Any]]) -> None:
    """Refuse former names. Raises ConfigError that gives each in the sources its present one, or says what holds."""
    found = [path for values in sources for path in _former(values)]
    if found:
        raise ConfigError("settings: " + "; ".join(map(_said_of, found)))


def _said_of(former: str) -> str:
    if former in REMOVED:
        return f"{former} was removed: {REMOVED[former].holds}"
    return f"{former} is called {FORMER[former]} now"


def under_their_names(values: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return the recorded values of a section, with former names and values replaced by present ones.

    Settings that were removed are left out. Raises ConfigError where one had another value than holds now."""
    values = _without_removed(values, f"{section}.")
    former = {path: FORMER[path] for path in _former({section: values})}
    kept = {key: value for key, value in values.items() if f"{section}.{key}" not in former}
    for old, new in former.items():
        place(kept, new.removeprefix(f"{section}."), values[old.removeprefix(f"{section}.")])
    if section == "learner" and kept.get("users", {}).get("max_share", 1.0) is None:
        kept["users"] = {**kept["users"], "max_share": 1.0}  # no bound, as it was written when it had no number
    return kept


def _without_removed(values: Mapping[str, Any], above: str) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{above}{name}"
        if path not in REMOVED:
            kept[name] = _without_removed(value, f"{path}.") if isinstance(value, Mapping) else value
        elif value != REMOVED[path].value:
            raise ConfigError(f"{path} was {value}: {_said_of(path)}")
    return kept


def _former(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in values.items():
        path = f"{above}{key}"
        if path in REMOVED or (path in FORMER and not (isinstance(value, Mapping) and _is_section(path))):
            yield path
        elif isinstance(value, Mapping):
            yield from _former(value, f"{path}.")


def _is_section(path: str) -> bool:
    return FORMER[path].startswith(f"{path}.")


def place(values: dict[str, Any], path: str, value: Any) -> None:
    """Put a value into nested sections. Raises ConfigError where one of them is a setting already."""
    *sections, name = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"settings: {path}: {section} is no section")
    values[name] = value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Sections within sections, of values by their paths (`optimizer.learning_rate`)."""
    made: dict[str, Any] = {}
    for path, value in values.items():
        place(made, path, value)
    return made


def paths(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Yield the paths of all settings."""
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from paths(type(field.default), f"{above}{name}.")
        else:
            yield above + name


def probably_meant(path: str, known: Iterable[str]) -> str | None:
    """Return the most similar known path: as a whole, or by a name that stands in another section."""
    candidates = list(known)
    named = [each for each in candidates if each.rsplit(".", 1)[-1] == path.rsplit(".", 1)[-1]]
    return next(iter(named if len(named) == 1 else get_close_matches(path, candidates, n=1, cutoff=0.8)), None)
