"""docs/arithmetic.md defines every operator and function that the native table lists, as the table lists it."""

import pathlib
import re
import types

import pytest

from bitwitness.kernels import ops, reference
from bitwitness.kernels.reference import functions, philox

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "arithmetic.md").read_text("utf-8")
OPERATORS_PAGE = PAGE[PAGE.index("## Operators") : PAGE.index("## Randomness")]
SECTIONS = dict(re.findall(r"^### (\w+)\n\n(.*?)\n\n(?=###|\Z)", OPERATORS_PAGE, re.M | re.S))


def test_the_page_lists_the_operators_in_order():
    assert list(SECTIONS) == list(ops.OPERATORS)
    assert "All are version 1." in PAGE and {op.version for op in ops.OPERATORS.values()} == {1}


@pytest.mark.parametrize("name", ops.OPERATORS)
def test_the_declaration_on_the_page_is_that_of_the_source(name):
    """Operands, attributes and rules stand in the first line of the section, then comes the definition."""
    declaration, _, definition = SECTIONS[name].partition("\n\n")
    operands, attributes, rules = ops.OPERATORS[name].declaration
    parts = [f"`{operands}`", f"`{attributes}`" if attributes else "", rules]
    assert declaration == " · ".join(filter(None, parts))
    assert definition.strip()


@pytest.mark.parametrize("name", ops.OPERATORS)
def test_every_operator_has_a_reference_that_cites_its_attributes(name):
    assert name in reference.OPERATORS
    code = reference.OPERATORS[name].__code__
    positional, keywords = code.co_argcount, code.co_kwonlyargcount
    assert positional == len(ops.OPERATORS[name].operands)
    assert set(code.co_varnames[positional : positional + keywords]) == set(ops.OPERATORS[name].attributes)
    real = {a for a, kind in ops.OPERATORS[name].attributes.items() if kind == "real"}
    assert real == set(ops.OPERATORS[name].attributes) & reference.FLOAT_ATTRIBUTES


def _reached(function):
    """Names of FUNCTIONS that a definition of the reference calls, directly or through helpers of its own."""
    modules = (functions, philox)
    known = {getattr(m, name): name for m in modules for name in ops.FUNCTIONS if hasattr(m, name)}
    known[philox.philox4x32] = "philox4x32-10"
    split = {"sincos2pi": {"sin2pi", "cos2pi"}}
    found, due, seen = set(), [function], set()
    while due:
        one = due.pop()
        for name in _names(one.__code__):
            called = one.__globals__.get(name)
            owners = [m for m in one.__globals__.values() if isinstance(m, types.ModuleType)]
            for candidate in [called, *(getattr(m, name, None) for m in owners)]:
                if not isinstance(candidate, types.FunctionType) or candidate in seen or candidate is function:
                    continue
                seen.add(candidate)
                if candidate in known:
                    found.add(known[candidate])
                elif name in split:
                    found |= split[name]
                elif candidate.__module__.startswith(reference.__name__):
                    due.append(candidate)
    return found


def _names(code):
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {*code.co_names, *(name for one in inner for name in _names(one))}


@pytest.mark.parametrize("name", ops.OPERATORS)
def test_every_operator_names_the_functions_that_its_definition_calls(name):
    assert set(ops.OPERATORS[name].functions) == _reached(reference.OPERATORS[name])


@pytest.mark.parametrize("name", ["sigmoid", "uniform", "normal", "trunc_normal", "permutation"])
def test_every_function_names_the_functions_that_it_calls(name):
    module = functions if hasattr(functions, name) else philox
    assert set(ops.FUNCTIONS[name].uses) == _reached(getattr(module, name))


def test_the_page_says_which_functions_are_used():
    table = PAGE[PAGE.index("## The arithmetic of a run") : PAGE.index("## A step")]
    rows = re.findall(r"^\| (.*) \| (.*) \|$", table, re.M)[1:]
    said = {name: tuple(uses.split(", ")) for names, uses in rows for name in names.split(", ")}
    functions = {name: function.uses for name, function in ops.FUNCTIONS.items()}
    operators = {name: op.functions for name, op in ops.OPERATORS.items()}
    assert said == {name: uses for name, uses in {**functions, **operators}.items() if uses}


def test_the_reference_defines_nothing_else():
    assert list(reference.OPERATORS) == list(ops.OPERATORS)


@pytest.mark.parametrize("name", ops.FUNCTIONS)
def test_every_function_is_defined_on_the_page(name):
    text = {"philox4x32-10": "Philox4x32-10"}.get(name, name)
    assert re.search(rf"(\*\*|\| ){re.escape(text)}\b|^{re.escape(text)}\b|\b{re.escape(text)}\(u\)", PAGE, re.M)


def test_the_coefficients_on_the_page_are_those_of_the_source_and_the_reference():
    """Each constant of functions.h stands on the page and in the reference, and no other on either."""
    root = pathlib.Path(__file__).parents[2] / "kernels"
    if not (root / "csrc" / "functions.h").exists():
        pytest.skip("the C++ sources are not here")

    def constants(text):
        found = re.findall(r"-?0x1(?:\.[0-9a-f]+)?p[+-]\d+", text.replace("−", "-"))
        return {abs(float.fromhex(c)) for c in found} - {1.0, 0.5}

    source = constants((root / "csrc" / "functions.h").read_text("utf-8"))
    definition = constants((root / "reference" / "functions.py").read_text("utf-8")) - {4.0}
    page = constants(PAGE[PAGE.index("## Functions") : PAGE.index("## Operators")])
    extra = {2.0**-126, 2.0**23}  # written as powers of two on the page
    assert source - extra == definition - extra == page - extra
