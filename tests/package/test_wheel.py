"""What is shipped: the wheel, made from the source distribution, works where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "trt_widget"
HEAVY = (
    *("tensorrt", "tensorrt_rtx", "onnx", "polygraphy", "numpy", "pandas"),
    *("ipywidgets", "anywidget", "IPython", "ipykernel", "jupyter_ui_poll"),
    *("rich", "fastapi", "starlette", "uvicorn", "pygls", "lsprotocol", "mcp", "dask"),
)


class Built(NamedTuple):
    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("dist")
    # Without isolation: hatchling is in the environment, and nothing is fetched.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("elsewhere")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    what = ["--no-deps", "--no-index", "--target", str(target), str(built.wheel)]
    subprocess.run([*pip, *what], check=True)
    return target


def python(installed: Path, code: str) -> str:
    """Run code in a fresh interpreter that finds the installed wheel and not the working tree."""
    environ = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-W", "error::ImportWarning", "-c", code]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environ, cwd=installed
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def sources() -> set[str]:
    """Give every file of the package, relative to the project."""
    files = (file for file in PACKAGE.rglob("*") if file.is_file())
    return {file.relative_to(ROOT).as_posix() for file in files if "__pycache__" not in file.parts}


def test_wheel_holds_every_file_of_the_package(built: Built) -> None:
    names = set(zipfile.ZipFile(built.wheel).namelist())
    shipped = {name for name in names if name.startswith("trt_widget/")}
    assert shipped == sources()
    assert "trt_widget/py.typed" in shipped
    for ending in (".js", ".css"):
        assert [n for n in shipped if n.startswith("trt_widget/widget/static/")], ending
        assert any(name.endswith(ending) for name in shipped), ending
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_sdist_holds_sources_and_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert sources() < names
    assert {"LICENSE", "CHANGELOG.md", "README.md", "pyproject.toml"} < names
    assert {"tests/run.py", "package.json", "tsconfig.json"} < names
    assert any(name.startswith("notebooks/") for name in names)


def test_import_from_elsewhere_is_the_wheel(installed: Path) -> None:
    code = "import trt_widget, importlib.metadata as m; print(trt_widget.__file__)\n"
    code += "print(trt_widget.__version__, m.version('trt-widget'))"
    file, versions = python(installed, code).splitlines()
    assert Path(file).is_relative_to(installed)
    mine, metadata = versions.split()
    assert mine == metadata


def test_every_public_name_is_there(installed: Path) -> None:
    code = "import trt_widget as t; print([n for n in t.__all__ if getattr(t, n) is None])\n"
    code += "print(len(t.__all__), set(t.__all__) <= set(dir(t)))"
    missing, names = python(installed, code).splitlines()
    assert missing == "[]"
    count, listed = names.split()
    assert int(count) > 5
    assert listed == "True"


def test_import_is_light(installed: Path) -> None:
    code = f"import sys, trt_widget; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert python(installed, code).strip() == "[]"


@pytest.mark.parametrize(
    ("extra", "blocked", "command"),
    [
        ("serve", "fastapi", ["serve"]),
        ("serve", "uvicorn", ["serve"]),
        ("lsp", "pygls", ["lsp"]),
        ("mcp", "mcp", ["mcp"]),
    ],
)
def test_an_extra_that_is_missing_is_named(
    installed: Path, extra: str, blocked: str, command: list[str]
) -> None:
    # The bars' is in tests/surfaces/test_cli.py: they need a terminal.
    code = f"import sys; sys.modules[{blocked!r}] = None\nfrom trt_widget.cli import main\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}sys.exit(main({command!r}))"],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(installed)},
        cwd=installed,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode in {1, 2}
    assert f"trt-widget[{extra}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout
