"""Fixtures: the GPU, what this TensorRT can do on it, its memory; and the figures at the end."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from tests.conftest import CUDA_BEFORE
from tests.gpu import networks
from tests.gpu.device import (
    DRY,
    MIB,
    NO_DEVICE,
    PROBE_S,
    SMI_S,
    Device,
    Figures,
    Memory,
    NoAnswerError,
    NoMemory,
    find_device,
    holding,
    probe,
)
from trt_widget import Build
from trt_widget import backend as backend_module
from trt_widget.backend import find_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIGURES = Figures()
#: Characters of a reason: it is shown for each group of tests that are skipped for it.
LONGEST_REASON = 800
#: Seconds that it may take to find the GPU and what TensorRT can do on it; they come on top of the
#: time of whichever test is the first.
SETUP_S = 3 * PROBE_S + SMI_S


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test here the time of what all have in common, too."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            mark = item.get_closest_marker("timeout")
            own = mark.args[0] if mark is not None else item.config.getini("timeout")
            item.add_marker(pytest.mark.timeout(float(own) + SETUP_S), append=False)


def _give_up(why: NoAnswerError) -> NoReturn:
    """End the run as failed, once: no test here means anything then."""
    pytest.exit(f"tests/gpu cannot be run: {why}", returncode=1)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures."""
    if FIGURES.lines:
        terminalreporter.section("figures")
        terminalreporter.write_line(FIGURES.text())


def _forget_gpus() -> None:
    for function in (backend_module.gpus, backend_module._driver):
        function.cache_clear()


@pytest.fixture(scope="session")
def figures() -> Figures:
    """Give what is printed at the end."""
    return FIGURES


@pytest.fixture(scope="session", autouse=True)
def device(figures: Figures) -> Iterator[Device]:
    """Give the GPU, seen again by this process and its children; skip all tests without one."""
    if CUDA_BEFORE is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = CUDA_BEFORE
    else:
        del os.environ["CUDA_VISIBLE_DEVICES"]
    hidden = ""
    try:
        found = find_device()
    except NoAnswerError as why:
        _give_up(why)
    if DRY:
        os.environ["CUDA_VISIBLE_DEVICES"] = hidden
        found = NO_DEVICE
    _forget_gpus()
    if isinstance(found, str):
        os.environ["CUDA_VISIBLE_DEVICES"] = hidden
        pytest.skip(f"no GPU: {found}")
    figures.say(f"{found}; {find_backend('tensorrt_rtx')}; {_versions()}")
    if not DRY and not backend_module.gpus():
        pytest.fail(
            "another process sees a GPU and this one does not: CUDA was started here before, by "
            "other tests. Run tests/gpu alone."
        )
    yield found
    os.environ["CUDA_VISIBLE_DEVICES"] = hidden
    _forget_gpus()


def _versions() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"Python {platform.python_version()}, {cores} cores of {platform.machine()}"


@pytest.fixture(scope="session")
def abilities(figures: Figures) -> dict[str, dict[str, Any]]:
    """Say what TensorRT itself can do here, tried once: by target, what ``try_tensorrt`` found."""
    try:
        found = {target: probe("abilities", target) for target in ("current", "default")}
    except NoAnswerError as why:
        _give_up(why)
    for target, told in found.items():
        if "died" in told:
            figures.say(f"TensorRT alone, target {target}: the process ended with {told['died']}")
            continue
        if told["refused"]:
            figures.say(f"set_compute_capability({target.upper()}) {told['refused']}")
        steps = ("accepted", "built", "loaded", "ready")
        came = ", ".join(f"{step} {'yes' if told[step] else 'no'}" for step in steps)
        figures.say(f"TensorRT alone, target {target}: {came}")
        figures.lines += [f"    {text[:600]}" for text in told["build_words"] + told["run_words"]]
    return found


def can_run(abilities: dict[str, dict[str, Any]], target: str) -> bool:
    """Say whether TensorRT ran to the end for a target."""
    return bool(abilities[target].get("ready"))


def words(abilities: dict[str, dict[str, Any]], target: str) -> str:
    """Give TensorRT's own words for why it did not."""
    told = abilities[target]
    said = [told.get("died", ""), told.get("refused", "")]
    said += [*told.get("build_words", ()), *told.get("run_words", ())]
    text = " ".join(said).strip() or "TensorRT gives no reason"
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}…"


@pytest.fixture(scope="session")
def target(abilities: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Give the options to build with: for this GPU where that can be, else for TensorRT's own."""
    return {"target": "current"} if can_run(abilities, "current") else {}


@pytest.fixture(scope="session")
def held(target: dict[str, Any]) -> dict[str, Any]:
    """Give the options of a build that holds GPU memory, on any GPU: at least a CUDA context.

    TensorRT for RTX makes none where it builds ahead of time; ``device=`` makes one.
    """
    return target if DRY else {**target, "device": 0}


@pytest.fixture
def runs_here(abilities: dict[str, dict[str, Any]], target: dict[str, Any]) -> None:
    """Skip, in TensorRT's own words, where its engines do not run on this GPU."""
    which = target.get("target", "default")
    if not can_run(abilities, which):
        pytest.skip(f"engines do not run here: {words(abilities, which)}")


@pytest.fixture(scope="session")
def memory(device: Device) -> Memory:
    """Give the meter of the GPU's memory."""
    meter = NoMemory() if DRY else Memory(device)
    try:
        meter.used()
    except NoAnswerError as why:
        pytest.fail(f"the GPU's memory cannot be read: {why}", pytrace=False)
    return meter


@pytest.fixture(scope="session")
def tolerance(memory: Memory, figures: Figures) -> int:
    """Give how many bytes above a baseline are not told from it.

    Half of what the smallest process holds that has started CUDA: nothing that outlives its build
    stays below that. The drivers and the libraries of this process keep some pages for later
    whenever they please, so that 0 would be wrong. Of fifty builds that each left something in this
    process, a fiftieth of it would be seen.
    """
    if DRY:
        return 0
    before = memory.used()
    with holding("context"):
        context = memory.used() - before
    limit = before + context // 2
    assert memory.settles(limit, 15) <= limit
    figures.say(f"a CUDA context takes {context / MIB:.0f} MiB of GPU memory ({memory.source})")
    return max(context // 2, 16 * MIB)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of the networks and of the engines that several tests use."""
    return tmp_path_factory.mktemp("networks")


@pytest.fixture(scope="session")
def network(folder: Path) -> Callable[[str], Path]:
    """Give a function that gives the path of a network by its name."""
    return lambda name: networks.written(name, folder)


@pytest.fixture(scope="session")
def engine(
    folder: Path, network: Callable[[str], Path], target: dict[str, Any]
) -> Callable[[str, str], Path]:
    """Give a function that gives the engine of a network by an executor, built where need be.

    ``test_build`` leaves its engines at the same places.
    """

    def give(name: str, executor: str) -> Path:
        path = folder / f"{name}-{executor}.engine"
        if not path.exists():
            Build(str(network(name)), executor=executor, output=path, **target).start().wait()
        return path

    return give
