"""Images are built without an engine as an engine would build them."""

import asyncio
import re
from pathlib import Path

import pytest
from sandboxed import PATIENCE_S
from task_folders import base_of, builder, read, write_task

from environments.errors import InfrastructureFailure
from environments.sandboxes.bubblewrap.adapter import Bubblewrap
from environments.tasks.images.bases import Bases
from environments.tasks.images.build import LocalBuilder
from environments.tasks.images.image import Recipe
from environments.tasks.preparing import prepare

DOCKERFILE = """
ARG PLACE=app
FROM base
ARG PLACE
ARG GREETING="good day"
ENV SAID="$GREETING" \\
    AGAIN=${GREETING:-nothing}
WORKDIR /srv
WORKDIR $PLACE
COPY one.txt .
COPY --chmod=755 one.txt /srv/named
COPY folder /srv/folder
COPY folder/*.txt one.txt many/
RUN echo "$GREETING from $(pwd)" >shell.txt
RUN ["sh", "-c", "echo exec >exec.txt"]
RUN <<EOF
echo here >here.txt
rm /srv/folder/gone.txt /usr/bin/env
EOF
LABEL a=b
CMD ["true"]
"""


def recipe(folder: Path, dockerfile: str, **files: str) -> Recipe:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    return Recipe(folder, folder / "Dockerfile")


def test_instructions_are_carried_out(tmp_path: Path, images: Path) -> None:
    files = {"environment/one.txt": "one", "environment/folder/two.txt": "two", "environment/folder/gone.txt": "gone"}
    folder = write_task(tmp_path / "t", dockerfile=DOCKERFILE, files=files)
    script = """
    pwd; cat one.txt; test -x /srv/named && cat /srv/named; ls /srv/folder many; cat shell.txt exec.txt here.txt
    echo "$SAID|$AGAIN|$PLACE"; ls /usr/bin/env; stat -c %a /tmp
    """

    async def run() -> str:
        task = await prepare(read(folder), builder(images))
        sandboxes = Bubblewrap(images / "sandboxes")
        async with await sandboxes.open(task.spec) as sandbox:
            result = await sandbox.run(("sh", "-c", script), timeout_seconds=PATIENCE_S)
        await sandboxes.close()
        return result.stdout.decode()

    assert asyncio.run(run()).split() == [
        *("/srv/app", "oneone/srv/folder:", "two.txt", "many:", "gone.txt", "one.txt", "two.txt"),
        *("good", "day", "from", "/srv/app", "exec", "here", "good", "day|good", "day|", "1777"),
    ]


def test_a_layer_is_made_once_and_shared_by_all_that_begin_with_it(tmp_path: Path, images: Path) -> None:
    random = "FROM base\nRUN cat /proc/sys/kernel/random/uuid >/id; echo >/gone\nRUN rm /gone; echo >>/id\n"
    first, second = recipe(tmp_path / "a", random), recipe(tmp_path / "b", random + "ENV OTHER=1\n")
    local = LocalBuilder(tmp_path / "layers", Bases({"base:*": str(base_of(images))}, images / "roots"))

    async def both() -> tuple[list[tuple[Path, ...]], list[bytes]]:
        made = await asyncio.gather(local.prepare(first), local.prepare(second))
        sandboxes, seen = Bubblewrap(images / "sandboxes"), list[bytes]()
        for image in made:
            async with await sandboxes.open(image.spec) as sandbox:
                command = ("/bin/sh", "-c", "cat /id; ls /; rm -r /id /srv; echo mine >/new")
                seen.append((await sandbox.run(command, timeout_seconds=PATIENCE_S)).stdout)
        await sandboxes.close()
        return [image.layers for image in made], seen

    (one, other), seen = asyncio.run(both())
    assert one == other
    assert sorted(path.name for path in one) == sorted(
        path.name for path in (tmp_path / "layers").iterdir() if not path.name.startswith(".")
    )
    assert seen[0] == seen[1], "the second one begins where the first one did"
    assert re.match(rb"[0-9a-f-]{36}\n\n", seen[0])
    assert b"gone" not in seen[0].split()


def test_what_is_copied_and_set_is_in_the_digest(tmp_path: Path, images: Path) -> None:
    def digest(dockerfile: str, content: str) -> str:
        return asyncio.run(builder(images).prepare(recipe(tmp_path, f"FROM base\n{dockerfile}", a_txt=content))).digest

    same = digest("COPY a.txt /", "1")
    assert digest("COPY a.txt /", "1") == same
    assert (
        len({same, digest("COPY a.txt /", "2"), digest("COPY a.txt /b/", "1"), digest("COPY a.txt /\nENV A=1", "1")})
        == 4
    )


@pytest.mark.parametrize(
    ("instruction", "told"),
    [
        ("RUN echo before; exit 7", "line 2, RUN echo before; exit 7: exit code 7: before"),
        ("USER somebody", "line 2, USER somebody"),
        ("COPY missing.txt /", "not in the environment's folder"),
        ("COPY ../secret /", "leads out of|not in the environment"),
        ("COPY --from=other /a /b", "--from=other is not understood"),
        ("ADD https://example.org/a /a", "addresses and archives are for RUN"),
        ("RUN --mount=type=secret,id=a true", "--mount=type=secret,id=a is not understood"),
        ("FROM other", "only one stage"),
        ('ENTRYPOINT ["server"]', "ENTRYPOINT"),
        ("VOLUME /data", "VOLUME"),
        ("ONBUILD RUN true", "ONBUILD"),
        ("SOMETHING else", "SOMETHING"),
    ],
)
def test_what_cannot_be_carried_out_is_told_of(tmp_path: Path, images: Path, instruction: str, told: str) -> None:
    with pytest.raises(InfrastructureFailure, match=told) as caught:
        asyncio.run(builder(images).prepare(recipe(tmp_path / "t", f"FROM base\n{instruction}\n")))
    assert caught.value.part == "image"


def test_a_build_that_takes_too_long_is_ended_and_leaves_nothing(tmp_path: Path, images: Path) -> None:
    given = recipe(tmp_path / "t", "FROM base\nRUN sleep 60\n")
    local = LocalBuilder(tmp_path / "layers", Bases({"*": str(base_of(images))}, images / "roots"))
    with pytest.raises(InfrastructureFailure, match=re.escape("took more than 0.5 s")):
        asyncio.run(local.prepare(Recipe(given.context, given.dockerfile, None, 0.5)))
    assert not [path for path in (tmp_path / "layers").iterdir() if not path.name.endswith(".lock")]


def test_a_base_that_nothing_stands_for_is_told_of(tmp_path: Path) -> None:
    local = LocalBuilder(tmp_path / "layers", Bases({"python:3.*-slim": "machine"}, tmp_path / "roots"))
    with pytest.raises(InfrastructureFailure, match=r"ubuntu:24.04 cannot be pulled.*named are: python:3"):
        asyncio.run(local.prepare(recipe(tmp_path / "t", "FROM ubuntu:24.04\n")))


@pytest.mark.parametrize(
    "reference", ["python:3.12-slim", "docker.io/library/python:3.12-slim@sha256:00", "library/python:3.9-slim"]
)
def test_references_are_known_in_all_their_forms(reference: str, tmp_path: Path) -> None:
    bases = Bases({"python:3.*-slim": "machine"}, tmp_path)
    assert bases.has(reference)
    assert not bases.has("python:3.12")
    assert not bases.has("localhost:5000/python")
