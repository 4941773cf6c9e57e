"""Models on a Dask worker, by content: each is sent once, however many builds need it."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import OrderedDict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from trt_widget._content import hash_file
from trt_widget.errors import BuildFailed, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Stopped", "Store"]

#: Bytes of the models that no build uses; past it the ones that were used longest ago go.
MAX_UNUSED = 8 << 30
#: Seconds between two looks at whether a build still wants the model that it waits for.
_LOOK_S = 0.2


class Stopped(Exception):  # noqa: N818 - nothing is wrong
    """Nobody wants the build any more."""


class _Model:
    """One model's place.

    Attributes
    ----------
    size
        Bytes of all its files.
    users
        Builds that use it, or wait for it.
    ready
        Whether it is here, whole and verified.
    arriving
        Whether one of the builds has it sent.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.users = 0
        self.ready = False
        self.arriving = False


class Store:
    """The models of one worker.

    Parameters
    ----------
    folder
        Where they lie: below the worker's own folder, which goes with the worker.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: OrderedDict[str, _Model] = OrderedDict()
        self._changed = threading.Condition()

    def folder_of(self, digest: str) -> Path:
        """Give the folder of a model and its weights."""
        return self._folder / digest

    @contextlib.contextmanager
    def hold(
        self,
        digest: str,
        files: Sequence[tuple[str, int, str]],
        receive: Callable[[list[Path], list[int]], None],
        check_wanted: Callable[[], None],
    ) -> Iterator[Path]:
        """Give the path of a model, which stays until the context is left.

        Parameters
        ----------
        digest
            Of the content.
        files
            Name, size and hash of each file, the model first.
        receive
            Fills the files of these paths and sizes; called where the model is not here yet, by
            one build at a time.
        check_wanted
            Raises `Stopped` where the build is not wanted any more.

        Raises
        ------
        SourceError
            It cannot be laid out here, or did not arrive as it was.
        BuildFailed
            There is no room for it.
        """
        paths = _lay_out(self.folder_of(digest), [name for name, _, _ in files])
        sizes = [size for _, size, _ in files]
        with self._changed:
            model = self._models.setdefault(digest, _Model(sum(sizes)))
            model.users += 1
        try:
            self._wait_for(model, check_wanted)
            if not model.ready:
                try:
                    self._make_room(model.size)
                    self._fill(digest, paths, sizes, receive)
                    _verify(paths, [sha256 for _, _, sha256 in files], check_wanted)
                    model.ready = True
                finally:
                    if not model.ready:
                        shutil.rmtree(self.folder_of(digest), ignore_errors=True)
                    with self._changed:
                        model.arriving = False
                        self._changed.notify_all()
            yield paths[0]
        finally:
            with self._changed:
                model.users -= 1
                self._models.move_to_end(digest)
                if not (model.ready or model.users):
                    del self._models[digest]
            self._make_room(0)

    def _wait_for(self, model: _Model, check_wanted: Callable[[], None]) -> None:
        """Wait while another build has the model sent; else it is this one's turn to."""
        with self._changed:
            while model.arriving:
                check_wanted()
                self._changed.wait(_LOOK_S)
            model.arriving = not model.ready

    def _fill(
        self,
        digest: str,
        paths: list[Path],
        sizes: list[int],
        receive: Callable[[list[Path], list[int]], None],
    ) -> None:
        try:
            shutil.rmtree(self.folder_of(digest), ignore_errors=True)
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            receive(paths, sizes)
        except OSError as error:
            raise BuildFailed(
                f"The model could not be stored on the Dask worker: {error.strerror}.",
                "Give the worker a folder with more room (dask worker --local-directory).",
            ) from error

    def _make_room(self, size: int) -> None:
        """Remove what was used longest ago, if there is too much that nobody uses."""
        with self._changed:
            unused = [(d, m) for d, m in self._models.items() if m.ready and not m.users]
            total = size + sum(model.size for _, model in unused)
            for digest, model in unused:
                if total <= MAX_UNUSED:
                    return
                total -= model.size
                del self._models[digest]
                shutil.rmtree(self.folder_of(digest), ignore_errors=True)


def _lay_out(root: Path, names: list[str]) -> list[Path]:
    """Give the paths of a model's files below ``root``, related to each other as they were."""
    plain = [os.path.normpath(name) for name in names]
    # Weights may lie beside the model's folder, or further up.
    ups = max(PurePosixPath(Path(name).as_posix()).parts.count("..") for name in plain)
    folder = root.joinpath(*["_"] * ups)
    paths = [Path(os.path.normpath(folder / name)) for name in plain]
    for name, path in zip(names, paths, strict=True):
        if Path(name).is_absolute() or not path.is_relative_to(root):
            raise SourceError(
                f"The model keeps weights at {name!r}, a place that only the client's machine has.",
                "Save the model with its weights beside it: onnx.save(model, path, "
                "save_as_external_data=True).",
            )
    return paths


def _verify(paths: list[Path], hashes: list[str], check_wanted: Callable[[], None]) -> None:
    for path, sha256 in zip(paths, hashes, strict=True):
        if hash_file(path, check_wanted).sha256 != sha256:
            raise SourceError(
                f"{path.name} was changed while it was sent to the Dask worker.",
                "Let nothing write to the model's files while builds begin, and build again.",
            )
