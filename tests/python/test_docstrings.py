"""Every public name says what it is, with an example that runs."""

import doctest
import inspect
from types import ModuleType

import pytest

import attnops
import attnops.hf
import attnops.nn


def public(module: ModuleType) -> dict[str, object]:
    """The functions and classes that a module names in __all__."""
    values = {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    return {name: value for name, value in values.items() if not inspect.ismodule(value)}


NAMES = public(attnops) | public(attnops.nn)
NAMES |= {"attnops.hf.patch": attnops.hf.patch, "attnops.hf.unpatch": attnops.hf.unpatch}


@pytest.mark.parametrize("name", NAMES)
def test_example(name):
    value = NAMES[name]
    found = doctest.DocTestFinder(recurse=False).find(value, name, globs={})
    assert any(test.examples for test in found), f"{name} has no example"
    precision, target = attnops.get_precision(), attnops.get_target()
    attnops.set_precision("auto")  # a user's
    try:
        for test in found:
            out: list[str] = []
            doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=out.append)
            assert not out, "".join(out)
    finally:
        attnops.set_precision(precision)
        attnops.set_target(target)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_described(name):
    """Each by its name, in the section of the parameters."""
    value = NAMES[name]
    arguments = [a for a in inspect.signature(value).parameters if a not in ("args", "kwargs")]
    text = inspect.getdoc(value) or ""
    if arguments:
        assert "Parameters\n----------" in text, name
        section = text.split("Parameters\n----------")[1].split("\n--------")[0]
        missing = [a for a in arguments if a not in section]
        assert missing == [], name
