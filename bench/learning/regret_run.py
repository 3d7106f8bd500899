"""Ways to learn, and one run of one of them."""

from dataclasses import dataclass

from bench.learning.feedback_loop import learn, settings_for
from bench.learning.feedback_world import ACCEPTED, REJECTED, STREAMS

STEPS = 240
WAYS: dict[str, dict[str, object] | None] = {
    "value head": {"advantage.baseline": "value"},
    "moving average": {"advantage.baseline": "ema"},
    "beta tracker": {"advantage.baseline": "beta", "advantage.reward_range": (REJECTED, ACCEPTED)},
    "batch, whitened": {"advantage.baseline": "batch"},
    "batch, centred": {"advantage.baseline": "centre"},
    "leave one out": {"advantage.baseline": "leave_one_out"},
    "KTO": {"advantage.baseline": "value", "admission.kto_outcomes": ("accepted",)},
    "raw reward": {"advantage.baseline": "raw"},
    "raw reward, PPO, no KL": {
        "advantage.baseline": "raw",
        "objective.loss": "ppo",
        "objective.correction.method": "none",
        "objective.clip_high": 0.28,
        "objective.kl.coefficient": 0.0,
    },
    "nothing": None,
}
"""How a reward moves the policy. At one sample a prompt, `raw reward` is what GRPO and RLOO of verl and GRPO of SkyRL
do; `PPO, no KL`: OpenClaw-RL; `nothing`: the zero advantages of slime's and prime-rl's GRPO and SkyRL's RLOO; `batch,
whitened`: REINFORCE++ and NeMo-RL; `moving average`: prime-rl's RAE. TRL refuses."""
DEFAULT = "value head"


@dataclass(frozen=True)
class Run:
    way: str
    stream: str
    seed: int
    learning_rate: float


def regret(run: Run, steps: int = STEPS) -> list[float]:
    """Return the mean over the turns of each step."""
    way = WAYS[run.way]
    settings = settings_for(run.seed, run.learning_rate, way or {})
    return learn(STREAMS[run.stream], settings, steps, learns=way is not None).missed
