"""Messages to token ids and back, for one model, without any tensor library."""

from serving.rendering.renderer import ModelRenderer, load_renderer

__all__ = ["ModelRenderer", "load_renderer"]
