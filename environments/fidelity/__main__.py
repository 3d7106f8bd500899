"""`python -m environments.fidelity`: executes logged tool calls of production again, in a sandbox, and compares."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from core.provenance import lowest_and_highest, made_by, provenance
from core.terminal import console
from environments.errors import EnvironmentFault
from environments.fidelity.places import Chosen, Places, replay_all
from environments.fidelity.report import as_json, as_table, differing
from environments.harness.harness import Endpoint

app = App(name="python -m environments.fidelity", help=__doc__)


@app.default
def compare(
    url: Annotated[str, Parameter(help="The service, with /v1.")],
    *,
    workspace: Annotated[Path | None, Parameter(help="The repository as it was when the sessions began.")] = None,
    tasks: Annotated[
        tuple[Path, ...], Parameter(help="Folders of tasks: a session is replayed in the one whose image it names.")
    ] = (),
    session: Annotated[tuple[str, ...], Parameter(help="Only these sessions.")] = (),
    workload: Annotated[str | None, Parameter(help="Only sessions of this workload.")] = None,
    most: Annotated[int, Parameter(help="The newest so many sessions.")] = 100,
    key: Annotated[str | None, Parameter(help="An API key with the scope read.", env_var="ONWARD_API_KEY")] = None,
    base: Annotated[tuple[str, ...], Parameter(help="IMAGE=machine or IMAGE=FOLDER: what stands for an image.")] = (),
    folder: Annotated[Path, Parameter(help="Where images and what sandboxes share are kept.")] = Path(
        "build/environments"
    ),
    out: Annotated[Path | None, Parameter(help="A file for all figures, as JSON.")] = None,
) -> int:
    """Execute logged calls again and print, tool by tool, how alike their outputs and times are."""
    shown = console()
    if (workspace is None) == (not tasks):
        shown.print("--workspace, --tasks: give one of them: where the calls are executed")
        return 2
    if malformed := [each for each in base if "=" not in each]:
        shown.print(f"--base {malformed[0]}: write IMAGE=machine or IMAGE=FOLDER")
        return 2
    try:
        places = Places(workspace, tasks, folder, dict(each.split("=", 1) for each in base))
        compared, left_out, versions = asyncio.run(
            replay_all(Endpoint(url, key), Chosen(session, workload, most), places)
        )
    except EnvironmentFault as error:
        shown.print(str(error))
        return 1
    shown.print(as_table(compared))
    for line in differing(compared):
        shown.print(line)
    for why, count in sorted(left_out.items()):
        shown.print(f"left out, {why}: {count} sessions")
    if out is not None:
        made = made_by(
            "python -m environments.fidelity", lambda command: command.replace(key, "***") if key else command
        )
        origin = provenance(made, None, None, lowest_and_highest(versions))
        out.write_text(json.dumps(as_json(compared, left_out, origin), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(app())
