"""What `perfdl` says when it is called wrongly: one line that names the subcommand."""

import pytest

from pytest_perfdl.cli import main


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "perfdl: the following arguments are required: COMMAND"),
        (["nope"], "perfdl: argument COMMAND: invalid choice: 'nope' (choose from "),
        (["trace"], "perfdl trace: the following arguments are required: FILE"),
        (["whatif", "a.json", "--nope", "x"], "perfdl whatif: unrecognized arguments: --nope x"),
        (["scaling", "fit"], "perfdl scaling fit: the following arguments are required: POINTS"),
        (["scaling", "predict"], "perfdl scaling predict: the following arguments are required: MODEL"),
    ],
)
def test_a_wrong_call_is_one_line(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(said)
    assert line.endswith(f"(see {said.split(':')[0]} --help)")
