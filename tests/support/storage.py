"""Object storage: a real S3 server that the test starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launching import free_port


@contextlib.contextmanager
def server(port: int = 0, address: str = "127.0.0.1") -> Iterator[int]:
    """An S3 server; its objects are the process's, and stay."""
    from moto.server import ThreadedMotoServer

    started = ThreadedMotoServer(ip_address=address, port=port, verbose=False)
    started.start()
    try:
        yield started.get_host_and_port()[1]
    finally:
        started.stop()


def storage_port(monkeypatch: pytest.MonkeyPatch, address: str = "127.0.0.1") -> int:
    """Where the storage of this test is to be, by the environment, as a user would say it."""
    from fsspec.registry import get_filesystem_class

    chosen = free_port(address)
    for name, value in {"ENDPOINT_URL": f"http://{address}:{chosen}", "ACCESS_KEY_ID": "key",
                        "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1",
                        "MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    get_filesystem_class("s3").clear_instance_cache()
    return chosen


def upload(directory: Path, to: str) -> str:
    """Copy a directory to `bucket/…`, of which nothing is there before; returns the URL."""
    import s3fs

    files = s3fs.S3FileSystem()
    with contextlib.suppress(FileExistsError):
        files.mkdir("bucket")
    with contextlib.suppress(FileNotFoundError):
        files.rm(to, recursive=True)
    files.put(str(directory), to, recursive=True)
    return f"s3://{to}"


def end_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the server refuses keys that it does not know."""
    from moto import settings

    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0.0)
