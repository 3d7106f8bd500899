"""Secrets as their vendors form them, drawn from a seed, and the places where people leave them.

The forms are known to whoever wrote the rules; `held_out.toml` has others."""

import random
import re
import string
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HELD_OUT = Path(__file__).with_name("held_out.toml")
_ALPHABETS = {
    "w": string.ascii_letters + string.digits,
    "x": "0123456789abcdef",
    "u": string.ascii_uppercase + string.digits,
    "t": string.ascii_uppercase + "234567",
    "d": string.digits,
    "b": string.ascii_letters + string.digits + "+/",
    "s": string.ascii_letters + string.digits + "-_",
    "l": string.ascii_lowercase + string.digits,
}
_PART = re.compile(r"\{([a-z])(\d+)\}")
# Name, form, and whether it is known without its name.
FORMS = (
    ("aws_access_key_id", "AKIA{t16}", True),
    ("aws_secret_access_key", "{b40}", True),
    ("github_token", "ghp_{w36}", True),
    ("github_token", "gho_{w36}", True),
    ("github_token", "ghs_{w36}", True),
    ("github_pat", "github_pat_{w22}_{w59}", True),
    ("gitlab_token", "glpat-{w20}", True),
    ("slack_token", "xoxb-{d12}-{d12}-{w24}", True),
    ("slack_webhook", "https://hooks.slack.com/services/T{u8}/B{u10}/{w24}", True),
    ("stripe_key", "sk_live_{w24}", True),
    ("stripe_key", "rk_live_{w24}", True),
    ("google_api_key", "AIza{w35}", True),
    ("gcp_client_secret", "GOCSPX-{s28}", True),
    ("openai_api_key", "sk-{w20}T3BlbkFJ{w20}", True),
    ("openai_api_key", "sk-proj-{s74}T3BlbkFJ{s74}", True),
    ("anthropic_api_key", "sk-ant-api03-{s93}AA", True),
    ("huggingface_token", "hf_{w34}", True),
    ("npm_token", "npm_{w36}", True),
    ("pypi_token", "pypi-AgEIcHlwaS5vcmc{s60}", True),
    ("sendgrid_api_key", "SG.{s22}.{s43}", True),
    ("twilio_auth_token", "{x32}", False),
    ("twilio_key", "SK{x32}", True),
    ("mailgun_key", "key-{x32}", False),
    ("mailchimp_api_key", "{x32}-us12", False),
    ("telegram_bot_token", "{d10}:AA{s33}", False),
    ("discord_bot_token", "M{s25}.{s6}.{s38}", True),
    ("digitalocean_token", "dop_v1_{x64}", True),
    ("databricks_token", "dapi{x32}", True),
    ("shopify_token", "shpat_{x32}", True),
    ("square_token", "sq0atp-{s22}", True),
    ("heroku_api_key", "{x8}-{x4}-4{x3}-8{x3}-{x12}", False),
    ("vault_token", "hvs.{s95}", True),
    ("dynatrace_token", "dt0c01.{t24}.{t64}", True),
    ("new_relic_key", "NRAK-{u27}", True),
    ("grafana_token", "glsa_{w32}_{x8}", True),
    ("linear_api_key", "lin_api_{w40}", True),
    ("postman_key", "PMAK-{x24}-{x34}", True),
    ("pulumi_token", "pul-{x40}", True),
    ("doppler_token", "dp.pt.{w43}", True),
    ("planetscale_password", "pscale_pw_{w43}", True),
    ("age_key", "AGE-SECRET-KEY-1{bech58}", True),
    ("datadog_api_key", "{x32}", False),
    ("cloudflare_api_key", "{x37}", False),
    ("azure_account_key", "{b86}==", True),
    ("azure_client_secret", "{w3}8Q~{w34}", True),
    ("jwt", "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJ{w40}.{s43}", True),
    ("session_secret", "{x64}", False),
    ("signing_key", "{b43}=", False),
    ("api_key", "{w32}", True),
    ("api_key", "{w24}", True),
    ("secret_key", "{s50}", False),
    ("encryption_key", "{x64}", False),
    ("password", "{w12}", False),
    ("db_password", "{w4}!{w4}${w3}", False),
    ("admin_password", "{word}{d4}!", False),
    ("smtp_password", "{word}-{word}-{d2}", False),
)
_URLS = (
    "postgres://app:{v}@db.internal:5432/main",
    "mongodb+srv://svc:{v}@cluster0.mongodb.net/prod",
    "redis://default:{v}@cache:6379/0",
    "https://deploy:{v}@git.firm.io/app.git",
    "amqp://worker:{v}@mq:5672/",
)
_CODE = (
    '{name} = "{v}"',
    "const {camel} = '{v}';",
    'client = Client({name}="{v}", timeout=5)',
    'os.environ["{upper}"] = "{v}"',
    'config := Config{{{pascal}: "{v}"}}',
    'private static final String {upper} = "{v}";',
    "requests.get(url, headers={{'X-{dashed}': '{v}'}})",
    '    "{name}": "{v}",',
)
_CONFIG = (
    "{upper}={v}",
    'export {upper}="{v}"',
    "{name}: {v}",
    '{name}: "{v}"',
    '  "{camel}": "{v}",',
    "{name} = {v}",
    "ENV {upper} {v}",
    "--{dashed}={v}",
)
_LOG = (
    "2026-03-01T10:00:00Z ERROR login failed {name}={v} ip=10.0.0.3",
    "[debug] config loaded: {{{name}: '{v}', retries: 3}}",
    "curl -H 'Authorization: Bearer {v}' https://api.firm.io/v1/me",
    '{{"level":"info","msg":"sent","{name}":"{v}"}}',
    "Traceback: ValueError: bad {name}: {v}",
)
_PROSE = (
    "Here is my {spoken}: {v} - can you write the client?",
    "The {spoken} is {v}, please do not share it.",
    'I set the {spoken} to "{v}" and it still fails.',
)
_BARE = ("why does {v} not work any more?", "I pasted {v} by mistake.", "(see {v})", "x\\n{v}\\ny", "- {v}")
_PEM = "-----BEGIN {kind}PRIVATE KEY-----\n{body}\n-----END {kind}PRIVATE KEY-----"


