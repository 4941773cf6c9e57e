"""Which phases of a build have a work-done progress token, and what it says.

A pure function of the tree and the time. The protocol has no nesting, so a title says where its
phase stands: ``resnet50.onnx: … > Computing profile costs > Timing tactics`` is two levels below a
root, a dot row for each ancestor that is not named. A token begins after its parent's and ends
before it.

There is one token for a path, however often it opens: TensorRT opens and closes one phase 1,107
times in a build. A path gets it once it has been busy for :data:`OPEN_AFTER_S`, and keeps it until
its parent has ended or it is idle, for :data:`LINGER_S` if it has opened more than once. Shorter
phases are counted in the token of their path if it has one, and else not told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trt_widget._text import duration, line
from trt_widget.phases import SILENT_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from trt_widget.phases import PhaseNode, PhaseTree

__all__ = ["LOOK_S", "MAX_MESSAGES", "MAX_TOKENS", "Message", "Tokens", "clean", "seconds"]

#: Seconds between two looks at a build.
LOOK_S = 0.25
#: Tokens of phases that a build has open at once.
MAX_TOKENS = 8
#: Messages of the phases at one look. With the one of the build itself this is at most 40 a second.
#: A begin, which comes when the client has answered, counts where it was asked for.
MAX_MESSAGES = 9
#: Seconds that a path has to be busy for a token, and after which an idle one loses it.
OPEN_AFTER_S = 0.3
LINGER_S = 1.0
#: Characters of a phase's name in a title.
_NAME = 60


class Message(NamedTuple):
    """What to tell the client: ``create``, ``begin``, ``report`` or ``end`` of a token."""

    kind: str
    token: str
    title: str = ""
    text: str = ""
    percentage: int | None = None


@dataclass(eq=False)
class _Path:
    """What is remembered of a path that was busy lately."""

    node: PhaseNode
    since: float
    seen: float
    #: ``""``, ``created`` (asked for), ``granted``, ``begun`` or ``refused``.
    state: str = ""
    token: str = ""
    #: Instances when it began, and what was told last. No percentage where it would be of many.
    told: str = ""
    percentage: int | None = None
    only: int = 0


def clean(text: str, most: int) -> str:
    """Give a stranger's text for an editor: one line, and no link that somebody could click."""
    return line(text, most).replace("](", "] (")


def seconds(value: float) -> str:
    """Give a time by the second, so that it does not change oftener."""
    return f"{max(0.0, value):.0f} s" if value < 60 else duration(round(value))  # noqa: PLR2004 - a minute


def title_of(name: str, path: tuple[str, ...]) -> str:
    """Give the title of a phase: the last two names, and a sign for each one above them."""
    shown = [clean(part, _NAME) for part in path[-2:]]
    return f"{clean(name, _NAME)}: {' > '.join(['…'] * (len(path) - 2) + shown)}"


def phase_text(node: PhaseNode, now: float) -> str:
    """Say how far a phase is: its steps, how often it ran, and for how long nothing was heard."""
    parts = []
    if node.open_count and node.step_total > 0:
        parts.append(f"step {min(max(node.step, 0), node.step_total)} of {node.step_total}")
    if node.count > 1:
        parts.append(f"{node.count:,} times")
    inside = any(child.open_count for child in node.children.values())
    if node.open_count and not inside and now - node.last_event > SILENT_S:
        parts.append(f"no callback for {seconds(now - node.last_event)}")
    return ", ".join(parts)


def innermost(tree: PhaseTree) -> PhaseNode | None:
    """Give the innermost open phase, the latest where there are several."""
    found: PhaseNode | None = None
    level = tree.roots
    while busy := [node for node in level.values() if node.open_count]:
        found = max(busy, key=lambda node: node.started)
        level = found.children
    return found


