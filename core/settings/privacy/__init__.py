"""Privacy: what is done to the words of users before they are stored, how long they are kept, how they are erased."""

from core.settings.privacy.erasure import RetentionSettings
from core.settings.privacy.privacy import NamespacePrivacySettings, PrivacySettings
from core.settings.privacy.redaction import Redactable

__all__ = ["NamespacePrivacySettings", "PrivacySettings", "Redactable", "RetentionSettings"]
