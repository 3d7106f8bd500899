"""The report on a model's chat format, read from its files, in sentences for the operator."""

from dataclasses import dataclass
from pathlib import Path

from serving.rendering.renderer import ModelRenderer, load_renderer


@dataclass(frozen=True)
class FamilyReport:
    """The family that a model speaks as.

    `is_known` is false where the chat template shows tools, and no family is known that calls them as it says."""

    family: str
    is_known: bool
    has_thinking: bool
    tools_refused: str | None
    unnamed_end: str | None = None

    def __str__(self) -> str:
        thinking = "thinking apart" if self.has_thinking else "no thinking"
        if self.tools_refused is not None:
            tools = f"requests with tools are refused: {self.tools_refused}"
        elif self.is_known:
            tools = "tools"
        else:
            tools = "tools are shown, but no form of calls is known: calls come as text (set serving.family)"
        end = self.unnamed_end
        unended = f"; answers may not end: {end}, which the template puts behind them, is no eos_token" if end else ""
        return f"family {self.family if self.is_known else 'unknown'}: {thinking}, {tools}{unended}"


def report_family(directory: Path, family: str = "auto") -> FamilyReport:
    """Report on a Hugging Face directory. Raises ConfigError naming the file at fault."""
    return report_renderer(load_renderer(directory, family=family))


def report_renderer(renderer: ModelRenderer) -> FamilyReport:
    is_known = renderer.family.reads_calls or renderer.tools_refused is not None
    return FamilyReport(
        renderer.family.name, is_known, renderer.has_thinking, renderer.tools_refused, renderer.unnamed_end
    )
