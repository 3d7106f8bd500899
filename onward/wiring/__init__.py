"""The composition root: the only place that knows which adapter stands behind which port.

Heavy imports (torch) happen inside the functions that need them, so that `onward --help` and the light stages stay
light.
"""

from onward.wiring.archive import archive_blobs, build_archive, build_keeper
from onward.wiring.engines import Child, build_host, host_children, publish_anchor
from onward.wiring.foundation import (
    Foundation,
    Stage,
    is_distributed,
    open_foundation,
    open_offline,
    open_store,
    read_directory,
    spec_path,
)
from onward.wiring.migrate import migrate
from onward.wiring.service import (
    Service,
    announcing,
    build_api,
    build_app,
    build_judge,
    build_learner,
    build_monitors,
    build_releases,
    build_scorer,
    build_service,
    build_writer,
    solutions_kept_out,
)

__all__ = [
    "Child",
    "Foundation",
    "Service",
    "Stage",
    "announcing",
    "archive_blobs",
    "build_api",
    "build_app",
    "build_archive",
    "build_host",
    "build_judge",
    "build_keeper",
    "build_learner",
    "build_monitors",
    "build_releases",
    "build_scorer",
    "build_service",
    "build_writer",
    "host_children",
    "is_distributed",
    "migrate",
    "open_foundation",
    "open_offline",
    "open_store",
    "publish_anchor",
    "read_directory",
    "solutions_kept_out",
    "spec_path",
]
