"""What versions are compared on is of the shapes in which users ask, and what they said of late where they consent."""

from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from ready_models import as_compared

from bench.log.traffic import one_turn
from core.ids import base_ref, new_session_id
from core.model.probes import get_probe
from onward.wiring.engines import LocalServing, publish_anchor
from onward.wiring.foundation import open_foundation
from serving.releases import LoopTimer
from serving.rendering import load_renderer

ANSWERS = "<|im_start|>assistant\n"


def test_a_service_looks_where_its_users_are(tmp_path: Path) -> None:
    with closing(open_foundation(tmp_path / "service", {})) as foundation:
        as_compared(foundation)
        said = load_renderer(foundation.model).token_text
        serving = LocalServing(foundation, foundation.log, LoopTimer(datetime.now(UTC)))
        publish_anchor(foundation, foundation.log)
        with closing(serving.policy) as engine:
            probe, texts = engine._probe, get_probe(foundation.blobs, base_ref(1)).token_ids
            assert sum(ANSWERS in "".join(map(said, text)) for text in texts) >= len(texts) / 2
            assert probe._record(base_ref(1)) is not None
            turns = [msgspec.structs.replace(one_turn(new_session_id()), learn=learn) for learn in (False, True)]
            with foundation.store.work() as work:
                work.turns.put(turns)
            assert list(probe._recent()) == [turns[1].prompt_token_ids + turns[1].token_ids]
