"""accelrt info, with and without a device."""

import json
import os
import platform
import subprocess
import sys

import pytest
from cli_command import ROOT, accelrt

import accelrt as package
from accelrt import env

NO_GPU = {"ACCELRT_DRIVER": None, "CUDA_VISIBLE_DEVICES": ""}


def facts(**environment):
    done = accelrt("info", "--json", **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_without_device_or_setting_it_says_why_and_what_to_do():
    found = facts(**NO_GPU)
    assert found["driver"]["name"] == "cuda"
    assert found["driver"]["open"] is False
    assert "ACCELRT_DRIVER is not set" in found["driver"]["why"]
    assert "no NVIDIA device can be used" in found["driver"]["problem"]
    assert found["devices"] == []
    done = accelrt("info", **NO_GPU)
    assert (done.returncode, done.stderr) == (0, "")
    assert "set ACCELRT_DRIVER=host" in done.stdout


def test_it_says_what_is_installed():
    versions = facts()["versions"]
    assert versions["accelrt"] == package.__version__
    assert versions["python"].startswith(platform.python_version())
    assert versions["cython"].startswith("3.")
    assert versions["cuda-bindings"]
    assert versions["numpy"]
    assert versions["platform"] == platform.platform()


def test_it_lists_the_devices_of_the_driver():
    found = facts(ACCELRT_HOST_DEVICES="3", ACCELRT_HOST_MEMORY="64MiB")
    assert found["driver"]["name"] == "host"
    assert found["driver"]["why"] == "ACCELRT_DRIVER=host"
    assert found["driver"]["open"] is True
    assert [device["ordinal"] for device in found["devices"]] == [0, 1, 2]
    for device in found["devices"]:
        assert device["total_memory"] == device["free_memory"] == 64 << 20
        assert device["name"]
        assert device["capability"].count(".") == 1
        assert device["problem"] is None
    assert len({device["uuid"] for device in found["devices"]}) == 3


def test_the_report_for_people_holds_the_same(tmp_path):
    text = accelrt("info", ACCELRT_HOST_DEVICES="1", ACCELRT_HOST_MEMORY="64MiB").stdout
    device = facts(ACCELRT_HOST_DEVICES="1", ACCELRT_HOST_MEMORY="64MiB")["devices"][0]
    for part in (package.__version__, platform.platform(), device["name"], device["uuid"], "64.00 MiB"):
        assert part in text
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize(
    ("setting", "value"), [("ACCELRT_DRIVER", "gpu"), ("ACCELRT_HOST_MEMORY", "1 elephant")]
)
def test_a_malformed_setting_is_reported_not_raised(setting, value):
    found = facts(**{setting: value})
    assert value in found["driver"]["problem"]
    assert found["settings"][setting] == value


def test_settings_in_force_are_listed_and_misspelt_ones_pointed_out():
    settings = facts(ACCELRT_DEBUG="1", ACCELRT_HOST_DEVISES="3", CUDA_VISIBLE_DEVICES=None)["settings"]
    assert settings["ACCELRT_DEBUG"] == "1"
    assert settings["ACCELRT_HOST_DEVICES"] == "2 (not set)"
    assert settings["ACCELRT_HOST_DEVISES"] == "3 (accelrt has no such setting)"
    assert settings["CUDA_VISIBLE_DEVICES"] == "all (not set)"
    assert settings["ACCELRT_ALLOC_CONF"] == "empty (not set)"


def test_every_variable_is_listed_with_its_value_and_what_it_means():
    given = {"ACCELRT_ALLOC_CONF": "growth_slack:0.1", "ACCELRT_SANITIZE": "warn"}
    settings = facts(**given)["settings"]
    assert set(env.VARIABLES) <= set(settings)
    assert {name: settings[name] for name in given} == given
    text = accelrt("info", "--all", **given).stdout
    words = " ".join(text.split())
    for variable in env.VARIABLES.values():
        assert f" {variable.name}=" in words
        assert variable.meaning in words
    changed = accelrt("info", **given).stdout
    shown = [name for name in settings if f"  {name}=" in changed]
    assert shown == [name for name, value in settings.items() if not value.endswith("(not set)")]
    assert set(given) <= set(shown)
    assert f"{len(settings) - len(shown)} have their defaults" in changed


def test_the_command_is_installed_under_its_name():
    assert 'accelrt = "accelrt.tools.cli.main:main"' in (ROOT / "pyproject.toml").read_text()


def test_a_reader_that_goes_away_ends_it_quietly():
    nobody_reads, output = os.pipe()
    os.close(nobody_reads)
    command = [sys.executable, "-m", "accelrt", "info"]
    done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.PIPE, check=False)
    os.close(output)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_command_is_asked_for():
    done = accelrt()
    assert done.returncode == 2
    assert "COMMAND" in done.stderr


def test_a_secret_is_not_shown():
    found = facts(ACCELRT_RENDEZVOUS_KEY="open sesame")["settings"]
    assert found["ACCELRT_RENDEZVOUS_KEY"] == "set (it is not shown)"
    assert facts()["settings"]["ACCELRT_RENDEZVOUS_KEY"] == "empty (not set)"
