"""`onward suite accept` refuses options that it would not heed."""

from pathlib import Path

import pytest

from core.errors import ConfigError
from onward.commands.eval_commands import accept_draft

CHECKER = '{ kind = "exact", text = "5" }'


def test_options_of_an_agents_work_are_refused_beside_a_checker(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--test: not with --checker"):
        accept_draft(tmp_path, "mined-1", checker=CHECKER, test=[1])
    with pytest.raises(ConfigError, match="--state: not with --checker"):
        accept_draft(tmp_path, "mined-1", checker=CHECKER, state=tmp_path)


def test_a_state_whose_work_lies_nowhere_by_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--workdir: /"):
        accept_draft(tmp_path, "mined-1", sessions=tmp_path, state=tmp_path, workdir="/")
