"""Test and measure dgl-heta on a machine with a GPU, with PyTorch and no package index.

It makes an environment in a temporary directory: what the machine has, and of --wheels what it
lacks. Then it runs stages, each within its share of the minutes: the tests marked `gpu`, steps of
training by stage, layers beside PyTorch Geometric's. DIR gets a log and figures of each as they
come, environment.json, and summary.json and summary.md, which are written anew after each stage,
also after Ctrl-C. Nothing is installed outside the temporary directory.

The exit status is 0 if all tests passed and all stages ended by themselves; 1 if not; 2 if nothing
could begin.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OF_TESTS = ("pytest", "hypothesis", "psutil")  # of the extra `test` in pyproject.toml
PLUGIN = "plugins/hifuse"
LEAST, MOST = 3, 60
SUMMARY_S = 10
"""Seconds that are kept for ending and for the summary."""
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


@dataclass(frozen=True)
class Stage:
    """A command that runs within a share of the time.

    Attributes
    ----------
    command : its arguments after Python's; {out} and {seconds} stand for what they say.
    restarts : it goes on where it was when it is started again, after it has ended itself: as
        long as it finds more each time.
    cut : it may be ended when its time is over: it has shown what there was time for.
    """

    name: str
    what: str
    share: float
    command: str
    restarts: bool = False
    cut: bool = False


STAGES = (
    Stage("tests", "tests marked `gpu`: beside the CPU, on a shared GPU, NCCL with two GPUs",
          0.4, f"-m pytest -m gpu -v -p no:cacheprovider tests/gpu tests/cache {PLUGIN}/tests"),
    Stage("steps", "steps of R-GCN, R-GAT and HGT on synthetic graphs, by stage", 0.3,
          "scripts/bench/gpu_steps.py --out {out}/steps.jsonl --seconds {seconds}", True, True),
    Stage("layers", "kernels and time of layers, beside PyTorch Geometric's if it is there", 0.3,
          "scripts/bench/gpu_merged.py --graphs aifb am mutag bgs freebase mag --rounds 10",
          cut=True),
)


def main() -> int:
    args = arguments()
    stages = [stage for stage in STAGES if stage.name in args.only]
    seconds = 60 * args.minutes - SUMMARY_S
    whole = sum(stage.share for stage in stages)
    budgets = {stage: seconds * stage.share / whole for stage in stages}
    needs = requirements()
    if args.dry_run:
        for stage, budget in budgets.items():
            print(f"{stage.name}: {stage.what}; at most {budget / 60:.1f} minutes")
        print(f"all: at most {args.minutes:g} minutes, with the environment")
        absent = [need for need in needs if not is_there(need)]
        print("nothing is missing here" if not absent else lacking(absent, args.wheels))
        return 0
    begun = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)  # orphans of the stages become ours
    results: dict[str, dict[str, Any]] = {s.name: {"status": "not run", "seconds": 0.0}
                                          for s in stages}
    with tempfile.TemporaryDirectory(prefix="dgl-heta-gpu-") as scratch:
        python = environment(Path(scratch), args.wheels, needs)
        described = describe(python, args)
        (args.out / "environment.json").write_text(json.dumps(described, indent=1) + "\n")
        if not (described["gpus"] or args.pretend):
            fail("PyTorch sees no GPU here: torch.cuda.is_available() is False")
        try:
            for stage in stages:
                left = begun + 60 * args.minutes - SUMMARY_S - time.monotonic()
                later = sum(s.share for s in stages[stages.index(stage):])
                print(f"{stage.name}: {stage.what} …", flush=True)
                run(stage, left * stage.share / later, python, args, results[stage.name])
                print(f"{stage.name}: {results[stage.name]['status']}", flush=True)
                summarize(args.out, results, described)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
        finally:
            end_all()
            good = summarize(args.out, results, described)
    print((args.out / "summary.md").read_text())
    return 0 if good else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/gpu.sh", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Example: ./scripts/gpu.sh --out results --wheels wheels --minutes 9")
    parser.add_argument("--out", type=Path, metavar="DIR", help="a new directory for all results")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="wheels of what is missing")
    parser.add_argument("--minutes", type=float, default=9,
                        help=f"for all, {LEAST} to {MOST} (default: 9)")
    parser.add_argument("--only", nargs="+", choices=[s.name for s in STAGES], metavar="STAGE",
                        default=[s.name for s in STAGES],
                        help=f"of {', '.join(s.name for s in STAGES)}")
    parser.add_argument("--dry-run", action="store_true",
                        help="say what would run, how long, and what is missing here")
    parser.add_argument("--pretend", action="store_true",
                        help="try this script without a GPU, on the pretended one of the "
                        "tests: its figures mean nothing")
    parser.add_argument("--select", metavar="WORDS", help="of the tests: pytest's -k")
    parser.add_argument("--step-options", nargs=argparse.REMAINDER, default=[], metavar="OPTION",
                        help="what follows goes to scripts/bench/gpu_steps.py")
    args = parser.parse_args()
    if not LEAST <= args.minutes <= MOST:
        parser.error(f"--minutes is {args.minutes:g}; it must be {LEAST} to {MOST}")
    if args.wheels and not list(args.wheels.glob("*.whl")):
        parser.error(f"--wheels: there are no wheels (*.whl) in {args.wheels}")
    if not args.dry_run:
        if args.out is None:
            parser.error("--out is missing: a new directory for all results")
        if args.out.exists() and (not args.out.is_dir() or any(args.out.iterdir())):
            parser.error(f"--out: {args.out} is not an empty directory")
    return args


def fail(text: str) -> None:
    print(f"error: {text}", file=sys.stderr)
    raise SystemExit(2)


# What is there and what is missing.

def requirements() -> list[str]:
    """What dgl-heta and the tests marked `gpu` import, as pip names it."""
    if sys.version_info < (3, 11):
        fail(f"this is Python {platform.python_version()}; 3.11 or newer is needed (PYTHON=…)")
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return ["dgl-heta", "dgl-heta-hifuse",
            *(need for need in project["dependencies"] if ";" not in need),
            *(need for need in project["optional-dependencies"]["test"]
              if name_of(need) in OF_TESTS)]


def name_of(need: str) -> str:
    return re.split(r"[^\w.-]", need)[0]


def is_there(need: str) -> bool:
    try:
        importlib.metadata.version(name_of(need))
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def lacking(needs: Sequence[str], wheels: Path | None) -> str:
    """What is missing, and how to get it on a machine with a package index."""
    bring = wheels or "wheels"
    glibc = int(platform.libc_ver()[1].partition(".")[2] or 28)
    tags = [f"manylinux_2_{n}_{platform.machine()}" for n in (34, 31, 28, 27, 24, 17) if n <= glibc]
    tags.append(f"manylinux2014_{platform.machine()}")
    others = [need for need in needs if not name_of(need).startswith(("dgl-heta", "torch"))]
    lines = [f"missing here: {', '.join(needs)}"]
    if any(name_of(need) == "torch" for need in needs):
        lines.append("PyTorch is not brought: choose an interpreter that has it (PYTHON=…)")
    lines.append("on a machine with a package index, in this tree, and then --wheels:")
    if len(others) < len(needs):
        lines.append(f"  python3 -m pip wheel --no-deps --wheel-dir {bring} . ./{PLUGIN}")
    if others:
        lines.append(shlex.join([
            "python3", "-m", "pip", "download", "--dest", str(bring), "--only-binary=:all:",
            "--python-version", ".".join(platform.python_version_tuple()[:2]),
            "--implementation", "cp", *(word for tag in tags for word in ("--platform", tag)),
            *others]))
        lines[-1] = "  " + lines[-1]
    return "\n".join(lines)


def environment(scratch: Path, wheels: Path | None, needs: Sequence[str]) -> str:
    """The interpreter of an environment with what this one has and what it lacks, from wheels."""
    made = scratch / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    python = str(made / "bin/python")
    outer = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site,) = made.glob("lib/python*/site-packages")
    (site / "outer.pth").write_text("".join(
        f"import site; site.addsitedir({path!r})\n" for path in outer))

    def pip(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--quiet",
             "--disable-pip-version-check", *(["--find-links", str(wheels)] if wheels else []),
             *words], capture_output=True, text=True)

    if pip(*needs).returncode:
        tried = {need: pip("--dry-run", need) for need in needs}
        failed = {need: done.stderr for need, done in tried.items() if done.returncode}
        missing = {match for text in failed.values() for match in re.findall(
            r"No matching distribution found for (\S+)", text)}
        if not missing:
            fail("pip cannot install what is needed:\n" + "\n".join(failed.values()))
        fail(lacking(sorted(missing), wheels))
    return python


DESCRIBE = """
import importlib.metadata as found, json, torch
def gpu(i):
    p = torch.cuda.get_device_properties(i)
    return {"name": p.name, "memory_gb": p.total_memory / 1e9, "processors":
            p.multi_processor_count, "capability": f"{p.major}.{p.minor}"}
