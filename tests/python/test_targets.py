"""The choice of the instruction set."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

import attnops
import reference
from lrpe_cases import ACT_IDS, ACTS, MD_ACT_IDS, MD_ACTS, make_case, make_grid
from tolerances import assert_close


@pytest.fixture
def target_restored() -> Iterator[None]:
    """Goes back to the target that the process started with."""
    yield
    attnops.set_target("")


def run_with_target(name: str) -> subprocess.CompletedProcess[str]:
    """A new process with ATTNOPS_TARGET that prints the chosen target."""
    return subprocess.run(
        [sys.executable, "-c", "import attnops; print(attnops.get_target())"],
        env=os.environ | {"ATTNOPS_TARGET": name},
        capture_output=True,
        text=True,
    )


def test_the_chosen_target_is_one_of_the_lists():
    supported = attnops.supported_targets()
    assert attnops.get_target() in supported
    assert set(supported) <= set(attnops.compiled_targets())


@pytest.mark.usefixtures("target_restored")
@pytest.mark.parametrize("target", attnops.supported_targets())
@pytest.mark.parametrize(("act", "dim"), ACTS, ids=ACT_IDS)
def test_every_target_is_right(act, dim, target):
    attnops.set_target(target)
    assert attnops.get_target() == target
    x, theta, d_out = make_case(d=130)
    x.requires_grad_()
    out = attnops.lrpe_rotate(x, theta, offset=10**6, act=act, dim=dim)
    out.backward(d_out)
    assert_close(out, reference.lrpe_rotate(x, theta, 10**6, act, dim), x.dtype, act)
    expected = reference.lrpe_rotate_backward(x, theta, d_out, 10**6, act, dim)
    assert_close(x.grad, expected, x.dtype, act)


@pytest.mark.usefixtures("target_restored")
@pytest.mark.parametrize("target", attnops.supported_targets())
@pytest.mark.parametrize("with_table", [False, True])
@pytest.mark.parametrize(("act", "dim"), MD_ACTS, ids=MD_ACT_IDS)
def test_every_target_is_right_in_a_grid(act, dim, with_table, target):
    attnops.set_target(target)
    x, theta, d_out = make_grid((5, 3, 4), 2, d=130)
    x.requires_grad_()
    table = attnops.lrpe_table(theta, (5, 3, 4), 130) if with_table else None
    out = attnops.md_lrpe_cosine(x, theta, (5, 3, 4), l=2, act=act, dim=dim, table=table)
    out.backward(d_out)
    expected = reference.md_lrpe_cosine(x, theta, (5, 3, 4), 2, 0, act, dim)
    assert_close(out, expected, x.dtype, act)
    expected = reference.md_lrpe_cosine_backward(x, theta, d_out, (5, 3, 4), 2, 0, act, dim)
    assert_close(x.grad, expected, x.dtype, act)


@pytest.mark.usefixtures("target_restored")
def test_an_unknown_target_is_refused():
    before = attnops.get_target()
    with pytest.raises((ValueError, RuntimeError), match="ABACUS"):
        attnops.set_target("ABACUS")
    assert attnops.get_target() == before


def test_the_environment_chooses():
    last = attnops.supported_targets()[-1]
    assert run_with_target(last).stdout.split() == [last]


def test_an_unknown_target_in_the_environment_is_an_error():
    result = run_with_target("ABACUS")
    assert result.returncode != 0
    assert "ABACUS" in result.stderr
    assert "ATTNOPS_TARGET" in result.stderr
