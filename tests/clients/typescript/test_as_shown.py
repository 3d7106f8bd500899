"""Our npm packages as their pages say that they are installed."""

import json
import zipfile
from pathlib import Path

import pytest
from editor import package
from packages import ROOT, built, node, run, shown

USE = """
const { MemoryStorage, Onward } = require("onward-client");
const onward = new Onward({ url: "http://127.0.0.1:9", storage: new MemoryStorage() });
const told = onward.feedback({ inferenceId: "i", metric: "accepted", value: true });
told.then(() => process.exit(0), () => process.exit(1));
"""


@pytest.mark.parametrize("name", ["typescript", "vscode"])
def test_the_commands_of_each_page_make_what_it_says(name: str, tmp_path: Path) -> None:
    """Of each README.md: those up to the build are run by `built`, which all tests of the package begin with."""
    directory = built(name)
    if name == "vscode":
        with zipfile.ZipFile(package(tmp_path)) as extension:
            assert json.loads(extension.read("extension/package.json"))["name"] == "onward"
        return
    (tmp_path / "package.json").write_text("{}")
    where, command = shown(name, {"PROJECT": tmp_path, "CHECKOUT/clients/typescript": directory})[-1]
    assert (where, command[:2]) == (tmp_path.resolve(), ["npm", "install"])
    run(where, command)
    run(where, [node(), "-e", USE])
    assert (tmp_path / "node_modules" / "onward-client").resolve() == ROOT / "clients" / name
