"""Options of the command line as ``trtexec`` spells them, turned into the options of a build.

Whoever has a command line for ``trtexec`` can give it to ``trt-widget build``: names and values
are the same wherever a build has a counterpart. What only concerns running an engine is refused
with a hint, as is what needs a function of the user's own (``--configure``).
"""

from __future__ import annotations

import argparse
import ast
import difflib
import re
import shlex
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["add_arguments", "build_options", "hint", "memory_pools", "shapes", "spelled"]

#: Switches that stand for builder flags.
_FLAGS: Final = {
    "--fp16": (("FP16",), "allow FP16 (weakly typed networks of TensorRT 10)"),
    "--bf16": (("BF16",), "allow BF16 (as --fp16)"),
    "--int8": (("INT8",), "allow INT8 (as --fp16)"),
    "--fp8": (("FP8",), "allow FP8 (as --fp16)"),
    "--int4": (("INT4",), "allow INT4 (as --fp16)"),
    "--best": (("FP16", "BF16", "INT8"), "allow FP16, BF16 and INT8 (as --fp16)"),
    "--refit": (("REFIT",), "make the weights of the engine refittable"),
    "--versionCompatible": (("VERSION_COMPATIBLE",), "for newer versions of TensorRT, too"),
    "--excludeLeanRuntime": (("EXCLUDE_LEAN_RUNTIME",), "no lean runtime in such an engine"),
    "--directIO": (("DIRECT_IO",), "no reformatting at the network's boundaries"),
    "--restricted": (("SAFETY_SCOPE",), "check the scope of safety"),
    "--allowGPUFallback": (("GPU_FALLBACK",), "let the GPU run what the DLA cannot"),
    "--allowWeightStreaming": (("WEIGHT_STREAMING",), "let weights be streamed at run time"),
    "--monitorMemory": (("MONITOR_MEMORY",), "have TensorRT watch its memory"),
    "--noBuilderCache": (("DISABLE_TIMING_CACHE",), "no timing cache"),
    "--noCompilationCache": (("DISABLE_COMPILATION_CACHE",), "no compilation cache"),
    "--errorOnTimingCacheMiss": (
        ("ERROR_ON_TIMING_CACHE_MISS",),
        "fail where the timing cache lacks a tactic",
    ),
    "--distributiveIndependence": (
        ("DISTRIBUTIVE_INDEPENDENCE",),
        "the same result for all parts of a batch",
    ),
}
_SYNONYMS: Final = {"--versionCompatible": ("--vc",)}

