"""What is printed holds no control characters, and no line without end."""

import io
import warnings

import pytest
from rich.table import Table

from aurank.cli import app, drawing
from aurank.cli.drawing import Terminal, draw_warnings
from aurank.errors import AurankWarning

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \x00 \x9b2J \u202egnp.exe \ud800"


@pytest.mark.parametrize("markup", [True, False])
def test_text_of_any_kind_reaches_the_terminal_escaped(markup):
    written = io.StringIO()
    terminal = Terminal(file=written, force_terminal=True, color_system=None, width=400)
    terminal.print(f"class {HOSTILE}", markup=markup, highlight=False)
    table = Table("name", title=HOSTILE)
    table.add_row(HOSTILE)
    terminal.print(table)
    text = written.getvalue()
    assert r"\x1b[31mred\x1b]0;title\x07 \x00 \x9b2J \u202egnp.exe \ud800" in text
    assert not set(text) & set("\x1b\x07\x00\x9b\u202e\ud800")


def test_warnings_of_other_libraries_are_escaped(monkeypatch):
    shown: list[object] = []
    monkeypatch.setattr(warnings, "showwarning", lambda *given: shown.extend(given))
    with draw_warnings():
        warnings.showwarning(UserWarning("from a file: \x1b[2J"), UserWarning, "file.py", 1)
    assert shown == [r"from a file: \x1b[2J", UserWarning, "file.py", 1]


def test_an_argument_with_a_control_character_is_refused(aurank):
    said = "error: the argument '--\\x1b[31m' holds a control character; write it without\n"
    assert aurank("--\x1b[31m") == (2, "", said)


@pytest.mark.parametrize(("rank", "said"), [("0", "of aurank\n"), ("1", "")])
def test_one_process_of_several_draws_a_warning(rank, said, monkeypatch, capsys):
    monkeypatch.setenv("RANK", rank)
    with warnings.catch_warnings(), draw_warnings():
        warnings.simplefilter("default")
        warnings.warn("of aurank", AurankWarning, stacklevel=1)
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("goes_on", "end"), [(False, ""), (True, "; the same command goes on")])
def test_an_interrupted_command_ends_with_a_line(goes_on, end, aurank, monkeypatch):
    def work(**_: object) -> None:
        with drawing.draw_stages("preparing") as draw:
            draw("embedding", 64, 1216)
            raise KeyboardInterrupt

    monkeypatch.setattr(app.commands["ls"], "callback", work)
    monkeypatch.setattr(app.commands["ls"], "entry", {"goes_on": goes_on})
    assert aurank("ls") == (130, "", f"stopped at embedding: 64 of 1,216{end}\n")
