"""What a check found: printed as a table, and written to a file after each part, so that it is there after a kill."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from checks.second_tries import MOST_FLAKY, Flaky


@dataclass(frozen=True)
class Result:
    """What became of a part: `passed`, `failed`, `timed out`, or why it was skipped."""

    name: str
    seconds: int
    budget: int
    result: str


@dataclass
class Outcome:
    """All that is known so far. `started` is in UTC."""

    commit: str
    started: str
    seconds: int = 0
    passed: bool = False
    parts: list[Result] = field(default_factory=list)
    flaky: list[Flaky] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Tests that failed, and did not pass at a second try."""

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        written = file.with_suffix(".new")
        written.write_text(json.dumps(asdict(self), indent=1) + "\n")
        written.replace(file)

    def is_good(self) -> bool:
        """Return whether nothing failed, nothing was ended, and no more tests were flaky than may be."""
        bad = any(part.result in ("failed", "timed out") for part in self.parts)
        return not bad and not self.failed and len(self.flaky) <= MOST_FLAKY

    def table(self) -> str:
        """Return each part's seconds beside its budget."""
        lines = ["", f"{'part':<14}{'seconds':>8}{'budget':>8}  result"]
        for part in self.parts:
            over = "  OVER BUDGET" if part.seconds > part.budget else ""
            lines.append(f"{part.name:<14}{part.seconds:>8}{part.budget:>8}  {part.result}{over}")
        lines.append(f"{'together':<14}{self.seconds:>8}{sum(part.budget for part in self.parts):>8}")
        lines += [f"FLAKY {each.test}: passed alone; first it failed so:\n{each.words[-1500:]}" for each in self.flaky]
        lines += [f"FAILED {each}" for each in self.failed]
        return "\n".join(lines)
