"""People as Faker makes them, in twenty countries, and the places where they are named."""

import random
from collections.abc import Iterator

from faker import Faker

from bench.redaction.secret_forms import Planted

KNOWN = ("en_US", "de_DE", "fr_FR", "es_ES", "en_GB", "it_IT", "nl_NL", "pl_PL", "pt_BR", "en_CA")
"""Countries whose examples were looked at while the rules were written."""
HELD_OUT = ("sv_SE", "da_DK", "pt_PT", "en_AU", "de_AT", "cs_CZ", "fr_CH", "en_IN", "tr_TR", "en_IE")
"""Countries of which only the shares were seen, before the last change of the rules."""
_PLACES = {
    "name": (
        "Please ask {v} about the invoice.",
        '{{"id": 7, "name": "{v}", "active": true}}',
        "# Reported by {v} on Monday",
        "Dear {v},\nthank you for your letter.",
        "customer: {v}",
        "INFO user logged in: {v} (session 81)",
        "I met {v} yesterday and we agreed.",
        'users = ["{v}", "admin"]',
    ),
    "e-mail": (
        "write to {v} please",
        'EMAIL = "{v}"',
        "contact: {v}",
        "<{v}>",
        "login failed for {v} from web",
        "https://app.firm.io/?email={v}&x=1",
    ),
    "phone": (
        "call me at {v}",
        "phone: {v}",
        '"mobile": "{v}",',
        "Tel. {v}",
        "INFO sms sent to {v}",
        "my number is {v}, any time",
    ),
    "address": (
        "I live at {v}.",
        "ship to: {v}",
        'address = "{v}"',
        "INFO order 12 delivered to {v}",
        "Our office: {v}",
    ),
    "IBAN": ("IBAN: {v}", "please transfer to {v} today", 'iban = "{v}"', "account {v} was debited"),
    "card": ("card {v} was declined", 'number: "{v}"', "PAN={v}"),
    "internet address": ("request from {v} refused", "client={v} status=200"),
}


def people_of(country: str, seed: int, each: int) -> Iterator[Planted]:
    """Draw personal data of one country, each kind `each` times in different places."""
    faker, rng = Faker(country), random.Random(f"{country} {seed}")
    faker.seed_instance(seed)
    made = {
        "name": lambda: f"{faker.first_name()} {faker.last_name()}",
        "e-mail": lambda: (
            f"{faker.user_name()}@{faker.domain_word()}.{rng.choice(('com', 'de', 'io', 'org', 'co.uk'))}"
        ),
        "phone": faker.phone_number,
        "address": lambda: faker.address().replace("\n", ", "),
        "IBAN": faker.iban,
        "card": faker.credit_card_number,
        "internet address": faker.ipv4_public,
    }
    for kind, make in made.items():
        for _ in range(each):
            value = make()
            yield Planted(kind, value, rng.choice(_PLACES[kind]).format(v=value))
