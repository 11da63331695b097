"""The command line, in this process."""

import sys

import pytest

from aurank import cli


class Shell:
    """Runs a command in this process; returns its exit code, output and complaints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["aurank", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        captured = self.capsys.readouterr()
        return code, captured.out, captured.err
