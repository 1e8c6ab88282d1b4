"""Downloads from a local test server: a file appears whole and verified, or not at all."""

import hashlib
import http.server
import io
import tarfile
import threading
from typing import ClassVar

import numpy as np
import pytest

from qkv.data.download import cache_folder, download
from qkv.data.images import cifar_mnist
from qkv.data.images.load import load_images

CONTENT = bytes(range(256)) * 5000
SHA = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    files: ClassVar[dict[str, bytes]] = {}
    ranges = True
    cut = 0  # bytes after which the next answer breaks off
    ranges_requested: ClassVar[list[str | None]] = []

    def do_GET(self):
        kind = type(self)
        content = kind.files.get(self.path)
        begin = self.headers.get("Range")
        kind.ranges_requested.append(begin)
        if content is None:
            self.send_error(404)
            return
        start = int(begin[6:-1]) if begin and kind.ranges else 0
        if start >= len(content) and start:
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = start + kind.cut if kind.cut else len(content)
        kind.cut = 0
        self.wfile.write(content[start:stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Handler.files, Handler.ranges, Handler.cut, Handler.ranges_requested = {"/a.bin": CONTENT}, True, 0, []
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()
    thread.join()


def test_download_fetches_a_file_once_and_verifies_it(server):
    reported = []
    path = download(f"{server}/a.bin", SHA, progress=lambda have, total: reported.append((have, total)))
    assert path == cache_folder() / "a.bin" and path.read_bytes() == CONTENT and reported[-1] == (len(CONTENT),) * 2
    assert download(f"{server}/a.bin", SHA) == path and len(Handler.ranges_requested) == 1
    path.write_bytes(b"changed since")
    assert download(f"{server}/a.bin", SHA).read_bytes() == CONTENT
    assert download(f"{server}/a.bin", "md5:" + hashlib.md5(CONTENT).hexdigest(), path.with_name("b")).exists()


@pytest.mark.parametrize("ranges", [True, False])
def test_download_resumes_after_an_interruption_or_starts_again(server, ranges):
    Handler.cut, Handler.ranges = 300_000, ranges
    with pytest.raises(ValueError, match=r"could not be downloaded .*300,000 of 1,280,000 bytes"):
        download(f"{server}/a.bin", SHA)
    assert not (cache_folder() / "a.bin").exists()
    assert download(f"{server}/a.bin", SHA).read_bytes() == CONTENT
    assert Handler.ranges_requested == [None, "bytes=300000-"]
    assert [p.name for p in cache_folder().iterdir()] == ["a.bin"]


def test_download_keeps_nothing_with_a_wrong_checksum(server):
    with pytest.raises(ValueError, match=r"expected checksum sha256:0+, got sha256:"):
        download(f"{server}/a.bin", "sha256:" + "0" * 64)
    assert list(cache_folder().iterdir()) == []
    (cache_folder() / "a.bin.part").write_bytes(b"rubbish" * 300_000)  # longer than the file: nothing to resume
    assert download(f"{server}/a.bin", SHA).read_bytes() == CONTENT


def test_download_without_a_network_says_what_to_do(server):
    with pytest.raises(ValueError, match=r"none.bin could not be downloaded \(.*\); get the file by other means") as e:
        download(f"{server}/none.bin", SHA)
    assert "\n" not in str(e.value) and str(cache_folder() / "none.bin") in str(e.value)
    with pytest.raises(ValueError, match="could not be downloaded"):
        download("http://127.0.0.1:9/x.bin", SHA)
    with pytest.raises(ValueError, match="a checksum must be 'sha256:…' or 'md5:…'"):
        download(f"{server}/a.bin", "crc:12")


def test_load_images_downloads_and_unpacks_cifar(server, monkeypatch):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as tar:
        for name in [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]:
            content = np.random.default_rng(0).integers(0, 10, 2 * 3073, dtype=np.uint8).tobytes()
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    Handler.files["/cifar-10-binary.tar.gz"] = held.getvalue()
    checksum = "sha256:" + hashlib.sha256(held.getvalue()).hexdigest()
    known = {"cifar10": (f"{server}/cifar-10-binary.tar.gz", checksum, "cifar-10-batches-bin")}
    monkeypatch.setattr(cifar_mnist, "CIFAR_ARCHIVES", {**cifar_mnist.CIFAR_ARCHIVES, **known})
    parts = load_images("cifar10")
    assert parts.train.shape == (3, 32, 32) and len(parts.test) == 2 and len(parts.train) + len(parts.validation) == 10
    assert len(load_images("cifar10").test) == 2 and len(Handler.ranges_requested) == 1, (
        "the second time from the cache"
    )


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("QKV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "qkv"
