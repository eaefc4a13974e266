"""MariaDB's server on this machine, of Debian's packages, ended with the test."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.launching import free_port
from tests.support.waiting import PATIENCE, PROMPT, until

PASSWORD = "another word of secrets"


def lacks() -> str | None:
    """Why there can be no MariaDB here, or None."""
    if shutil.which("mariadbd") is None or shutil.which("mariadb-install-db") is None:
        return "MariaDB's server is not installed: apt-get install mariadb-server"
    if importlib.util.find_spec("pymysql") is None:
        return "PyMySQL is not installed: pip install pymysql"
    return None


@contextmanager
def started(*statements: str) -> Iterator[tuple[str, int]]:
    """Start a server with a database `shop` that statements fill; gives its URL, without the
    password, and its process id. Nothing is left of it."""
    import pymysql

    port, here = free_port("127.0.0.1"), Path(tempfile.mkdtemp(prefix="mariadb-", dir="/tmp"))
    process, common = None, ["--no-defaults", f"--datadir={here}/data", "--user=root"]
    try:
        subprocess.run(["mariadb-install-db", *common, "--auth-root-authentication-method=normal",
                        "--skip-test-db"], check=True, capture_output=True, timeout=PATIENCE)
        with open(here / "log", "wb") as log:
            process = subprocess.Popen(
                ["mariadbd", *common, f"--port={port}", f"--socket={here}/socket",
                 "--bind-address=127.0.0.1", "--innodb-flush-log-at-trx-commit=0"],
                stdout=log, stderr=log)
        assert until(lambda: "ready for connections" in (here / "log").read_text(), PROMPT), (
            (here / "log").read_text())
        connection = pymysql.connect(unix_socket=f"{here}/socket", user="root", autocommit=True)
        with connection, connection.cursor() as cursor:
            for statement in (f"CREATE USER reader IDENTIFIED BY '{PASSWORD}'",
                              "CREATE DATABASE shop", "GRANT SELECT ON shop.* TO reader",
                              "USE shop", *statements):
                cursor.execute(statement)
        yield f"mysql+pymysql://reader@127.0.0.1:{port}/shop", process.pid
    finally:
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(here, ignore_errors=True)
