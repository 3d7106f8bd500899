"""The settings that are chosen for a model on a machine."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_configs import CONFIGS, PARAMETERS, written

from core.errors import ConfigError
from core.model.weights_digest import tensors_of
from core.profile import Card, Machine, ModelShape, Profile, choose, read_shape
from core.settings import Settings

TINY = Path(__file__).resolve().parents[3] / "models" / "tiny"
GB = 10**9
LAPTOP = Machine(2, 24 * GB)


def cards(count: int, gigabytes: int = 80) -> Machine:
    return Machine(16, 128 * GB, tuple(Card("NVIDIA H100 80GB HBM3", gigabytes * GB) for _ in range(count)))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelShape]:
    directory = tmp_path_factory.mktemp("configs")
    return {name: read_shape(written(directory, name)) for name in CONFIGS}


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_counted_as_their_authors_do(shapes: dict[str, ModelShape], name: str) -> None:
    assert shapes[name].parameters == PARAMETERS[name]


def test_parameters_are_those_in_the_files() -> None:
    stored = tensors_of(sorted(TINY.glob("*.safetensors")))
    sizes = [_product(tensor.shape) for tensor in stored.values()]
    assert read_shape(TINY).parameters == sum(sizes)


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def test_the_shipped_model_has_the_defaults() -> None:
    profile = choose(read_shape(TINY), LAPTOP, "cpu")
    assert profile.choices == ()
    assert profile.settings == Settings()


def test_a_pretrained_model_learns_by_adapters_in_small_batches(shapes: dict[str, ModelShape]) -> None:
    settings = choose(shapes["smollm2-135m"], LAPTOP, "cpu").settings
    assert settings.learner.lora.rank == 16
    assert settings.learner.optimizer.learning_rate == 6e-4
    assert settings.learner.batch.turns == 16
    assert settings.learner.batch.backlog_turns == 48
    assert settings.serving.engine == "local"
    assert (settings.serving.context_length, settings.serving.local.slots) == (2048, 8)


def test_an_agents_turns_are_as_long_as_its_sessions_and_take_longer(shapes: dict[str, ModelShape]) -> None:
    shape = shapes["smollm2-135m"]
    chat, agent = choose(shape, LAPTOP, "cpu"), choose(shape, LAPTOP, "cpu", "agent")
    assert (chat.expected.turn_positions, agent.expected.turn_positions) == (102, 1024)
    assert (chat.settings.learner.batch.turns, agent.settings.learner.batch.turns) == (16, 8)
    assert agent.expected.served_s > 2 * chat.expected.served_s
    of_cards = [choose(shapes["qwen3-8b"], cards(8), "cuda", work).expected for work in ("chat", "agent")]
    assert [each.turn_positions for each in of_cards] == [1638, 16384]
    assert of_cards[1].update_s == pytest.approx(16384 / 1638 * of_cards[0].update_s)


def test_a_version_of_more_bytes_takes_longer_to_be_served(shapes: dict[str, ModelShape]) -> None:
    small, large = (choose(shapes[name], cards(8), "cuda").expected for name in ("llama-3.2-1b", "qwen3-8b"))
    swaps_s = [each.served_s - 2 * each.update_s for each in (small, large)]
    assert swaps_s[1] - swaps_s[0] == pytest.approx((large.version_bytes - small.version_bytes) / 100e6)
    assert swaps_s[0] > 4.5


@pytest.mark.parametrize(
    ("name", "count", "engine", "learner", "context"),
    [
        ("llama-3.2-1b", 1, 1, 1, 32768),
        ("llama-3.2-1b", 8, 1, 1, 32768),
        ("qwen3-8b", 1, 1, 1, 16384),
        ("qwen3-8b", 8, 1, 1, 32768),
        ("qwen3-32b", 8, 2, 2, 32768),
    ],
)
def test_cards_are_given_to_engine_and_learner(
    shapes: dict[str, ModelShape], name: str, count: int, engine: int, learner: int, context: int
) -> None:
    profile = choose(shapes[name], cards(count), "cuda")
    assert (profile.engine_cards, profile.learner_cards) == (engine, learner)
    assert _context(shapes[name], profile) == context
    _require_room(profile, count, 80 * GB)


def _require_room(profile: Profile, count: int, card_bytes: int) -> None:
    """Nothing is given twice: on a shared card, engine and learner fit beside each other."""
    costs = profile.expected
    if count == 1:
        assert costs.engine_bytes + costs.learner_most_bytes < card_bytes
    else:
        assert profile.engine_cards + profile.learner_cards <= count
        assert max(costs.engine_bytes, costs.learner_most_bytes) < card_bytes


def _context(shape: ModelShape, profile: Profile) -> int:
    return profile.settings.serving.context_length or shape.context


def test_an_engine_and_a_learner_that_share_a_card_are_told_so(shapes: dict[str, ModelShape]) -> None:
    alone = choose(shapes["qwen3-8b"], cards(1), "cuda").settings
    apart = choose(shapes["qwen3-8b"], cards(2), "cuda").settings
    assert alone.learner.device == "cuda"
    assert apart.learner.device == "cuda:1"
    assert _fraction(alone) < 0.65
    assert _fraction(apart) > 0.9


def _fraction(settings: Settings) -> float:
    arguments = settings.serving.sglang.arguments
    return float(arguments[arguments.index("--mem-fraction-static") + 1])


def test_wider_models_learn_at_smaller_rates(shapes: dict[str, ModelShape]) -> None:
    names = ("smollm2-135m", "llama-3.2-1b", "qwen3-8b", "qwen3-32b")
    rates = [choose(shapes[name], cards(8), "cuda").settings.learner.optimizer.learning_rate for name in names]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == len(rates)


@pytest.mark.parametrize(("name", "machine"), [("qwen3-32b", cards(1)), ("qwen3-8b", cards(1, 24))])
def test_what_does_not_fit_is_refused(shapes: dict[str, ModelShape], name: str, machine: Machine) -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        choose(shapes[name], machine, "cuda")
    with pytest.raises(ConfigError, match=r"needs .* at the least"):
        choose(shapes[name], Machine(2, 8 * GB), "cpu")


def test_little_memory_takes_a_shorter_context_and_then_fewer_slots(shapes: dict[str, ModelShape]) -> None:
    rungs = []
    for tenths in range(30, 80):
        try:
            serving = choose(shapes["smollm2-135m"], Machine(2, tenths * GB // 10), "cpu").settings.serving
        except ConfigError:
            continue
        rungs.append((serving.context_length, serving.local.slots))
    assert {(512, 2), (512, 4), (512, 8), (1024, 8), (2048, 8)} <= set(rungs)


def test_a_machine_without_cards_is_named(shapes: dict[str, ModelShape]) -> None:
    with pytest.raises(ConfigError, match="no card"):
        choose(shapes["qwen3-8b"], LAPTOP, "cuda")


@settings(max_examples=300)
@given(name=st.sampled_from(sorted(CONFIGS)), less=st.integers(20, 600), more=st.integers(0, 100))
def test_more_memory_never_gives_less(shapes: dict[str, ModelShape], name: str, less: int, more: int) -> None:
    shape = shapes[name]
    try:
        small = choose(shape, Machine(2, less * GB // 10), "cpu")
    except ConfigError:
        return
    large = choose(shape, Machine(2, (less + more) * GB // 10), "cpu")
    assert _context(shape, small) <= _context(shape, large)
    assert small.settings.serving.local.slots <= large.settings.serving.local.slots
    assert small.expected.service_bytes + small.expected.learner_most_bytes <= 0.8 * less * GB / 10


@given(
    name=st.sampled_from(sorted(CONFIGS)),
    count=st.integers(1, 8),
    others=st.integers(0, 8),
    less=st.integers(10, 160),
    more=st.integers(0, 100),
)
def test_more_and_larger_cards_never_give_less(
    shapes: dict[str, ModelShape], name: str, count: int, others: int, less: int, more: int
) -> None:
    shape = shapes[name]
    try:
        small = choose(shape, cards(count, less), "cuda")
    except ConfigError:
        return
    _require_room(small, count, less * GB)
    large = choose(shape, cards(count + others, less + more), "cuda")
    assert _context(shape, small) <= _context(shape, large)


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("model_type", "mamba", "model_type is 'mamba', and profiles are known of llama"),
        ("num_hidden_layers", None, "num_hidden_layers is None"),
        ("hidden_size", "wide", "hidden_size is 'wide'"),
    ],
)
def test_what_is_not_known_of_a_model_is_named(tmp_path: Path, field: str, value: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_shape(written(tmp_path, "qwen3-8b", **{field: value}))


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_shape(tmp_path)
