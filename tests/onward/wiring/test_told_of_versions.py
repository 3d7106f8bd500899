"""Who decides on releases is woken when a version is published."""

from contextlib import closing
from pathlib import Path

from ready_models import as_compared

from onward.wiring.foundation import open_foundation
from onward.wiring.observer import PolicyObserver
from onward.wiring.service import build_service
from serving.releases import ReleaseController


def test_a_controller_that_is_made_again_is_told_of_versions_too(tmp_path: Path) -> None:
    """Else one that failed once looks for them by itself from then on."""
    with closing(open_foundation(tmp_path / "service", {})) as foundation:
        as_compared(foundation)
        service = build_service(foundation)
        with closing(service.serving.policy):
            observer, first = service.stages["observer"], service.stages["releases"]
            again = service.makers["releases"]()
            assert isinstance(observer, PolicyObserver)
            assert isinstance(again, ReleaseController)
            observer.handle([])
            assert (again.is_told, again.woken.is_set(), first.woken.is_set()) == (True, True, False)