class Tokens:
    """The tokens of one build's phases.

    Parameters
    ----------
    name
        What the build is called in titles.
    prefix
        What the tokens begin with.
    """

    def __init__(self, name: str, prefix: str) -> None:
        self._name = name
        self._prefix = prefix
        self._made = 0
        self._revision = 0
        self._unanswered = 0
        self._paths: dict[int, _Path] = {}
        self._by_token: dict[str, _Path] = {}

    @property
    def open(self) -> list[str]:
        """Tokens that have begun, the outermost first."""
        paths = self._from_above(self._by_token.values())
        return [path.token for path in paths if path.state == "begun"]

    def answer(self, token: str, *, granted: bool) -> None:
        """Take the client's answer to a ``create``."""
        self._unanswered -= 1
        path = self._by_token.get(token)
        if path is not None and path.state == "created":
            path.state = "granted" if granted else "refused"

    def look(self, tree: PhaseTree, now: float, *, room: bool = True) -> list[Message]:
        """Give what is to be told now.

        Parameters
        ----------
        tree
            The phases; nobody may change them meanwhile.
        now
            The time of the build.
        room
            False where the client does not keep up: then only ends are told.
        """
        self._watch(tree, now)
        messages = [
            message for path in self._idle(now) for message in self._end(path, path.node.status)
        ]
        if not room:
            return messages
        left = MAX_MESSAGES - len(messages)
        messages += self.begins(now)
        for path in self._from_above(self._paths.values()):
            if left > 0 and path.state == "begun":
                messages += (told := self._report(path, now))
                left -= len(told)
            elif (
                left > 1
                and not path.state
                and max(len(self._by_token), self._unanswered) < MAX_TOKENS
                and now - path.since >= OPEN_AFTER_S
                and self._above(path)
            ):
                self._made += 1
                self._unanswered += 1
                path.token, path.state = f"{self._prefix}/{self._made}", "created"
                self._by_token[path.token] = path
                messages.append(Message("create", path.token))
                left -= 2
        return messages

    def begins(self, now: float) -> list[Message]:
        """Give the begins of the tokens that the client has granted, each after its parent's."""
        return [
            self._begin(path, now)
            for path in self._from_above(self._by_token.values())
            if path.state == "granted" and self._above(path) in {"begun", "refused"}
        ]

    def close(self) -> list[Message]:
        """Give the ends of all that have begun, the innermost first."""
        paths = self._from_above(self._by_token.values())[::-1]
        return [message for path in paths for message in self._end(path, path.node.status)]

    # ------------------------------------------------------------------ inside

    def _watch(self, tree: PhaseTree, now: float) -> None:
        """See which paths are busy: open, or open again and again, also since the last look."""
        for node in self._busy(tree):
            path = self._paths.get(node.index)
            if path is None:
                since = node.started if node.open_count else now
                self._paths[node.index] = _Path(node, since, now)
            else:
                path.seen = now
        self._revision = tree.revision

    def _busy(self, tree: PhaseTree) -> Iterator[PhaseNode]:
        waiting = list(tree.roots.values())
        while waiting:
            node = waiting.pop()
            if node.open_count or (node.count > 1 and node.revision > self._revision):
                yield node
                waiting += node.children.values()

    def _idle(self, now: float) -> list[_Path]:
        """Forget the paths that have ended, the innermost first."""
        gone = [path for path in self._paths.values() if self._has_ended(path, now)]
        for path in gone:
            del self._paths[path.node.index]
        return self._from_above(gone)[::-1]

    def _has_ended(self, path: _Path, now: float) -> bool:
        above = path.node.parent
        if above is not None:
            known = self._paths.get(above.index)
            if known is None or known.seen < now:
                return True
        idle = now - path.seen
        return idle >= LINGER_S or (idle > 0.0 and path.node.count == 1)

    @staticmethod
    def _from_above(paths: Iterable[_Path]) -> list[_Path]:
        return sorted(paths, key=lambda path: (path.node.depth, path.since))

    def _above(self, path: _Path) -> str:
        """Give the state of the parent's token; a root counts as below one that has begun."""
        above = path.node.parent
        if above is None:
            return "begun"
        known = self._paths.get(above.index)
        return known.state if known is not None else ""

    def _begin(self, path: _Path, now: float) -> Message:
        node = path.node
        path.state = "begun"
        path.only = node.count if node.count == 1 and node.step_total > 0 else 0
        path.percentage = self._percentage(path)
        path.told = phase_text(node, now)
        title = title_of(self._name, node.path)
        return Message("begin", path.token, title, path.told, path.percentage)

    def _report(self, path: _Path, now: float) -> list[Message]:
        text, percentage = phase_text(path.node, now), self._percentage(path)
        if (text, percentage) == (path.told, path.percentage):
            return []
        path.told, path.percentage = text, percentage
        return [Message("report", path.token, "", text, percentage)]

    @staticmethod
    def _percentage(path: _Path) -> int | None:
        """Give the share of the steps; of the only instance, since it must not fall."""
        node = path.node
        if not path.only or node.count != path.only or node.step_total < 1:
            return path.percentage
        share = min(max(node.step, 0), node.step_total) * 100 // node.step_total
        return max(share, path.percentage or 0)

    def _end(self, path: _Path, status: str) -> list[Message]:
        self._by_token.pop(path.token, None)
        begun, path.state = path.state == "begun", "ended"
        return [Message("end", path.token, "", status)] if begun else []
