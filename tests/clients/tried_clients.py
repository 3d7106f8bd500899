"""The clients that are tried, unmodified, and how each is pointed at the service."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "clients"
NODE = BUILD / "node" / "node_modules" / ".bin"
MODEL = "onward-script"


@dataclass(frozen=True)
class Run:
    """What a client is run with: the service's URL, and a directory of its own that is a repository."""

    url: str
    directory: Path


@dataclass(frozen=True)
class Client:
    """A client and its task.

    `steps` are its commands, one after another, and `lines` what is typed into the last; `says` is what it must print,
    `leaves` a file and what must be in it then; `turns` are the answers to its user and its tools, `sessions` those
    that they are in, `asides` its own requests; `purpose` is that of its turns."""

    name: str
    steps: Callable[[Run], list[list[str]]]
    turns: int
    says: str = ""
    sessions: int = 1
    asides: int = 0
    purpose: str = "turn"
    lines: str = ""
    files: Callable[[Run], dict[str, str]] = field(default=lambda run: {})
    leaves: tuple[str, str] = ("notes.txt", "")


def python(script: str, *arguments: str, turns: int = 3, sessions: int = 1) -> Client:
    command = [str(BUILD / "sdks-python" / "bin" / "python"), "-B", str(HERE / "python" / f"{script}.py"), *arguments]
    return Client(" ".join([f"{script}.py", *arguments]), lambda run: [command], turns, sessions=sessions)


def node(script: str, *arguments: str, turns: int = 3, purpose: str = "turn") -> Client:
    command = [str(BUILD / "node-python" / "bin" / "node"), str(BUILD / "node" / f"{script}.mjs"), *arguments]
    return Client(" ".join([f"{script}.mjs", *arguments]), lambda run: [command], turns, purpose=purpose)


def _opencode(run: Run) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{run.url}/v1", "apiKey": "unused"},
        "models": {MODEL: {"name": MODEL, "limit": {"context": 60_000, "output": 512}}},
    }
    settings = {
        "model": f"onward/{MODEL}",
        "small_model": f"onward/{MODEL}",
        "autoupdate": False,
        "share": "disabled",
        "provider": {"onward": provider},
    }
    return {"opencode.json": json.dumps(settings)}


def _codex(run: Run) -> dict[str, str]:
    settings = f"""\
model = "{MODEL}"
model_provider = "onward"
model_context_window = 60000
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
[model_providers.onward]
name = "Onward"
base_url = "{run.url}/v1"
wire_api = "responses"
[analytics]
enabled = false
"""
    return {".home/.codex/config.toml": settings}


def _continue(run: Run) -> dict[str, str]:
    settings = f"""\
name: tried
version: 1.0.0
schema: v1
models:
  - name: onward
    provider: openai
    model: {MODEL}
    apiBase: {run.url}/v1
    apiKey: unused
    roles: [chat]
    capabilities: [tool_use]
    defaultCompletionOptions: {{contextLength: 60000, maxTokens: 512}}
"""
    return {".home/continue.yaml": settings}


def _aider(run: Run) -> dict[str, str]:
    return {".aider.model.settings.yml": f"- name: openai/{MODEL}\n  edit_format: diff\n  use_temperature: 1.0\n"}


def _opencode_steps(run: Run) -> list[list[str]]:
    command = [str(NODE / "opencode"), "run"]
    return [[*command, "Read the notes. The codeword is opal."], [*command, "-c", "Thanks. The codeword is beryl."]]


def _codex_steps(run: Run) -> list[list[str]]:
    command = [str(NODE / "codex"), "exec"]
    again = [*command, "resume", "--last", "Thanks. The codeword is beryl."]
    return [[*command, "Read the notes. The codeword is indigo."], again]


def _continue_steps(run: Run) -> list[list[str]]:
    command = [str(NODE / "cn"), "--config", str(run.directory / ".home" / "continue.yaml"), "--auto"]
    again = [*command, "--resume", "-p", "Thanks. The codeword is beryl."]
    return [[*command, "-p", "Read the notes. The codeword is coral."], again]


def _aider_steps(run: Run) -> list[list[str]]:
    options = "--no-show-model-warnings --no-check-update --analytics-disable --no-gitignore --yes --no-pretty"
    models = ["--model", f"openai/{MODEL}", "--weak-model", f"openai/{MODEL}"]
    return [[str(BUILD / "aider-python" / "bin" / "aider"), *models, *options.split(), "--map-tokens", "0", "greet.py"]]


def _mini_steps(run: Run) -> list[list[str]]:
    task = ["-t", "Read the notes. The codeword is cobalt.", "-y", "--exit-immediately", "-o", "trajectory.json"]
    return [[str(BUILD / "sdks-python" / "bin" / "mini"), "-m", f"openai/{MODEL}", *task]]


CLIENTS = (
    python("openai_chat"),
    python("openai_responses"),
    python("anthropic_messages"),
    python("agents_responses"),
    python("agents_responses", "chat"),
    python("subagent", turns=4, sessions=2),
    python("pydantic_agent", "chat"),
    python("pydantic_agent", "responses"),
    python("litellm_loop"),
    python("langchain_agent", "openai"),
    python("langchain_agent", "anthropic"),
    python("llama_index_agent"),
    python("structured", turns=2, sessions=2),
    node("openai_chat"),
    node("openai_responses"),
    node("anthropic_messages"),
    node("ai_sdk", "openai"),
    node("ai_sdk", "chat"),
    node("ai_sdk", "anthropic"),
    node("ai_sdk", "compatible"),
    node("tabby", turns=1, purpose="suggestion"),
    Client("aider", _aider_steps, 2, "It greets", asides=1, files=_aider, leaves=("greet.py", "return 1"),
           lines="Make it greet. The codeword is umber.\n/ask What does it do? The codeword is sienna.\n"),
    Client("opencode", _opencode_steps, 3, "You are welcome.", asides=1, files=_opencode),
    Client("codex", _codex_steps, 3, "You are welcome.", files=_codex),
    Client("continue", _continue_steps, 3, "You are welcome.", files=_continue),
    Client("mini-swe-agent", _mini_steps, 2, leaves=("trajectory.json", "Submitted")),
)  # fmt: skip