_ONLY_BUILDS: Final = (
    "trt-widget only builds; run the engine with trtexec --loadEngine=FILE to measure it."
)
#: What a build has no option for; the value says what to do instead.
_HINTS: Final = {
    **dict.fromkeys(
        (
            *("--loadEngine", "--shapes", "--loadInputs", "--iterations", "--warmUp", "--duration"),
            *("--sleepTime", "--idleTime", "--infStreams", "--streams", "--exposeDMA", "--dumpRaw"),
            *("--noDataTransfers", "--useManagedMemory", "--useSpinWait", "--threads", "--avgRuns"),
            *("--useCudaGraph", "--timeDeserialize", "--timeRefit", "--separateProfileRun"),
            *("--percentile", "--dumpRefit", "--dumpOutput", "--batch", "--useRuntime"),
            *(
                "--dumpProfile",
                "--dumpLayerInfo",
                "--exportTimes",
                "--exportOutput",
            ),
            *("--exportProfile", "--exportLayerInfo", "--persistentCacheRatio", "--leanDLLPath"),
            *("--useProfile", "--optimizationProfile", "--allocationStrategy", "--asyncFileReader"),
            *("--weightStreamingBudget", "--getPlanVersionOnly", "--saveDebugTensors"),
            *("--runtimeCacheFile", "--specializeStrategyDS", "--cudaGraphStrategy"),
        ),
        _ONLY_BUILDS,
    ),
    **dict.fromkeys(
        ("--uff", "--uffInput", "--uffNHWC", "--model", "--deploy", "--maxBatch"),
        "Only ONNX files are built, with the batch as one of their dimensions.",
    ),
    "--output": "Write -o FILE or --saveEngine=FILE for the engine.",
    "--workspace": "Write --memPoolSize=workspace:MiB.",
    "--weightless": "Write --stripWeights.",
    "--explicitBatch": "Leave it out: every ONNX network has its batch as a dimension.",
    "--minTiming": "Leave it out: TensorRT has only --avgTiming, which --configure can set.",
    "--calib": "Quantize the model itself (explicit quantization): calibration is deprecated.",
    "--safe": "Engines for safety are built by trtexec itself.",
    "--verbose": "--events FILE keeps every message of TensorRT; warnings are shown anyway.",
    "--dynamicPlugins": "Write --staticPlugins=FILE to load a library of plugins.",
    **{
        option: f"No option stands for it: set {what} in a function given by --configure."
        for option, what in {
            "--noTF32": "config.clear_flag(BuilderFlag.TF32)",
            "--avgTiming": "config.avg_timing_iterations",
            "--profilingVerbosity": "config.profiling_verbosity",
            "--tacticSources": "config.set_tactic_sources()",
            "--preview": "config.set_preview_feature()",
            "--maxTactics": "config.max_num_tactics",
            "--maxAuxStreams": "config.max_aux_streams",
            "--hardwareCompatibilityLevel": "config.hardware_compatibility_level",
            "--runtimePlatform": "config.runtime_platform",
            "--tilingOptimizationLevel": "config.tiling_optimization_level",
            "--l2LimitForTiling": "config.l2_limit_for_tiling",
            "--remoteAutoTuningConfig": "config.remote_auto_tuning_config",
            "--quantizationFlags": "config.quantization_flags (of TensorRT 10)",
            "--useDLACore": "config.default_device_type and config.DLA_core",
            "--buildDLAStandalone": "config.engine_capability",
            "--inputIOFormats": "network.get_input(i).allowed_formats",
            "--outputIOFormats": "network.get_output(i).allowed_formats",
            "--precisionConstraints": "the config's flags",
            "--layerPrecisions": "layer.precision (of TensorRT 10)",
            "--layerOutputTypes": "layer.set_output_type() (of TensorRT 10)",
            "--layerDeviceTypes": "config.set_device_type()",
            "--markDebug": "network.mark_debug()",
            "--markUnfusedTensorsAsDebugTensors": "network.mark_unfused_tensors_as_debug_tensors()",
            "--setPluginsToSerialize": "config.plugins_to_serialize",
            "--tempdir": "the runtime's temporary_directory",
            "--pluginInstanceNorm": "the parser's flags (build from a function of your own)",
            "--pi": "the parser's flags (build from a function of your own)",
        }.items()
    },
}

_SHAPE: Final = re.compile(r"(?:'(?P<quoted>[^']+)'|(?P<plain>[^',]+)):(?P<dims>[^:,]*)(?:,|$)")
_SHAPE_FORM: Final = (
    "write NAME:DIMxDIMx…, several with commas, such as x:1x3x224x224,y:4; a name that has a comma "
    "goes between single quotes, and the dimensions of a scalar are the word scalar"
)
_UNITS: Final = {"B": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_POOL: Final = re.compile(r"(?P<pool>\w+):(?P<size>\d+(?:\.\d*)?|\.\d+)(?P<unit>[BKMGbkmg]?)")


# ---- values -------------------------------------------------------------------------------------


def shapes(text: str) -> dict[str, tuple[int, ...]]:
    """Read ``x:1x3x224x224,y:4``.

    Raises
    ------
    argparse.ArgumentTypeError
        It is written in another way.
    """
    found: dict[str, tuple[int, ...]] = {}
    position = 0
    while position < len(text) or not found:
        match = _SHAPE.match(text, position)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r}: {_SHAPE_FORM}")
        position = match.end()
        name = match["quoted"] or match["plain"]
        numbers = [] if match["dims"] == "scalar" else match["dims"].split("x")
        if not all(number.isascii() and number.isdigit() for number in numbers):
            raise argparse.ArgumentTypeError(
                f"{match['dims']!r} is no shape of {name!r}: {_SHAPE_FORM}"
            )
        if name in found:
            raise argparse.ArgumentTypeError(f"{name!r} is there twice")
        found[name] = tuple(map(int, numbers))
    if text.endswith(","):
        raise argparse.ArgumentTypeError(f"{text!r} ends with a comma")
    return found


