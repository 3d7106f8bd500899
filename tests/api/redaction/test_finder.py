"""What is found in texts, what is not, and that no text takes long."""

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.redaction.finder import Finder
from api.redaction.findings import SensitiveSpan, apart
from api.redaction.forms.lots import is_hex, is_jumbled, is_lot

SECRETS, PERSONAL, BOTH = Finder(("secrets",)), Finder(("pii",)), Finder(("secrets", "pii"))
GITHUB = "ghp_" + "Zk3mQ9vT2xLr8Wn4Yb6Hc1Jd5Fs7Gp0AeUiO"
AWS = "AKIAQ3EGRZL5T7WNXV2M"


def found(finder: Finder, text: str) -> list[str]:
    return [text[each.start : each.end] for each in finder.find(text)]


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"token {GITHUB}.", GITHUB),
        (f'"text": "a\\n{AWS}\\n"', AWS),
        (f"({AWS})", AWS),
        ('password = "kaltes$Wasser44"', "kaltes$Wasser44"),
        ("DB_PASSWORD=hunter2hunter", "hunter2hunter"),
        ('os.environ["API_TOKEN"] = "9d3877fbb646f2a182fc0d98d40e393b"', "9d3877fbb646f2a182fc0d98d40e393b"),
        ("ENV SESSION_SECRET 9d3877fbb646f2a182fc0d98d40e393b", "9d3877fbb646f2a182fc0d98d40e393b"),
        ("postgres://app:sEcr3t99x@db:5432/main", "sEcr3t99x"),
        ("Authorization: Bearer OaA0!KP8m$yj3", "OaA0!KP8m$yj3"),
        ("the api key is BTytVRwSqFlv3ftvuF30sif2, ok", "BTytVRwSqFlv3ftvuF30sif2"),
        ("machine x login ziggy password 0k45abcdef", "0k45abcdef"),
        ("Cookie: theme=dark; session=Zm9vYmFyMTIzNDU2Nzg5MA", "Zm9vYmFyMTIzNDU2Nzg5MA"),
    ],
)
def test_secrets_are_found_to_the_character(text: str, secret: str) -> None:
    assert found(SECRETS, text) == [secret]
    assert found(PERSONAL, text) in ([], [secret])


def test_a_private_key_is_found_whole_and_cut() -> None:
    body = "\n".join("MIIEowIBAAKCAQEAu1SU1LfVLPHCozMxH2Mo4lgOEePzNm0tRgeLezV6ffAt0g9F" for _ in range(5))
    whole = f"see\n-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----\nok"
    (key,) = found(SECRETS, whole)
    assert body in key
    assert body in "".join(found(SECRETS, whole[: whole.index("-----END")]))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("write to anna.zander@quarz-hamm.de now", "anna.zander@quarz-hamm.de"),
        ("call +49 2381 5550172 today", "+49 2381 5550172"),
        ("phone: (212) 555-0187", "(212) 555-0187"),
        ("IBAN DE89 3704 0044 0532 0130 00.", "DE89 3704 0044 0532 0130 00"),
        ("card 4539 1488 0343 6467 declined", "4539 1488 0343 6467"),
        ("ssn 536-22-8145", "536-22-8145"),
        ("from 93.184.216.34 port 22", "93.184.216.34"),
        ("I asked Katharina Vogel about it", "Katharina Vogel"),
        ("Dear Mr. Okonkwo,", "Okonkwo"),
        ("I live at Hauptstraße 12a, 10115 Berlin.", "Hauptstraße 12a, 10115 Berlin"),
        ("ship to 12 Baker Street, London NW1 6XE", "12 Baker Street, London NW1 6XE"),
    ],
)
def test_personal_data_is_found_to_the_character(text: str, value: str) -> None:
    assert found(PERSONAL, text) == [value]
    assert found(SECRETS, text) == []


@pytest.mark.parametrize(
    "code",
    [
        "password = get_password()",
        "def login(user: str, password: str = None) -> Token:",
        'password = "${DB_PASSWORD}"',
        'api_key = os.environ["API_KEY"]',
        "token = tokenizer.encode(text)[0]",
        'key = "some-cache-key"',
        'PASSWORD_FIELD = "password"',
        'integrity="sha384-oqVuAfXRKap7fdgcCY5uykM6+R9GqQ8K/uxy9rx7HNQlGYl1kPzQho1wx4JwY8wC"',
        "commit 6ad05a971ba0622f6acee8c41993e0d02bbed639",
        "@app.route('/x')",
        "c = a@b.T",
        "pip install torch==2.14.1 numpy==1.26.4",
        "127.0.0.1 10.1.2.3 192.168.0.1 0.0.0.0",
        "x = 1234567890123456",
        "2026-01-02 03:04:05.678901",
        "class MarkDown(Grace): Will Not Be Called",
        "user@example.com",
        "git@github.com:firm/app.git",
        "https://github.com/LAION-AI/CLAP/blob/main/src/open_clip/utils.py#L191",
    ],
)
def test_code_stays_as_it_is(code: str) -> None:
    assert found(BOTH, code) == []


@pytest.mark.parametrize(
    "disguised",
    [
        AWS.translate({ord(each): ord(each) + 0xFEE0 for each in string.ascii_uppercase}),  # full width
        AWS.replace("A", "А").replace("E", "Е"),  # Cyrillic
        "\u200b".join(AWS),
        AWS[:7] + "\u00ad" + AWS[7:],
    ],
    ids=["full width", "cyrillic", "zero width", "soft hyphen"],
)
def test_look_alikes_are_found(disguised: str) -> None:
    assert found(SECRETS, f"key: {disguised} end") == [disguised]


@given(st.text(max_size=400))
def test_findings_are_apart_within_the_text_and_found_again_in_it(text: str) -> None:
    findings = BOTH.find(text)
    ends = [0, *(place for each in findings for place in (each.start, each.end)), len(text)]
    assert ends == sorted(ends)
    assert all(each.start < each.end for each in findings)


def test_overlapping_findings_are_one() -> None:
    findings = [
        SensitiveSpan(5, 9, "NAME"),
        SensitiveSpan(0, 6, "SECRET"),
        SensitiveSpan(9, 12, "EMAIL"),
        SensitiveSpan(3, 3, "IP"),
    ]
    assert apart(findings) == [SensitiveSpan(0, 9, "SECRET"), SensitiveSpan(9, 12, "EMAIL")]


def test_lots_are_told_from_names() -> None:
    rng = random.Random(5)
    letters = string.ascii_letters + string.digits
    lots = ["".join(rng.choices(letters, k=32)) for _ in range(500)]
    assert sum(map(is_lot, lots)) > 470
    assert not any(map(is_lot, ("BaseModelOutputWithPast", "test_min_max_dt64_with_NaT_skipna_false", "a" * 40)))
    assert is_hex("9d3877fbb646f2a182fc0d98d40e393b")
    assert is_jumbled("lMydjWyWMavL")
    assert not is_jumbled("userPasswordValue")
