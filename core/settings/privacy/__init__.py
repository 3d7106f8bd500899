"""Privacy: what is done with the words of users before anything of them is stored."""

from core.settings.privacy.privacy import NamespacePrivacySettings, PrivacySettings, Redactable

__all__ = ["NamespacePrivacySettings", "PrivacySettings", "Redactable"]
