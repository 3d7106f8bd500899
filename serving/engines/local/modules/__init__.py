"""The modules that compute a model: transformers' own, or plain ones that were compared with these."""
