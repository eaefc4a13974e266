"""PostgreSQL's server on this machine, of Debian's packages, ended with the test."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.launching import free_port
from tests.support.waiting import PATIENCE, PROMPT, until

USER = "postgres"
PASSWORD = "a word of secrets"


def _programs() -> Path | None:
    """The directory of the newest server."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"),
                   key=lambda path: float(path.parts[-3]))
    return found[-1].parent if found else None


def lacks() -> str | None:
    """Why there can be no PostgreSQL here, or None."""
    if _programs() is None:
        return "PostgreSQL's server is not installed: apt-get install postgresql"
    if importlib.util.find_spec("psycopg2") is None:
        return "psycopg2 is not installed: pip install psycopg2-binary"
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return f"there is no user {USER}, whom PostgreSQL's server runs as"
    return None if os.geteuid() == 0 else f"the server runs as {USER}, whom only root can be"


@dataclass(frozen=True)
class Postgres:
    """A running server."""

    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """The URL of its database, without the password."""
        return f"postgresql+psycopg2://{USER}@127.0.0.1:{self.port}/postgres"

    def run(self, *statements: str) -> None:
        """Run statements of SQL, each by itself."""
        import psycopg2

        connection = psycopg2.connect(host="127.0.0.1", port=self.port, user=USER,
                                      password=PASSWORD, dbname="postgres")
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()


@contextmanager
def started() -> Iterator[Postgres]:
    """Start a server in a directory of its own, with a password; nothing is left of it."""
    programs, port = _programs(), free_port("127.0.0.1")
    assert programs is not None
    here = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
    process = None
    try:
        (here / "password").write_text(PASSWORD)
        for path in (here, here / "password"):
            shutil.chown(path, USER)
        as_user = {"user": USER, "cwd": here, "env": {"LC_ALL": "C.UTF-8"}}
        subprocess.run([str(programs / "initdb"), "-D", str(here / "data"), "-A", "scram-sha-256",
                        "--pwfile", str(here / "password"), "--no-sync"], check=True,
                       capture_output=True, timeout=PATIENCE, **as_user)
        with open(here / "log", "wb") as log:
            process = subprocess.Popen(
                [str(programs / "postgres"), "-D", str(here / "data"), "-p", str(port), "-k",
                 str(here), "-h", "127.0.0.1", "-F"], stdout=log, stderr=log, **as_user)
        ready = [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-q"]
        assert until(lambda: subprocess.run(ready, check=False).returncode == 0, PROMPT), (
            (here / "log").read_text())
        yield Postgres(port, process)
    finally:
        if process is not None:
            process.send_signal(2)  # which ends all connections
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(here, ignore_errors=True)
