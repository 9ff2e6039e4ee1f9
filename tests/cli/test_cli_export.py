"""accelrt export, served over HTTP and printed."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from cli_command import ROOT, accelrt

prometheus = pytest.importorskip("prometheus_client.parser")
pytestmark = pytest.mark.own_process
HOST = {"ACCELRT_DRIVER": "host", "ACCELRT_HOST_DEVICES": "2", "ACCELRT_HOST_MEMORY": "1GiB"}


@pytest.fixture
def exporter(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    command = [sys.executable, "-m", "accelrt", "export", "--port", "0"]
    process = subprocess.Popen(
        command, env=os.environ | HOST, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    words = process.stdout.readline().split()
    assert words[0] == "serving", process.communicate()
    yield process, words[1]
    if process.poll() is None:
        process.kill()
    process.communicate()


def scrape(url):
    with urllib.request.urlopen(url, timeout=300) as answer:
        text = answer.read().decode()
    families = prometheus.text_string_to_metric_families(text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


HOLD = """
import os, sys, accelrt
kept = accelrt.Buffer(20 << 20)
accelrt.publish.start()
while not any(one.pid == os.getpid() for one in accelrt.publish.published()):
    pass
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_scrape_is_a_look_of_its_own(exporter):
    process, url = exporter
    before = scrape(url)
    totals = {
        dict(labels)["device"]: value
        for (name, labels), value in before.items()
        if name == "accelrt_device_memory_total_bytes"
    }
    assert totals == {"0": 1 << 30, "1": 1 << 30}
    assert not any(name.startswith("accelrt_pool") for name, _ in before)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, "secret"],
        env=os.environ | HOST,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "ready\n"
        after = scrape(url)
    finally:
        holder.communicate()
    found = {
        (name, dict(labels)["device"]): value
        for (name, labels), value in after.items()
        if dict(labels).get("pid") == str(holder.pid)
    }
    assert found[("accelrt_pool_live_bytes", "0")] == 20 << 20
    assert found[("accelrt_pool_reserved_bytes", "0")] == 20 << 20
    assert ("accelrt_pool_live_bytes", "1") not in found  # it has not used that device
    assert "secret" not in repr(after)  # a command's arguments are not told over the network
    assert not any(name.startswith("accelrt_pool") for name, _ in scrape(url))
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=300) == ("", "")
    assert process.returncode == 0


def test_an_interrupt_ends_it_as_other_commands(exporter):
    process, _ = exporter
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=300) == ("", "accelrt export: interrupted\n")
    assert process.returncode == 130


def test_a_port_in_use_is_an_error_that_says_so():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = accelrt("export", "--port", taken.getsockname()[1], **HOST)
    assert (done.returncode, done.stdout) == (2, "")
    assert "in use" in done.stderr


def test_once_prints_what_a_scrape_would_get(tmp_path):
    done = accelrt("export", "--once", XDG_RUNTIME_DIR=str(tmp_path), **HOST)
    assert (done.returncode, done.stderr) == (0, "")
    families = {family.name for family in prometheus.text_string_to_metric_families(done.stdout)}
    assert {
        "accelrt_device_up",
        "accelrt_device_memory_used_bytes",
        "accelrt_device_nvlink_bytes",
    } <= families
