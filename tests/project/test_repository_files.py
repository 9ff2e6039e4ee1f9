"""Files for those who come to the repository: the changelog's form, one version, templates and workflows."""

import re
import tomllib
from datetime import date

import pytest
from cli_command import ROOT

import accelrt

pytestmark = pytest.mark.own_process
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
HUB = ROOT / ".github"
WORKFLOWS = sorted((HUB / "workflows").glob("*.yml"))
TEMPLATES = sorted((HUB / "ISSUE_TEMPLATE").glob("*.yml"))
checkout = pytest.mark.skipif(not HUB.exists(), reason="an sdist has no .github")


def form_errors(text):
    """Yields what is not of Keep a Changelog's form."""
    versions = re.findall(r"^## (.+)$", text, re.M)
    if not versions or versions[0] != "[Unreleased]":
        yield "it begins with ## [Unreleased]"
    released = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)", title) for title in versions[1:]]
    if not released or None in released:
        yield f"a version is ## [0.1.0] - 2026-01-31, of {versions[1:]}"
        return
    numbers = [tuple(map(int, match[1].split("."))) for match in released]
    dates = [date.fromisoformat(match[2]) for match in released]
    if numbers != sorted(set(numbers), reverse=True) or dates != sorted(dates, reverse=True):
        yield "the newest version comes first"
    for part in re.split(r"^## .+$", text, flags=re.M)[1:]:
        kinds = re.findall(r"^### (.+)$", part, re.M)
        if len(set(kinds)) < len(kinds) or not set(kinds) <= set(KINDS):
            yield f"kinds of changes are {KINDS}, once each, not {kinds}"
        before = re.split(r"^### .+$", part, flags=re.M)[0]
        if re.search(r"^- ", before, re.M):
            yield "a line stands under a kind of change"


def test_the_changelog_has_the_form_that_it_names():
    assert list(form_errors(CHANGELOG)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("## [0.1.0] - 2026-01-31\n", "begins with"),
        ("## [Unreleased]\n## 0.1.0\n", "a version is"),
        ("## [Unreleased]\n## [0.1.0] - 2026-01-31\n## [0.2.0] - 2026-01-01\n", "newest"),
        ("## [Unreleased]\n- x\n## [0.1.0] - 2026-01-31\n", "under a kind"),
        ("## [Unreleased]\n### New\n## [0.1.0] - 2026-01-31\n", "kinds of changes"),
    ],
)
def test_a_changelog_of_another_form_is_seen(text, said):
    assert any(said in error for error in form_errors(text))


@pytest.mark.parametrize(
    "name", ["docs/conf.py", "docs/project/release.md", "CITATION.cff", "README.md", "CONTRIBUTING.md"]
)
def test_a_release_finds_no_version_to_change_here(name):
    text = (ROOT / name).read_text()
    assert re.search(rf"\b{re.escape(VERSION)}\b", text) is None
    assert re.search(r"^version:", text, re.M) is None


def test_the_citation_has_what_its_format_asks_for():
    yaml = pytest.importorskip("yaml")
    said = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(said)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert said["license"] == project["license"]
    assert [each["name"] for each in said["authors"]] == [each["name"] for each in project["authors"]]


@checkout
def test_there_are_workflows_and_templates():
    assert [path.stem for path in WORKFLOWS] == ["ci", "docs", "wheels"]
    assert [path.stem for path in TEMPLATES] == ["config", "defect", "wish"]


@checkout
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_there_is_and_may_only_read(path):
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all(job["timeout-minutes"] <= 180 for job in workflow["jobs"].values())
    text = "\n".join(step.get("run", "") for step in steps)
    named = re.findall(r"(?<!\S)((?:\.ci|benchmarks|tests)/[\w./]+)", text)
    assert named or "sphinx" in text
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)


@checkout
@pytest.mark.parametrize(
    "path", [path for path in TEMPLATES if path.stem != "config"], ids=lambda path: path.stem
)
def test_a_template_of_issues_asks_and_names_what_there_is(path):
    yaml = pytest.importorskip("yaml")
    template = yaml.safe_load(path.read_text())
    assert {"name", "description", "body"} <= set(template)
    asked = [part for part in template["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in asked}) == len(asked) >= 3
    text = path.read_text()
    for name in re.findall(r"\baccelrt\.(memory\.\w+)", text):
        assert hasattr(accelrt.memory, name.removeprefix("memory."))
    for variable in re.findall(r"\bACCELRT_\w+", text):
        assert variable in accelrt.env.VARIABLES