@dataclass(frozen=True)
class Planted:
    """A text, the part of it that is to be found, and what it is."""

    name: str
    value: str
    text: str


def secrets_of(seed: int, each: int) -> Iterator[Planted]:
    """Draw secrets, each form `each` times in different places."""
    rng = random.Random(seed)
    for name, form, is_known in FORMS:
        for _ in range(each):
            value = _draw(rng, form)
            places = (*_CODE, *_CONFIG, *_LOG, *_PROSE, *(_BARE if is_known else ()))
            yield Planted(name, value, _written(rng, name, value, rng.choice(places)))
    for place in _URLS * each:
        value = _draw(rng, rng.choice(("{w16}", "{word}{d3}!", "{s20}")))
        yield Planted("password in a URL", value, place.format(v=value))
    for number in range(each):
        kind = ("", "RSA ", "EC ", "OPENSSH ")[number % 4]
        body = "\n".join(_draw(rng, "{b64}") for _ in range(rng.randint(3, 12)))
        yield Planted("private key", body, _PEM.format(kind=kind, body=body))


def held_out() -> list[Planted]:
    """Return the secrets of other vendors, whose forms nobody looked at, as their collectors wrote them."""
    found = tomllib.loads(HELD_OUT.read_text(encoding="utf-8"))["secrets"]
    return [Planted(each["name"], each["secret"], each["text"]) for each in found]


def held_out_forms(seed: int) -> Iterator[Planted]:
    """Place the same secrets where people leave secrets, under their vendor's name."""
    rng = random.Random(seed)
    for each in held_out():
        vendor = re.split(r"\W+", each.name.lower())[0]
        value = each.value.strip(" -=._")
        name = f"{vendor}_{rng.choice(('api_key', 'token', 'secret', 'access_token'))}"
        yield Planted(each.name, value, _written(rng, name, value, rng.choice((*_CODE, *_CONFIG, *_LOG, *_PROSE))))


def _written(rng: random.Random, name: str, value: str, place: str) -> str:
    words = name.split("_")
    pascal = "".join(word.capitalize() for word in words)
    forms = {
        "name": name,
        "upper": name.upper(),
        "camel": words[0] + pascal[len(words[0]) :],
        "pascal": pascal,
        "dashed": "-".join(words),
        "spoken": " ".join(words),
    }
    return place.format(v=value, **forms)


_WORDS = ("Sommer", "tiger", "Monkey", "dragon", "Kaffee", "winter", "Secure", "blue", "Login", "hunter")


def _draw(rng: random.Random, form: str) -> str:
    form = form.replace("{bech58}", "{e58}")
    while "{word}" in form:
        form = form.replace("{word}", rng.choice(_WORDS), 1)

    def part(found: re.Match[str]) -> str:
        alphabet = _ALPHABETS.get(found[1], "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L")
        return "".join(rng.choices(alphabet, k=int(found[2])))

    return _PART.sub(part, form)
