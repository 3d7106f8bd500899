"""Engines that are SGLang servers (https://docs.sglang.ai), spoken to over HTTP; nothing of SGLang is imported."""
