"""The vocabulary: what the stages say to each other, in the order the data meets it.

Every event is frozen and versioned by its codec. A field that is None (or an empty tuple) says that nothing was
recorded, never zero. Times are UTC; durations carry their unit in the name."""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

import msgspec

from core.ids import GroupId, InferenceId, Namespace, OutcomeId, PolicyRef, SessionId, UserHash

Purpose = Literal["turn", "suggestion", "side", "summary", "judge"]
SegmentKind = Literal["thinking", "tool", "answer", "forced"]
Arm = Literal["live", "canary", "holdback", "shadow"]
Environment = Literal["production", "simulated"]
Priority = Literal["normal", "low"]  # low: nobody waits for it, and it gives way to whoever is waited for
Protocol = Literal["chat", "completions", "responses", "messages", "fim", "infill", "tabby"]
OutcomeSource = Literal["client", "user", "environment", "judge", "derived"]
ReleaseState = Literal["candidate", "canary", "live", "retired", "superseded", "rejected", "rolled_back"]
Severity = Literal["info", "warning", "critical"]
AlarmState = Literal["opened", "acknowledged", "closed"]
FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]


class Topic(StrEnum):
    """Turns and rewards are partitioned by session, policies and releases by version, the rest by their subject."""

    TURNS = "onward.turns"
    REWARDS = "onward.rewards"
    POLICIES = "onward.policies"
    RELEASES = "onward.releases"
    ALARMS = "onward.alarms"
    DEAD_LETTERS = "onward.dead_letters"


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    topic: Topic
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens [start, end) of one kind; `forced` ones were not sampled and never train."""

    start: int
    end: int
    kind: SegmentKind


class VersionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens [start, end) were sampled from this policy version."""

    start: int
    end: int
    version: PolicyRef


