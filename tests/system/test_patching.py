"""Names that are replaced: by several providers one around the other, and put back."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

import pytest

from dgl_heta.errors import InputError
from dgl_heta.system.patching import Patch, applied, apply, plain, remove, when_imported


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """A module with a function and a class that inherits another's."""
    if applied():
        pytest.skip("dgl-heta is enabled in this process")
    made = ModuleType("patched_by_a_test")

    class Parent:
        def word(self) -> str:
            return "parent"

    class Child(Parent):
        pass

    made.Parent, made.Child = Parent, Child  # type: ignore[attr-defined]
    made.word = lambda: "own"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)
    yield made
    remove()


def around(text: str):
    def make(original):
        return lambda *args: f"{text}({original(*args)})"
    return make


def test_a_later_patch_goes_around_an_earlier_one(module) -> None:
    own = module.word
    apply([Patch("patched_by_a_test:word", around("core"), ""),
           Patch("patched_by_a_test:word", around("plugin"), "")])
    assert module.word() == "plugin(core(own))"
    assert plain(module.word) is own
    remove()
    assert module.word is own


def test_what_a_class_inherits_is_not_what_was_put_into_its_parent(module) -> None:
    apply([Patch("patched_by_a_test:Parent.word", around("one"), ""),
           Patch("patched_by_a_test:Child.word", around("two"), "")])
    assert (module.Parent().word(), module.Child().word()) == ("one(parent)", "two(parent)")
    remove()
    assert "word" not in vars(module.Child)


def test_nothing_is_replaced_where_a_name_is_not_there(module) -> None:
    own = module.word
    with pytest.raises(InputError, match="patched_by_a_test:nothing is not there"):
        apply([Patch("patched_by_a_test:word", around("core"), ""),
               Patch("patched_by_a_test:nothing", around("core"), "")])
    assert module.word is own
    assert not applied()


def test_names_that_were_imported_before_are_replaced_too(module, monkeypatch) -> None:
    other = ModuleType("imports_of_a_test")
    other.word = other.alias = own = module.word  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, other.__name__, other)
    apply([Patch("patched_by_a_test:word", around("core"), ""),
           Patch("patched_by_a_test:word", around("plugin"), "")])
    assert other.word() == other.alias() == "plugin(core(own))"
    remove()
    assert other.word is other.alias is own


def test_a_module_is_waited_for_until_it_is_imported(tmp_path, monkeypatch) -> None:
    """Who asks for its spec may not import it, and an import may fail."""
    (tmp_path / "waited_for.py").write_text("import no_such_module_of_a_test\n")
    monkeypatch.syspath_prepend(tmp_path)
    heard: list[tuple[str, ModuleType]] = []
    for name in ("first", "second"):
        when_imported("waited_for", lambda module, name=name: heard.append((name, module)))
    assert importlib.util.find_spec("waited_for") is not None
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("waited_for")
    assert not heard
    # (of another length: compiled code is told by size and seconds)
    (tmp_path / "waited_for.py").write_text("VALUE = 'there by now'\n")
    importlib.invalidate_caches()
    try:
        module = importlib.import_module("waited_for")
        assert heard == [("first", module), ("second", module)]
        when_imported("waited_for", lambda module: heard.append((module.VALUE, module)))
        assert heard[2] == ("there by now", module)
        importlib.reload(module)
        assert len(heard) == 3
    finally:
        sys.modules.pop("waited_for", None)


def test_what_fails_when_a_module_is_imported_fails_again(tmp_path, monkeypatch) -> None:
    """Somebody may swallow it the first time."""
    (tmp_path / "waited_for_in_vain.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    def fail(_: ModuleType) -> None:
        raise InputError("a wrong setting")

    when_imported("waited_for_in_vain", fail)
    for _ in range(2):
        with pytest.raises(InputError, match="a wrong setting"):
            importlib.import_module("waited_for_in_vain")
