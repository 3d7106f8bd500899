"""The parts of a check, in their order, each with its seconds."""

from dataclasses import dataclass

SKIP_AFTER_S = 3000
"""Optional parts that would end later than this are skipped."""
END_AFTER_S = 4500
"""Whatever runs then is ended, so that there is time to say so."""
PATIENCE = 2
"""A part is ended after this many times its budget: machines differ, and a budget is what an ordinary one takes."""


@dataclass(frozen=True)
class Part:
    """One command. `budget_s`: the seconds that it takes on two ordinary cores, with what an earlier check has kept."""

    name: str
    command: str
    budget_s: int
    anew_s: int = 0
    """What it takes where nothing was kept, if that is more: it is ended by this, as it is seen by its budget."""
    is_optional: bool = False
    """It runs where `.ci/plan` calls for it and there is time."""
    is_needed: bool = False
    """Nothing after it can run without it."""
    may_be_tried_again: bool = False
    """It waits for other processes, so a failure may be the machine's; its failed tests get a second try."""
    wants_containers: bool = False
    makes: str = ""
    """What it makes is kept for the next check, under this name in the table of `.ci/cache.sh`."""
    environment: tuple[tuple[str, str], ...] = ()


INSTALL = Part("install", "make install reasoning", 60, anew_s=180, is_needed=True, makes="venv")
SERVICES = Part("services", "make services", 20, anew_s=40, is_needed=True)
BROWSER = Part("browser", "make browser sandbox", 20, anew_s=40, is_needed=True, makes="browser")
SGLANG = Part("sglang", "make sglang-cpu", 20, anew_s=200, is_needed=True, makes="sglang")

CHECK = (
    SERVICES,
    BROWSER,
    INSTALL,
    SGLANG,
    Part("check", "make -j2 -O check docs bench-check", 120),
    # Their building takes half the machine from whoever tests beside it.
    Part("images", "true", 40, anew_s=400, wants_containers=True),
    Part("test", "make quick", 480),
    Part("timed", "make timed", 60, may_be_tried_again=True),
    Part("verify", "make verify-parts", 600, may_be_tried_again=True),
    Part("clients", "make clients", 180, anew_s=300, is_optional=True, may_be_tried_again=True, makes="clients"),
    Part("hostile", "make hostile", 180, is_optional=True),
    Part("compose", "make compose-test", 300, may_be_tried_again=True, wants_containers=True),
)
"""What a change can break cheaply."""

DEEP = (
    SERVICES,
    BROWSER,
    INSTALL,
    SGLANG,
    Part("ide", "make ide", 120, is_needed=True, makes="ide"),
    # What it is compiled of stays with Go.
    Part("alertmanager", "make alertmanager", 20, anew_s=300, is_needed=True),
    Part("smollm2", "make smollm2", 80, is_needed=True, makes="smollm2"),
    Part("deep", "make deep-parts", 2400, may_be_tried_again=True),
    Part("faults", "make faults", 3600),
    Part("soak", "make soak", 900),
    Part("clients", "make clients", 300, may_be_tried_again=True, makes="clients"),
    Part("hostile", "make hostile", 180),
    Part("compose", "make compose-test", 1800, wants_containers=True, environment=(("FULL", "1"),)),
)
"""All the rest: for who changes its folders, and before a release."""