print(json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
    "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None,
    "gpus": [gpu(i) for i in range(torch.cuda.device_count())],
    "packages": {d.name: d.version for d in found.distributions() if d.name}}))
"""


def describe(python: str, args: argparse.Namespace) -> dict[str, Any]:
    """The machine: GPU, driver, CPU, memory, versions, commit."""
    def output(*command: str) -> str | None:
        with contextlib.suppress(OSError):
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
            return done.stdout.strip() if done.returncode == 0 else None
        return None

    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    of_torch = output(python, "-c", DESCRIBE)
    if of_torch is None:
        fail("PyTorch cannot be imported here: " + subprocess.run(
            [python, "-c", "import torch"], capture_output=True, text=True).stderr[-500:])
    return {
        "pretended": args.pretend, "arguments": sys.argv[1:],
        "began": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        "commit": output("git", "describe", "--always", "--dirty", "--abbrev=12"),
        "nvidia_smi": output("nvidia-smi", "--query-gpu=name,driver_version,memory.total,"
                             "clocks.max.sm,power.limit,pcie.link.gen.current", "--format=csv"),
        "python": platform.python_version(), "system": platform.platform(),
        "load": os.getloadavg(),
        "cpu": cpu[1] if cpu else platform.machine(), "cores": len(os.sched_getaffinity(0)),
        "memory_gb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9,
        **json.loads(of_torch or "{}")}


# Stages.

def run(stage: Stage, seconds: float, python: str, args: argparse.Namespace,
        result: dict[str, Any]) -> None:
    """Run a stage; `result` says how it ended, at every moment."""
    begun = time.monotonic()
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(
                     map(str, (ROOT, ROOT / PLUGIN, ROOT / "plugins/pyg"))),
                 "PYTHONUNBUFFERED": "1", "HETA_TESTS_GPU": "pretended" if args.pretend else "1",
                 "HETA_TESTS_NEED": "gpu", "HETA_TESTS_PATIENCE": "0.25",
                 # Else a process that asks whether there are GPUs can fork none that uses them.
                 "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
                 "HETA_TESTS_RESULTS": str(args.out.resolve() / "tests.jsonl")}
    figures, known = args.out / f"{stage.name}.jsonl", 0
    with open(args.out / f"{stage.name}.log", "a") as log:
        while True:
            left = seconds - (time.monotonic() - begun)
            # `timeout` ends the stage's processes even if this one is killed.
            result["status"] = "interrupted"
            child = subprocess.Popen(
                ["timeout", "--kill-after=5", f"{max(left, 1):.0f}", python,
                 *command(stage, left, args)],
                cwd=ROOT, env=variables, stdout=log, stderr=subprocess.STDOUT)
            try:
                status = child.wait()
            finally:
                child.terminate()
                end_all()
                result["seconds"] = round(time.monotonic() - begun, 1)
            result["exit_status"] = status
            late = "cut" if stage.cut else "out of time"
            result["status"] = {0: "ended", 124: late, 137: late}.get(status, "failed")
            found = figures.stat().st_size if figures.exists() else 0
            if not (stage.restarts and result["status"] == "failed" and left > 60
                    and found > known):
                return
            known = found
            result["restarts"] = result.get("restarts", 0) + 1


def command(stage: Stage, seconds: float, args: argparse.Namespace) -> list[str]:
    """What Python is given for a stage."""
    words = shlex.split(stage.command.format(out=shlex.quote(str(args.out.resolve())),
                                             seconds=max(seconds - 15, 15)))
    if stage.name == "tests" and args.select:
        words += ["-k", args.select]
    workers = min(len(os.sched_getaffinity(0)) // 4, 4)
    if stage.name == "tests" and workers > 1 and is_there("pytest-xdist"):
        words += ["-n", str(workers)]
    if stage.name == "steps":
        words += args.step_options
        if args.pretend:
            words.insert(0, "tests/support/pretended/bench.py")
    if stage.name == "layers" and args.pretend:
        words += shlex.split("--device cpu --graphs mag --models rgcn --scale 0.01 --rounds 1 "
                             "--seeds 8 --fanouts 1 1")
    return words


def end_all() -> None:
    """Leave no process of the stages, also of those that began a session of their own."""
    for _ in range(50):
        left = list(descendants(os.getpid()))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        time.sleep(0.1)


def descendants(pid: int) -> Iterator[int]:
    """The processes that one has started, and those of these."""
    with contextlib.suppress(OSError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            yield child
            yield from descendants(child)


# What came out.

def summarize(out: Path, results: dict[str, Any], described: dict[str, Any]) -> bool:
    """Write summary.json and summary.md; return whether all is well."""
    tests = lines(out / "tests.jsonl")
    cases = [case for case in lines(out / "steps.jsonl") if "begun" not in case]
    counted = Counter(test["outcome"] for test in tests)
    losses = {(c["graph"], c["model"]): c["loss"] for c in cases
              if c["variant"] == "CPU" and "loss" in c}
    for case in cases:
        want = losses.get((case["graph"], case["model"]))
        if want is not None and "loss" in case:
            case["loss_is_the_cpus"] = abs(case["loss"] - want) <= 0.01 * abs(want)
    good = (all(result["status"] in ("ended", "cut") for result in results.values())
            and not counted["failed"] and ("tests" not in results or counted["passed"] > 0)
            and not any("error" in c or not c.get("loss_is_the_cpus", True) for c in cases))
    text = [f"# {'PRETENDED: no figure of a GPU' if described['pretended'] else 'On a GPU'}\n",
            f"{', '.join(gpu['name'] for gpu in described['gpus']) or 'no GPU'}; torch "
            f"{described['torch']}, CUDA {described['cuda']}; {described['cpu']}, "
            f"{described['cores']} cores; commit {described['commit']}; {described['began']}.\n",
            *(f"- {name}: {result['status']}, {result['seconds']:.0f} s" + (
                f"; its log ends with: {last_line((out / f'{name}.log').read_text())}"
                if result["status"] == "failed" else "") for name, result in results.items()),
            f"- of the tests, {counted['passed']} passed, {counted['failed']} failed, "
            f"{counted['skipped']} were skipped\n",
            *(f"- {t['outcome']}: {t['test']}: {last_line(t['reason'])}" for t in tests
              if t["outcome"] != "passed"), ""]
    if cases:
        text += ["| graph | model | variant | ms | sample | fetch | forward | backward | update "
                 "| kernels | busy ms | waits | peak MB | loss |", "|---" * 14 + "|"]
        text += [row(case) for case in sorted(cases, key=lambda c: (c["graph"], c["model"]))]
    for name, content in (
            ("summary.md", "\n".join(text) + "\n"),
            ("summary.json", json.dumps({
                "passed": good, "stages": results, "tests": {**counted, "not_passed": [
                    t for t in tests if t["outcome"] != "passed"]}, "steps": cases,
                "environment": described}, indent=1) + "\n")):
        part = out / f"{name}.part"
        part.write_text(content)
        part.replace(out / name)
    return good


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def row(case: dict[str, Any]) -> str:
    """A line of the table of steps."""
    def number(value: Any) -> str:
        return "" if value is None else f"{value:,.1f}" if isinstance(value, float) else str(value)

    cells = [case["graph"], case["model"], case["variant"]]
    if "error" in case:
        return f"| {' | '.join(cells)} | {case['error']} |" + " |" * 10
    same = {True: "the CPU's", False: "NOT THE CPU'S", None: ""}[case.get("loss_is_the_cpus")]
    return "| " + " | ".join([*cells, number(case["ms"]), *map(
        number, case["ms_by_stage"].values()), *(number(case.get(key)) for key in (
            "kernels", "busy_ms", "waits", "peak_mb")), same]) + " |"


def lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of JSON in a file, which may be written at this moment."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True)
            if line.endswith("\n")]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        fail("interrupted before anything ran")
