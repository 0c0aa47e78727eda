"""Exit statuses of commands whose input, files or environment fail."""

import pytest

from manyview.cli.arguments import EXIT_FAILED, EXIT_USAGE, CommandFailedError, exit_on_error
from manyview.envs.contract import ContractError, EnvError


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EnvError("step raised ValueError: no arm"), EXIT_FAILED),
        (ContractError("reward is NaN"), EXIT_FAILED),
        (ValueError("--fps must be positive"), EXIT_USAGE),
        (FileNotFoundError("no run in nowhere"), EXIT_USAGE),
        (RuntimeError("no renderer"), EXIT_USAGE),
    ],
)
def test_an_error_ends_a_command_with_one_line_and_its_status(
    error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CommandFailedError) as exc_info, exit_on_error():
        raise error
    assert exc_info.value.status == status
    assert capsys.readouterr().err == f"{error}\n"


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(KeyError), exit_on_error():
        raise KeyError("bonus")
