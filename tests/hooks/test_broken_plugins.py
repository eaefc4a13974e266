"""A plugin that is wrong is one error, which names it and says what to do."""

from __future__ import annotations

import re

import pytest

from dgl_heta._version import __version__
from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins
from tests.support.plugins import BACKEND, distribution, heta


def test_a_conflict_names_both_plugins(tmp_path):
    distribution(tmp_path, "first-plugin", BACKEND.format(name="same"), "1.0", entry="a")
    distribution(tmp_path, "second-plugin", BACKEND.format(name="same"), "2.0", entry="b")
    run = heta("plan", "debian", "--method", "same", path=tmp_path)
    assert (run.returncode, run.stdout) == (2, "")
    (line,) = run.stderr.splitlines()
    assert line.startswith("error: two plugins provide partition backend 'same': ")
    assert "first-plugin 1.0" in line
    assert "second-plugin 2.0" in line


def test_a_plugin_cannot_take_the_name_of_a_built_in(install):
    install("takes-meta", BACKEND.format(name="meta"))
    with pytest.raises(InputError, match=rf"'meta': built in {__version__} and takes-meta 1\.5"):
        Plugins().get("partition backend", "metis")


@pytest.mark.parametrize(("name", "gives", "message"), [
    ("plan", "None", "provides command 'plan', which dgl-heta has itself; rename it"),
    ("mine", "7", "command 'mine' gave 7; it must give a typer.Typer or a click.Command")])
def test_a_command_that_is_none_or_has_a_taken_name_is_one_error(tmp_path, name, gives, message):
    code = f"""
        from dgl_heta import Command, hookimpl

        class Mine(Command):
            name, description = "{name}", ""

            def command(self):
                return {gives}

        @hookimpl
        def dgl_heta_commands():
            return [Mine()]
    """
    run = heta("mine", path=distribution(tmp_path, "with-command", code))
    assert (run.returncode, run.stdout) == (2, "")
    (line,) = run.stderr.splitlines()
    assert line.startswith("error: plugin with-command")
    assert line.endswith(message)


HOOK = "from dgl_heta import hookimpl\n@hookimpl\ndef dgl_heta_models():\n    return "


@pytest.mark.parametrize(("code", "message"), [
    ("import no_such_module", "cannot be loaded: .*ModuleNotFoundError.*no_such_module"),
    ("def broken(:", "cannot be loaded: .*SyntaxError"),
    ("1 / 0", "cannot be loaded: .*ZeroDivisionError"),
    ("import sys; sys.exit()", "cannot be loaded: .*SystemExit"),
    (HOOK + "exit(0)", "dgl_heta_models failed with SystemExit: 0"),
    (HOOK + "object()", "dgl_heta_models returned <object .*must return a list of providers"),
    (HOOK + "None", "dgl_heta_models returned None"),
    (HOOK + "(1 for _ in ())", "dgl_heta_models returned <generator"),
    (HOOK + "[object()]", "each with a name"),
    (HOOK + "[type('P', (), {'name': None})]", "each with a name"),
    (HOOK + "[type('P', (), {'name': ''})]", "each with a name"),
    (HOOK + "1 / 0", "dgl_heta_models failed with ZeroDivisionError: division by zero"),
    (HOOK.replace("models", "modles") + "[]", "unknown hook 'dgl_heta_modles'.*dgl_heta_models"),
    (HOOK.replace("models()", "models(spec)") + "[]", "spec.*not be found|spec.*hookspec"),
])
def test_a_broken_plugin_is_one_error_with_its_name(install, request, code, message):
    name = f"broken-plugin-{request.node.callspec.indices['code']}"
    install(name, code)
    with pytest.raises(InputError, match=f"plugin {name} 1.5") as error:
        Plugins().providers("model")
    assert re.search(message, str(error.value)), str(error.value)


def test_a_broken_plugin_is_one_line_on_the_command_line(tmp_path):
    run = heta("datasets", path=distribution(tmp_path, "broken-one", "raise OSError('no\\nway')"))
    assert (run.returncode, run.stdout) == (2, "")
    (line,) = run.stderr.splitlines()
    assert line.startswith("error: plugin broken-one 1.5 cannot be loaded")
