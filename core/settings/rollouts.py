"""Rollouts: agents at work on tasks, beside the users."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from core.section import Section
from core.settings.http.api import WORKLOAD_NAME


class TaskSetSettings(Section):
    folders: tuple[Path, ...] = Field(min_length=1)
    """Folders in Harbor's format: of a task, or of several tasks; or with a `reasoning-gym.toml`; of the harness
    `verifiers`, those with a `verifiers.toml`."""
    share: float = Field(default=1.0, gt=0)
    """Its share of the episodes, beside those of the other sets."""
    workload: str | None = Field(default=None, pattern=WORKLOAD_NAME)
    """The workload of its turns, by which `learner.mixture.workloads` may hold them; None: that of `requests`."""


class LentSettings(Section):
    variables: tuple[str, ...] = ()
    """Names of the rollouts' own environment variables that tasks may ask for as `${NAME}`."""
    network: bool = False
    """Whether tasks that ask for a network have this machine's, its loopback included."""


class EpisodeSettings(Section):
    tokens: int = Field(default=100_000, ge=1)
    """Most tokens that one episode may generate."""
    calls: int = Field(default=100, ge=1)
    """Most tool calls."""
    critical_path_s: float = Field(default=600.0, gt=0)
    """Most seconds on the critical path: of calls in parallel, the longest counts."""
    context_tokens: int | None = Field(default=None, ge=256)
    """Tokens of context that the harness may fill; None: those of the served model (`serving.context_length`)."""
    out_of_time: Literal["leave_out", "judge"] = "leave_out"
    """What becomes of work that the task's own clock ended: it has no reward, or is judged as it stands."""
    attempts: int = Field(default=4, ge=1)
    """Attempts at an episode that fail by the infrastructure, before it is given up."""


class RolloutRequestSettings(Section):
    base_url: str | None = Field(default=None, pattern=r"^https?://[^\s/]+(/\S*)?/v1/?$")
    """The service that is asked, as OpenAI's clients take it: `https://HOST/v1`; None: this one."""
    api_key: str | None = Field(default=None, repr=False, pattern=r"^[!-~]+$")
    """Its bearer token, with the scopes `chat` and `feedback`; its namespace is that of the rollouts. Better in the
    environment than in the file."""
    workload: str = Field(default="agent", pattern=WORKLOAD_NAME)
    """The workload of the turns."""
    priority: Literal["low", "normal"] = "low"
    """`low`: they give way to the users' requests."""


class RolloutSettings(Section):
    enabled: bool = False
    """Whether `onward run` does rollouts while it serves users."""
    task_sets: dict[Annotated[str, Field(pattern=WORKLOAD_NAME)], TaskSetSettings] = Field(default={})
    """Tasks by the name of their set."""
    images: dict[str, str] = Field(default={})
    """What stands for an image where no engine can pull it, by a pattern of its name: `machine`, for this machine's own
    programs, or the folder of an unpacked image."""
    lent: LentSettings = LentSettings()
    """What tasks that ask for it have of this machine."""
    prepared: Path | None = None
    """The folder that keeps prepared images and what all sandboxes share; None: in the service's directory."""
    harness: Literal["onward", "onward-lines", "mini-swe-agent", "opencode", "verifiers", "oracle"] = "onward"
    """The harness that works on the tasks; `onward-lines` has the tools of a line editor, for a small model that was
    trained on them; `verifiers` is that of each environment of that library; `oracle` runs the tasks' own solutions and
    asks no model."""
    harness_folder: Path | None = None
    """Where a harness of others is installed: the virtual environment of mini-swe-agent, the `node_modules` of
    opencode."""
    tries: int | None = Field(default=None, ge=1)
    """Episodes of each task; None: on and on."""
    parallel: int | None = Field(default=None, ge=1, le=4096)
    """Episodes at once; None: as many as there are processors."""
    ray: str | None = None
    """The address of a Ray cluster on whose nodes episodes run (`auto`: this machine's); None: here alone."""
    requests: RolloutRequestSettings = RolloutRequestSettings()
    """How the model is asked."""
    episode: EpisodeSettings = EpisodeSettings()
    """The bounds of one episode."""

    @model_validator(mode="after")
    def _has_something_to_do(self) -> Self:
        if self.enabled and not self.task_sets:
            raise ValueError("task_sets: name at least one when enabled is true")
        return self
