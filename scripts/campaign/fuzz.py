"""Inputs of every kind, made wrong, and the command that reads them.

A trial takes a valid input, changes values where the format is known and bytes where it is not, and
runs the command in a process that runs many (scripts/campaign/fuzzing/worker.py), at times in a
directory whose name is none of UTF-8, or in a process of its own, with no columns or little memory.
Bad is: a traceback, the end of the process, more than 10 s, more than 1 GB beyond what the process
had, or an allocation that the worker's own limit ended; an error of more than 1,100 characters or
of several lines, a control character among what is said, nothing said at all; or a mark of the
canary, a module that nothing but a file that is read names. Inputs that a training or prediction
reads take seconds each; they are drawn in rounds of 1,000 trials or more.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import random
import select
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
from common import Bad, Trial
from fuzzing import changes, inputs
from fuzzing.signing import agree, signed
from fuzzing.worker import AS_MUCH

Change = Callable[[bytes, random.Random], bytes]
SECONDS, BYTES, CHARACTERS = 10.0, 10**9, 1100
EACH = 400
"""Inputs of a worker; then comes a new one."""


@dataclass(frozen=True)
class Kind:
    """An input: who makes it, which file is changed how, and what reads it."""

    name: str
    make: Callable[..., None]
    file: str
    change: Change
    commands: Sequence[Sequence[str]]
    weight: float = 1.0
    seconds: float = SECONDS


PLAN, WRITE = ("plan", ".", "--parts", "2"), ("partition", ".", "--out", "out", "--parts", "2")
READ = (PLAN, WRITE, WRITE)
SCHEMA = ("plan", "schema.json", "--target", "paper")
DATA = (("inspect", "data"), ("plan", "data"), ("partition", "data", "--out", "out", "--target",
        "paper"), ("train", "data", "--dry-run"), ("plan", "data/store", "--compare"))
LAUNCH = ("launch", "--dry-run", "--ip-config", "ip_config.txt", "--part-config", "part.json", "--",
          "python", "train.py")
PREDICT = (("predict", "run", "--out", "out.npy"),)
RESUME = (("train", "data", "--run-dir", "run", "--resume", "--set", "train.epochs=1", "--set",
           "model.hidden=4", "--set", "run.prove=off"),)
CACHED = (("train", "data", "--run-dir", "other", "--set", "cache.profile=prof", "--set",
           "train.epochs=1", *inputs.CACHED),)
KINDS = (
    Kind("edges: metadata.json", inputs.edge_files, "metadata.json", changes.json_file, READ, 3),
    Kind("edges: .npy", inputs.edge_files, "*.npy", changes.npy, READ, 2),
    Kind("edges: .csv", inputs.edge_files, "writes.csv", changes.lines, READ, 2),
    Kind("edges: .csv, bytes", inputs.edge_files, "writes.csv", changes.raw, READ),
    Kind("edges: .csv.gz", inputs.edge_files, "back.csv.gz", changes.packed(changes.lines), READ),
    Kind("edges: .parquet", inputs.edge_files, "*.parquet", changes.raw, READ),
    Kind("labels", inputs.labelled, "label.npy", changes.labels, (*READ, ("inspect", "out"), (
        "train", "out", "--dry-run")), 2),
    Kind("HeteroData", inputs.hetero_data, "data.pt", changes.archive, (
        ("plan", "data.pt", "--parts", "2"), ("partition", "data.pt", "--out", "out"))),
    Kind("tables: metadata.json", inputs.tables, "metadata.json", changes.json_file, READ, 2),
    Kind("tables: .csv", inputs.tables, "*.csv", changes.lines, READ, 2),
    Kind("tables: .csv, bytes", inputs.tables, "*.csv", changes.raw, READ),
    Kind("tables: .csv, columns", inputs.tables, "*.csv", changes.wide, READ, .3),
    Kind("tables: .arrow", inputs.columns, "*.arrow", changes.columnar, READ, 3),
    Kind("tables: .parquet", inputs.columns, "*.parquet", changes.columnar, READ, 2),
    Kind("tables: a bomb", inputs.bombs, "*.parquet", changes.as_it_is, READ, .1),
    Kind("saved by torch", inputs.graphbolt, "data/*.pt", changes.archive,
         (("plan", "data/feat.pt"), ("plan", "data/labels.pt"))),
    Kind("GraphBolt: metadata.yaml", inputs.graphbolt, "metadata.yaml", changes.yaml, READ, 3),
    Kind("GraphBolt: .pt", inputs.graphbolt, "data/*.pt", changes.archive, READ, 2),
    Kind("GraphBolt: .npy", inputs.graphbolt, "data/*.npy", changes.npy, READ),
    Kind("GraphBolt: .csv", inputs.graphbolt, "data/*.csv", changes.lines, READ),
    Kind("OGB", inputs.ogb, "ogbn_mag/**/*.gz", changes.packed(changes.lines),
         (("plan", "ogbn_mag", "--parts", "2"), ("partition", "ogbn_mag", "--out", "out")), 2),
    Kind("schema", inputs.settings, "schema.json", changes.json_file, (SCHEMA,), 3),
    Kind("metapaths", inputs.settings, "metapaths.json", changes.json_file,
         ((*SCHEMA, "--metapaths", "metapaths.json"),)),
    Kind("settings in TOML", inputs.settings, "heta.toml", changes.toml,
         (("settings", "-c", "heta.toml"), (*SCHEMA, "-c", "heta.toml")), 2),
    Kind("cluster in TOML", inputs.settings, "cluster.toml", changes.toml,
         ((*SCHEMA, "--cluster", "cluster.toml"),)),
    Kind("cluster in JSON", inputs.settings, "c*.json", changes.json_file,
         ((*SCHEMA, "--cluster", "cluster.json"),)),
    Kind("ip_config", inputs.settings, "ip_config.txt", changes.lines, (LAUNCH,)),
    Kind("ip_config, bytes", inputs.settings, "ip_config.txt", changes.raw, (LAUNCH,)),
    Kind("part_config for launch", inputs.settings, "part.json", changes.json_file, (LAUNCH,)),
    Kind("partition: plan.json", inputs.partition, "data/plan.json", changes.json_file, DATA, 2),
    Kind("partition: plan.json, signed", inputs.partition, "data/plan.json",
         signed(changes.json_file), DATA, 2),
    Kind("partition: part_config", inputs.partition, "data/tiny.json", changes.json_file, DATA),
    Kind("store: manifest", inputs.partition, "data/store/manifest.json", changes.json_file, DATA),
    Kind("store: manifest, signed", inputs.partition, "data/store/manifest.json",
         signed(changes.json_file), DATA, 3),
    Kind("store: arrays", inputs.partition, "data/store/**/*.npy", changes.npy, DATA),
    Kind("run: job.json", inputs.run, "run/job.json", signed(changes.json_file), PREDICT, .03, 60),
    Kind("run: model.json", inputs.run, "run/model.json", signed(changes.json_file), PREDICT, .03,
         60),
    Kind("run: model", inputs.run, "run/model.safetensors", changes.tensors, PREDICT, .03, 60),
    Kind("run: checkpoint", inputs.run, "run/checkpoints/**/r*.safetensors", changes.tensors,
         RESUME, .03, 60),
    Kind("run: complete-N.json", inputs.run, "run/checkpoints/**/complete-*.json",
         signed(changes.json_file), RESUME, .03, 60),
    Kind("run: metrics.jsonl", inputs.run, "run/metrics.jsonl",
         changes.log(signed(changes.json_file)), RESUME, .03, 60),
    Kind("profile: visits", inputs.profiled, "prof/*.safetensors", changes.tensors, CACHED, .03,
         60),
    Kind("profile: penalties", inputs.profiled, "prof/*.json", changes.json_file, CACHED, .03, 60),
)
FROM_PARTS = (("partition", "parts/g.json", "--out", "out", "--target", "paper"),)
WITH_DGL = (
    Kind("DistDGL's parts: config", inputs.parts, "parts/g.json", changes.json_file, FROM_PARTS,
         .03, 60),
    Kind("DistDGL's parts: ids", inputs.parts, "parts/*.pt", changes.archive, FROM_PARTS, .03, 60),
    Kind("DistDGL's parts: part0", inputs.parts, "parts/part0/*.dgl", changes.raw, FROM_PARTS, .03,
         60))
FILELESS = {"--set": 4.0, "options": 3.0, "names of inputs": 1.0}
SETTINGS = ("partition.parts", "partition.memory_mb", "partition.method", "partition.cut",
            "partition.target", "model.layers", "model.hidden", "model.name", "model.dropout",
            "train.fanouts", "train.lr", "train.seed", "train.batch_size", "train.wrapper",
            "train.dtype", "task.targets", "task.kind", "task.relation", "cache.policy",
            "cache.capacity_mb", "cache.epochs", "cache.profile", "run.timeout_s", "run.prove",
            "plugins.metis.hops", "plugins", "nothing.here", "", "train", "train.")
OPTIONS = ("--parts", "--hops", "--target", "--metapaths", "--method", "--seed", "--replication",
           "--memory-mb", "--cut", "--batch-size", "--hidden", "--fanouts", "--cluster", "--model",
           "--train-nodes", "-c", "--set")
"""None that names a file to write: among the words are paths of the system."""


def draw(generator: random.Random, worker: Worker, slow: bool) -> Trial:
    """A kind of input, by its weight, with what the trial does; `slow`: also those of seconds."""
    needed = {inputs.ogb: "ogb", inputs.tables: "pyarrow", inputs.columns: "pyarrow",
              inputs.bombs: "pyarrow", inputs.hetero_data: "dgl_heta_pyg"}
    kinds = [k for k in KINDS if (slow or k.seconds == SECONDS) and (
        k.make not in needed or importlib.util.find_spec(needed[k.make]))]
    extra = [*WITH_DGL] if slow and importlib.util.find_spec("dgl") else []
    extra += [Kind("DGL's format", inputs.saved_by_dgl, "*.bin", changes.raw,
                  (("plan", "aifb:path=."),), 0.1, 60)] if slow and all(
        importlib.util.find_spec(module) for module in ("dgl", "dgl_heta_hifuse")) else []
    choices: list[Any] = [*kinds, *extra, *FILELESS]
    weights = [FILELESS[c] if isinstance(c, str) else c.weight for c in choices]
    (chosen,) = generator.choices(choices, weights)
    if isinstance(chosen, str):
        return Trial(chosen, functools.partial(_without_file, chosen, worker))
    return Trial(chosen.name, functools.partial(_with_file, chosen, worker))


def _with_file(kind: Kind, worker: Worker, at: Path, generator: random.Random) -> str:
    template = worker.template(kind.make)
    if generator.random() < 0.03:
        at = at / os.fsdecode(b"d\xff")
    shutil.copytree(template, at, dirs_exist_ok=True)
    found = sorted(at.glob(kind.file))
    if not found:
        return "nothing to change"
    path, how = generator.choice(found), generator.random()
    with_canary = how < 0.08 and path.suffix not in (".toml", ".txt")
    content = path.read_bytes()
    path.write_bytes(signed(functools.partial(changes.canary, suffix=path.suffix))(
        content, generator) if with_canary else kind.change(content, generator))
    if path.suffix in (".npy", ".safetensors") and generator.random() < 0.7:
        agree(at, path)
    words = generator.choice(kind.commands)
    if with_canary:
        return "canary " + worker.outcome(words, at, kind.seconds)
    if how > 0.99:
        return worker.in_a_process_of_its_own(words, at, kind.seconds, generator)
    return worker.outcome(words, at, kind.seconds)


def _without_file(what: str, worker: Worker, at: Path, generator: random.Random) -> str:
    shutil.copytree(worker.template(inputs.settings), at, dirs_exist_ok=True)
    if what == "--set":
        words = ["settings"] if generator.random() < 0.5 else list(SCHEMA)
        for _ in range(generator.choice([1, 1, 2])):
            words += ["--set", f"{generator.choice(SETTINGS)}={_word(generator)}"]
    elif what == "options":
        words = list(SCHEMA) if generator.random() < 0.8 else ["partition", "schema.json", "--out",
                                                               "out", "--target", "paper"]
        for _ in range(generator.choice([1, 1, 2])):
            words += [generator.choice(OPTIONS), _word(generator)]
    else:
        name = generator.choice(["synthetic-mag:scale=-", "synthetic-mag:seed=", "git:", "debian:",
                                 "git:path=.,commits=", "git:revision=", "ogbn-", "schema.json:",
                                 "", "./"])
        if name == "git:" and generator.random() < 0.5:
            name = "git:path=.,target="
        words = [generator.choice(["plan", "inspect"]), name + _word(generator)]
    return worker.outcome([w.replace("\x00", "\\0") for w in words], at, SECONDS)


def _word(generator: random.Random) -> str:
    """A word of a command line; no NUL can be in one, nor more than 128 KiB."""
    value = changes.drawn(generator)
    if isinstance(value, int) and value.bit_length() > 10_000:
        return "1" + "0" * 5000
    text = value if isinstance(value, str) else generator.choice([json.dumps(value), str(value)])
    if generator.random() < 0.1:
        text = generator.choice(["a." * 50_000, "[" * 30_000, "1," * 20_000, "'" * 9, "{a={a=1}}"])
    return text.replace("\x00", "")


class Worker:
    """The process that runs the commands, started again when it ended or did not answer."""

    def __init__(self, root: Path) -> None:
        self._root, self._done = root, 0
        self._process: subprocess.Popen[str] | None = None
        self._mark = root / "canary-ran"
        modules = root / "modules"
        modules.mkdir()
        (modules / f"{changes.CANARY}.py").write_text(
            "import os\ndef run(*a, **k):\n    open(os.environ['HETA_CANARY'], 'w').close()\n"
            "    return run\nrun()\nclass Layer: pass\n")
        self._environment = common.environment(f"fuzz-{os.getpid()}", HETA_CANARY=str(self._mark))
        self._environment["PYTHONPATH"] = os.pathsep.join(
            [str(modules), self._environment["PYTHONPATH"]])

    @functools.cache  # noqa: B019  one worker per campaign
    def template(self, make: Callable[..., None]) -> Path:
        """The valid input, made when it is first asked for."""
        at = self._root / f"valid-{make.__name__}"
        at.mkdir()
        if make in (inputs.run, inputs.profiled):
            make(at, lambda words: subprocess.run(
                [*common.CLI, *words], cwd=at, env=self._environment, check=True,
                capture_output=True))
        else:
            make(at)
        return at

    def outcome(self, words: Sequence[str], at: Path, seconds: float) -> str:
        """Run a command; how it ended, or what is bad about that."""
        answer = self._ask({"args": list(words), "cwd": str(at)}, seconds)
        shown = " ".join(words)[:150]
        self._no_canary(shown)
        if isinstance(answer, str):
            raise Bad(f"{answer}: {shown}")
        if answer["traceback"] or "Traceback (most recent call" in answer["err"]:
            text = answer["traceback"] or answer["err"]
            raise Bad(f"traceback: {shown}: {text[-500:].replace(chr(10), ' | ')}")
        if answer["grown"] > BYTES:
            raise Bad(f"took {answer['grown'] >> 20} MiB: {shown}: {answer['err'][:200]}")
        if answer["status"]:
            errors = [line for line in answer["err"].splitlines() if line.startswith("error: ")]
            if len(errors) != 1 or answer["err_size"] > CHARACTERS * 4 or (
                    len(errors[0]) > CHARACTERS):
                raise Bad(f"message of {answer['err_size']} bytes, {len(errors)} errors: {shown}: "
                          f"{answer['err'][:300]}")
            if "not enough memory" in errors[0]:
                raise Bad(f"asks for more than {AS_MUCH >> 30} GiB: {shown}: {errors[0][:300]}")
        self._no_control(answer["out"] + answer["err"], shown)
        return "refused" if answer["status"] else "read"

    def in_a_process_of_its_own(self, words: Sequence[str], at: Path, seconds: float,
                                generator: random.Random) -> str:
        """The same as a user has it, at a terminal without columns, or with little memory."""
        shown = " ".join(words)[:150]
        memory = generator.choice([None, None, generator.randint(200, 4000) << 20])
        command = [*common.CLI, *words]
        if memory:
            command = ["prlimit", f"--as={memory}", *command]
        ended = common.call(command, at, seconds + 20, COLUMNS="0", **{
            name: self._environment[name] for name in ("HETA_CANARY", "PYTHONPATH")})
        self._no_canary(shown)
        said = ended.out + ended.err
        if memory and "bad_alloc" in said:  # torch's C++, while it is loaded
            return "process: no memory for libraries"
        ended.clean()
        self._no_control(said, shown)
        if not said.strip():
            raise Bad(f"says nothing, status {ended.status}: {shown}")
        return f"process{' with little memory' * bool(memory)}: " + (
            "refused" if ended.status else "read")

    @staticmethod
    def _no_control(said: str, shown: str) -> None:
        """What a terminal would obey."""
        if obeyed := [c for c in said if c not in "\n\t" and not c.isprintable()]:
            raise Bad(f"says {obeyed[:5]!r}: {shown}")

    def _no_canary(self, shown: str) -> None:
        if self._mark.exists():
            self._mark.unlink()
            self.close()
            raise Bad(f"the canary ran: {shown}")

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | str:
        if self._process is None or self._done >= EACH:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "fuzzing/worker.py")], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=self._environment, cwd=self._root, start_new_session=True)
            self._done = 0
            self._say({"args": ["--version"], "cwd": str(self._root)}, 120)
        self._done += 1
        return self._say(request, seconds)

    def _say(self, request: dict[str, Any], seconds: float) -> dict[str, Any] | str:
        process = self._process
        assert process is not None
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except OSError:
            self.close()
            return "the process was gone"
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        if not ready:
            self.close()
            return f"no end within {seconds:g} s"
        line = process.stdout.readline()
        if not line:
            status = process.wait()
            self.close()
            return f"the process ended by itself, status {status}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe:
                    pipe.close()
            self._process = None
        for pid in common.marked(f"fuzz-{os.getpid()}"):
            os.kill(pid, 9)


def main() -> int:
    args = common.parser(__doc__, "fuzz", 20_000).parse_args()
    sys.set_int_max_str_digits(0)  # numbers of thousands of digits are among the inputs
    with common.work_dir(args) as root:
        worker = Worker(root)
        try:
            slow = args.trials >= 1000  # those that train: some seconds each
            return common.run(args, root, lambda generator: draw(generator, worker, slow))
        finally:
            worker.close()


if __name__ == "__main__":
    sys.exit(main())
