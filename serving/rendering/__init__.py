"""Messages to token ids and back, for one model, without any tensor library."""

from serving.rendering.renderer import ModelRenderer, load_renderer
from serving.rendering.report import FamilyReport, report_family, report_renderer

__all__ = ["FamilyReport", "ModelRenderer", "load_renderer", "report_family", "report_renderer"]