def memory_pools(text: str) -> int:
    """Read ``workspace:1024``: the bytes of the workspace, from MiB or a number with a unit.

    Raises
    ------
    argparse.ArgumentTypeError
        It is written in another way, or names a pool that has no option.
    """
    size = 0
    for part in text.split(","):
        match = _POOL.fullmatch(part.strip())
        if match is None:
            raise argparse.ArgumentTypeError(
                f"{part!r}: write workspace:SIZE, in MiB or with one of the units B, K, M and G"
            )
        if match["pool"] != "workspace":
            raise argparse.ArgumentTypeError(
                f"there is no option for the pool {match['pool']!r}: set it by "
                "config.set_memory_pool_limit() in a function given by --configure"
            )
        size = int(float(match["size"]) * _UNITS[match["unit"].upper() or "M"])
    return size


def _targets(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


class _Profile(argparse.Action):
    """``--profile=1``: the shapes that follow belong to this profile."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        del parser, option_string
        namespace.profile = values


class _Shapes(argparse.Action):
    """``--minShapes=x:1x8``: a bound of the present profile."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del parser, option_string
        bounds = dict(getattr(namespace, "bounds", None) or {})
        profile = {**bounds.get(namespace.profile, {})}
        profile[self.dest] = {**profile.get(self.dest, {}), **values}
        bounds[namespace.profile] = profile
        namespace.bounds = bounds


# ---- the parser ---------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``trtexec`` has, too."""
    group = parser.add_argument_group("as trtexec has them")
    group.add_argument("--onnx", metavar="FILE", help="the model, instead of MODEL")
    group.add_argument(
        *("-o", "--saveEngine"),
        metavar="FILE",
        dest="output",
        help="where the engine is written, whole or not at all; without it nothing is saved",
    )
    group.add_argument(
        "--profile",
        type=int,
        default=0,
        action=_Profile,
        metavar="N",
        help="the shapes that follow are of the N-th optimization profile",
    )
    for bound in ("min", "opt", "max"):
        group.add_argument(
            f"--{bound}Shapes",
            type=shapes,
            action=_Shapes,
            dest=bound,
            default=argparse.SUPPRESS,
            metavar="SPEC",
            help={
                "min": "smallest shapes, as x:1x3x224x224,y:4",
                "opt": "shapes to optimize for; alone they are the only ones",
                "max": "largest shapes",
            }[bound],
        )
    group.add_argument(
        "--builderOptimizationLevel",
        type=int,
        choices=range(6),
        metavar="N",
        help="0 to 5; more looks longer for a faster engine (3)",
    )
    group.add_argument(
        "--memPoolSize",
        type=memory_pools,
        metavar="workspace:MiB",
        help="limit of the workspace; also with a unit: B, K, M, G",
    )
    group.add_argument(
        "--timingCacheFile", metavar="FILE", help="read before the build and written after it"
    )
    group.add_argument("--device", type=int, metavar="N", help="index of the GPU to build on")
    group.add_argument(
        *("--staticPlugins", "--plugins"),
        action="append",
        metavar="FILE",
        help="library of plugins; can be given several times",
    )
    group.add_argument(
        "--computeCapabilities",
        type=_targets,
        metavar="LIST",
        help="GPUs to build for (TensorRT for RTX): 75,86,120 or current",
    )
    group.add_argument(
        "--useGpu", action="store_true", help="as --computeCapabilities=current (for RTX)"
    )
    group.add_argument("--stronglyTyped", action="store_true", help="the types are the model's")
    group.add_argument(
        "--stripWeights", action="store_true", help="leave the weights out of the engine"
    )
    group.add_argument(
        "--stripAllWeights", action="store_true", help="as --refit and --stripWeights together"
    )
    group.add_argument(
        "--sparsity", choices=("disable", "enable"), help="use weights of structured sparsity"
    )
    for option, (_, text) in _FLAGS.items():
        names = (option, *_SYNONYMS.get(option, ()))
        group.add_argument(*names, action="append_const", dest="switches", const=option, help=text)
    group.add_argument(
        *("--skipInference", "--buildOnly"),
        action="store_true",
        help="understood; nothing is ever run here",
    )


def build_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Give the keywords of a build that the options stand for, those that were given.

    Raises
    ------
    ValueError
        They contradict each other; the text says how.
    """
    targets = arguments.computeCapabilities
    if arguments.useGpu:
        if targets not in (None, ["current"]):
            raise ValueError("--useGpu and --computeCapabilities exclude each other")
        targets = ["current"]
    options = {
        "output": arguments.output,
        "profiles": _profiles(getattr(arguments, "bounds", None) or {}),
        "optimization_level": arguments.builderOptimizationLevel,
        "workspace": arguments.memPoolSize,
        "timing_cache": arguments.timingCacheFile,
        "device": arguments.device,
        "plugins": arguments.staticPlugins,
        "target": targets,
        "strongly_typed": arguments.stronglyTyped or None,
        "flags": _flags(arguments),
    }
    return {name: value for name, value in options.items() if value not in (None, [], ())}


def _flags(arguments: argparse.Namespace) -> list[str]:
    given = list(arguments.switches or ())
    flags = [flag for option in given for flag in _FLAGS[option][0]]
    if arguments.stripAllWeights:
        flags += ["REFIT", "STRIP_PLAN"]
    elif arguments.stripWeights:
        flags += ["STRIP_PLAN"] if "REFIT" in flags else ["STRIP_PLAN", "REFIT_IDENTICAL"]
    if arguments.sparsity == "enable":
        flags.append("SPARSE_WEIGHTS")
    return list(dict.fromkeys(flags))


def _profiles(bounds: dict[int, dict[str, dict[str, tuple[int, ...]]]]) -> list[dict[str, Any]]:
    profiles = []
    for number in sorted(bounds):
        given = bounds[number]
        if set(given) not in ({"opt"}, {"min", "opt", "max"}):
            names = ", ".join(f"--{name}Shapes" for name in ("min", "opt", "max") if name in given)
            raise ValueError(
                f"{names} alone is no profile: give --optShapes only, or --minShapes, --optShapes "
                "and --maxShapes"
            )
        inputs = dict.fromkeys(name for part in given.values() for name in part)
        profile = {}
        for name in inputs:
            lacking = [bound for bound, part in given.items() if name not in part]
            if lacking:
                where = " and ".join(f"--{bound}Shapes" for bound in lacking)
                raise ValueError(f"the input {name!r} is missing from {where}")
            least, best, most = (
                given.get(bound, given["opt"])[name] for bound in ("min", "opt", "max")
            )
            profile[name] = (least, best, most)
        profiles.append(profile)
    return profiles


#: The options by the keywords of a build, as its errors name them.
_KEYWORDS: Final = {
    "output": "-o ",
    "optimization_level": "--builderOptimizationLevel=",
    "workspace": "--memPoolSize=workspace:",
    "timing_cache": "--timingCacheFile=",
    "target": "--computeCapabilities=",
    "plugins": "--staticPlugins=",
    "flags": "--flag ",
    "network_flags": "--network-flag ",
    "external_data": "--external-data ",
    **{
        name: f"--{name}="
        for name in ("timeout", "grace", "executor", "device", "backend", "configure")
    },
}
_KEYWORD: Final = re.compile(
    rf"(?<![\w.-])(?P<name>{'|'.join(_KEYWORDS)})="
    r"(?!True|False|None)(?P<value>\[\w+\]|\['[\w./-]+'\]|'[\w./-]+'|\"[\w./-]+\"|[\w./-]*(?![\[{(]))"
)
#: What an error is about, where it begins with that.
_SUBJECT: Final = re.compile(
    r"\A(?P<name>profiles|flags|network_flags|target)(?:\[(?P<number>\d+)\])?"
    r"(?:\[(?P<input>'[^']*')\])?(?P<rest>(?:: | says ).*)",
    re.DOTALL,
)
_ROWS: Final = re.compile(
    r"(?P<before>To add, with your own numbers in it:\n)(?P<rows>(?: +'.*(?:\n|\Z))+)"
)
#: Other words of errors that are Python's.
_WORDS: Final = {
    "workspace= (bytes)": "--memPoolSize=workspace:MiB",
    "Leave strongly_typed out": "Leave --stronglyTyped out",
}
_PROFILES: Final = re.compile(r"^ *profiles=\{\n(?P<rows>(?: +'.*\n)+) *\}$", re.MULTILINE)


def spelled(text: str) -> str:
    """Give the words of an error with the options of the command line in place of the keywords.

    What the command line cannot say stays as it is.
    """
    text = _PROFILES.sub(lambda match: _shapes_of(match["rows"]) or match[0], text)
    text = _ROWS.sub(
        lambda match: f"{match['before']}{_shapes_of(match['rows']) or match['rows']}", text
    )
    text = _SUBJECT.sub(_spelled_subject, text)
    for word, option_name in _WORDS.items():
        text = text.replace(word, option_name)

    def option(match: re.Match[str]) -> str:
        return f"{_KEYWORDS[match['name']]}{match['value'].strip(_BRACKETS)}".rstrip(" =")

    return _KEYWORD.sub(option, text)


def _spelled_subject(match: re.Match[str]) -> str:
    """Give the option of which an error speaks at its beginning."""
    name, rest = match["name"], match["rest"]
    if name == "target":
        return f"--computeCapabilities{rest}"
    if name == "profiles":
        profile = f"--profile={match['number']} " if match["number"] else ""
        return f"{profile}--optShapes{' ' + match['input'] if match['input'] else ''}{rest}"
    if name == "network_flags":
        return f"--network-flag{rest}"
    found = [
        option
        for option, (flags, _) in _FLAGS.items()
        if len(flags) == 1 and re.search(rf"\b{flags[0]}\b", rest)
    ]
    return f"{' and '.join(found) or '--flag'}{rest}"


_BRACKETS: Final = "[]'\""


def _shapes_of(rows: str) -> str | None:
    """Write profiles as options: the text is ours, with a stranger's names in it."""
    try:
        profile = ast.literal_eval(f"{{{rows}}}")
        lines = []
        for number, bound in enumerate(("min", "opt", "max")):
            parts = []
            for name, ranges in profile.items():
                quoted = f"'{name}'" if "," in name else name
                parts.append(f"{quoted}:{'x'.join(map(str, ranges[number])) or 'scalar'}")
            lines.append("  " + shlex.quote(f"--{bound}Shapes={','.join(parts)}"))
    except (ValueError, SyntaxError, TypeError, AttributeError, IndexError):
        return None
    return " \\\n".join(lines)


def hint(option: str, known: Iterable[str] = ()) -> str:
    """Say what to do instead of an option that there is not; empty where nothing is known.

    Parameters
    ----------
    option
        As it was given, with or without a value.
    known
        The options that there are.
    """
    name = option.partition("=")[0]
    if name in _HINTS:
        return _HINTS[name]
    keyword = name.lstrip("-").replace("-", "_")
    if keyword in _KEYWORDS:  # as Python calls it
        return f"Did you mean {_KEYWORDS[keyword].rstrip(' =:')}?"
    folded = {other.lower(): other for other in (*known, *_HINTS)}
    near = difflib.get_close_matches(name.lower(), folded, 1, 0.75)
    if not near:
        return ""
    other = folded[near[0]]
    return " ".join(filter(None, (f"Did you mean {other}?", _HINTS.get(other, ""))))