class TokenRange(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens [start, end) of a turn."""

    start: int
    end: int


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call the model made. `index` is its place in a parallel group; times are the client's, once known."""

    id: str
    name: str
    arguments: str
    index: int
    token_range: TokenRange | None = None  # the output tokens that it was read from, its markup among them
    started_at: datetime | None = None
    ended_at: datetime | None = None


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """The grammar that an answer had to follow, from its first token to the one that ends it.

    `lark`: llguidance's dialect of Lark (https://github.com/guidance-ai/llguidance, docs/syntax.md)."""

    kind: Literal["lark"] = "lark"
    text: str


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters with which the tokens were sampled.

    A grammar, and options that narrow the distribution, leave a turn trainable only where each token's mask is known
    (see `LogprobSpace`)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int = 16
    stop: tuple[str, ...] = ()
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    grammar: Grammar | None = None


class GrammarMasks(msgspec.Struct, frozen=True, kw_only=True):
    """What the masks that a grammar made are made again of, beside the grammar, the tokenizer and the output tokens.

    `digest` is of all masks along the output tokens (`core.grammars.masks`), to see whether they came out the same."""

    library: str
    version: str
    vocabulary: int  # ids of the model, which may be more than the tokenizer's
    stop_token_ids: tuple[int, ...]
    digest: str


class LogprobSpace(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of the behaviour log-probabilities: softmax(logits / temperature), over the ids allowed.

    All ids are, but for those that the masks of the turn's grammar exclude, and those that top-k, top-p or min-p cut
    off: `mask` names the attachment that holds each token's set of ids (`core.grammars.sets`), which is within the
    grammar's mask."""

    temperature: float
    mask: str | None = None
    grammar: GrammarMasks | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a turn whose text is not kept: tokens of prompt and output, characters of the answer."""

    prompt_tokens: int
    output_tokens: int
    characters: int


class Completion(msgspec.Struct, frozen=True, kw_only=True, tag="completion"):
    """One turn exactly as the engine produced it.

    Written by api after generation and before the last chunk is sent; read by ingest (to the store), scoring (to open
    the ledger) and, through the store, by the learner."""

    inference_id: InferenceId
    session_id: SessionId
    turn_index: int
    # The turn that this one continues: by its tokens, or by its words in a history that was retold; None at a root.
    parent_id: InferenceId | None
    group_id: GroupId
    namespace: Namespace
    user_id: UserHash | None
    key_id: str | None = None  # the name or the fingerprint of the API key that asked; None: there was no key
    workload: str
    purpose: Purpose
    client: str | None = None  # the program that asked, one of `api.access.clients`; None: nobody noted it
    protocol: Protocol | None = None  # in which it asked
    ignored: tuple[str, ...] = ()  # fields of its request that changed nothing
    harness_version: str | None = None
    environment_image: str | None = None
    received_at: datetime
    messages: tuple[dict[str, Any], ...]  # as received; a raw completion has one message of role "prompt"
    tools: tuple[dict[str, Any], ...] = ()
    sampling: Sampling
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    segments: tuple[Segment, ...] = ()
    logprobs: tuple[float, ...]  # behaviour, float32 values, one for each output token
    logprob_space: LogprobSpace
    trainable: bool
    untrainable_reasons: tuple[str, ...] = ()
    policy: str  # the base model or adapter that spoke
    policy_versions: tuple[VersionSpan, ...]
    replica: str | None = None
    experiment_id: str | None = None
    arm: Arm = "live"
    arm_assigned: Arm = "live"
    propensity: float = 1.0
    tokenizer_digest: str
    renderer: str
    finish_reason: FinishReason
    text: str = ""  # what was delivered as content
    # Characters of `text` up to the end of each output token, where the reward spec looks for claims in it.
    text_ends: tuple[int, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    broken_calls: int = 0  # begun, and never whole: part of the text
    not_finite: PolicyRef | None = None  # which computed no finite numbers for it: it failed, or another one answered
    transcript_digest: str | None = None  # of messages and this answer: how the next turn finds its parent
    delivered_tokens: int
    ttft_ms: float | None = None
    latency_ms: float
    environment: Environment = "production"
    priority: Priority = "normal"
    learn: bool = True
    session_done: bool = False
    has_instructions: bool = False  # the first message was the request's instructions, which do not outlive it
    retrievable: bool = True  # False: its client asked that no later request gets it by its id
    attachments: dict[str, str] = {}
    tags: dict[str, str] = {}
    unstored: Counts | None = None  # of a turn that was not to be stored: it has neither words nor tokens, only these

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids) if self.unstored is None else self.unstored.prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) if self.unstored is None else self.unstored.output_tokens

    @property
    def num_characters(self) -> int:
        """The number of characters of the answer, without its tool calls."""
        return len(self.text) if self.unstored is None else self.unstored.characters


class ToolCallTarget(msgspec.Struct, frozen=True, kw_only=True):
    tool_call_id: str


class TextEdit(msgspec.Struct, frozen=True, kw_only=True):
    """Output tokens [start, end), in whose place a user put these, which no model sampled; either may be empty."""

    start: int
    end: int
    token_ids: tuple[int, ...]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """The report of a person or a program about a turn or a session.

    Written by api (clients, and the simulator through it) and scoring (derived); read by ingest and scoring. It names
    an inference or a session, never neither. An amendment is a new outcome that `supersedes`; a withdrawal is one that
    supersedes with `withdrawn` and no value. `learn`: False where who said it lets its words and text teach nothing."""

    outcome_id: OutcomeId
    inference_id: InferenceId | None
    session_id: SessionId | None
    namespace: Namespace
    user_id: UserHash | None = None
    key_id: str | None = None  # of the API key that said it, as of a turn; None: no key did, or a stage of ours
    name: str
    value: bool | float | str | None
    target_range: TokenRange | None = None
    target_call: ToolCallTarget | None = None
    edits: tuple[TextEdit, ...] = ()  # from the answer's tokens to the text in `evidence`, in the order of tokens
    evidence: str | None = None
    source: OutcomeSource = "client"
    source_version: str | None = None
    observed_at: datetime
    received_at: datetime
    supersedes: OutcomeId | None = None
    withdrawn: bool = False
    tags: dict[str, str] = {}
    learn: bool = True


class SessionEnded(msgspec.Struct, frozen=True, kw_only=True, tag="session_ended"):
    """The client's word that a session is over, without a turn. Written by api; read by scoring."""

    session_id: SessionId
    namespace: Namespace
    received_at: datetime


class Credit(msgspec.Struct, frozen=True, kw_only=True):
    """Reward for output tokens [start, end) of the turn; absent credits mean that all tokens share `value`."""

    start: int
    end: int
    value: float


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """What a user, or a failed run, said of output tokens [start, end): words that a better answer would heed."""

    start: int
    end: int
    text: str
    outcome_id: OutcomeId


class Reward(msgspec.Struct, frozen=True, kw_only=True, tag="reward"):
    """The value of a turn, as far as it is known. Written by scoring; read by the learner, ingest and the console.

    `revision` counts from 0; a late outcome makes the next. `decided_at` is event time: replay yields the same.
    `said_by`: the users, as far as told, whose outcomes were in sight when it was decided: numbers, words and texts;
    `edited_by` is the one whose text `edits` are. `void`: the turn came about by a fault that is not the answer's, and
    is worth nothing that could be learned; its `value` is then 0, which takes back what the turn was trained on before
    this was known."""

    inference_id: InferenceId
    session_id: SessionId
    namespace: Namespace
    workload: str
    environment: Environment = "production"
    revision: int
    value: float
    components: dict[str, float]
    credits: tuple[Credit, ...] = ()
    hints: tuple[Hint, ...] = ()
    edits: tuple[TextEdit, ...] = ()  # the user's own text in place of the answer's
    edited_by: UserHash | None = None
    said_by: tuple[UserHash, ...] = ()
    outcome_ids: tuple[OutcomeId, ...]
    first_outcome_at: datetime | None  # arrival of the earliest outcome new in this revision; None: by default alone
    last_outcome_at: datetime | None
    why: str
    spec: str
    final: bool
    decided_at: datetime
    void: bool = False


class GateVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of checking a version before users get it.

    `hold` waits for an operator who promotes it, `ask` for the service's own eval cases. Written by `onward propose`
    and by the release controller, which obeys it."""

    action: Literal["refuse", "hold", "pass", "ask"]
    why: str
    figures: dict[str, float] = {}
    against: PolicyRef | None = None  # what was live, and was asked the same cases; None: no cases were asked
    proposed: bool = True  # made offline; False: the learner's, judged on its way to users


class SuiteKeptOut(msgspec.Struct, frozen=True, kw_only=True):
    """An eval suite whose solutions were kept out of a version's update; `turns` were left out because of it."""

    suite: str  # its directory
    digest: str  # of its cases
    solutions: int
    turns: int


class PolicyVersion(msgspec.Struct, frozen=True, kw_only=True, tag="policy_version"):
    """A set of weights and where it came from. Written by the learner (live or offline); read by serving and api."""

    version: PolicyRef
    policy: str
    digest: str  # of the tensors, see core.weights_digest
    parent: PolicyRef | None
    manifest: str | None  # blob: which turns, revisions, rewards, baselines, scales, credits, drops each update used
    log_offsets: dict[str, int] = {}  # "topic:partition" to the next offset not yet learned from
    turns: int = 0
    updates: int = 0
    metrics: dict[str, float] = {}
    outcome_arrivals: tuple[datetime, ...] = ()  # of each trained turn: when the outcome that decided it reached us
    weights: str  # blob path of the weights' manifest
    created_at: datetime
    verdict: GateVerdict | None = None  # None: nothing has judged it yet
    kept_out: tuple[SuiteKeptOut, ...] = ()  # none: no suite was, or a build before schema 7 made it

    @property
    def is_proposed(self) -> bool:
        """True when the version was made offline: versions that the learner made meanwhile do not descend from it."""
        return self.verdict is not None and self.verdict.proposed


class Release(msgspec.Struct, frozen=True, kw_only=True, tag="release"):
    """A step in a version's life in one cluster. Written by serving's controller; read by learner, api and console."""

    version: PolicyRef
    cluster: str
    state: ReleaseState
    why: str
    by: str  # gate, guard, start, or the API key that ordered it
    at: datetime


class Alarm(msgspec.Struct, frozen=True, kw_only=True, tag="alarm"):
    """A monitor's finding. Written by scoring, serving, learner; read by the console and the release controller."""

    alarm_id: str
    monitor: str
    severity: Severity
    namespace: Namespace | None = None  # with the workload: whose turns it is about; None: nobody's in particular
    workload: str | None = None
    window_start: datetime
    window_end: datetime
    figures: dict[str, float]
    holds: tuple[str, ...] = ()
    state: AlarmState
    at: datetime


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, tag="dead_letter"):
    """A record that could not be used, whole. Written by whoever met it; read by operators."""

    topic: str
    partition: int
    offset: int
    reason: str
    raw: bytes
    at: datetime


Event = Completion | Outcome | SessionEnded | Reward | PolicyVersion | Release | Alarm | DeadLetter
