"""What help() and editors show of every public name: texts, arguments, results, errors, signatures.

tests/helpers/public_texts.py says the rules, and finds what does not keep them.
"""

import re

import public_texts
import pytest
from raised_errors import PACKAGE, sources

pytestmark = pytest.mark.own_process


def lacking(look):
    """Name -> what is lacking, of every public object where a look finds something."""
    answers = {name: look(public) for name, public in public_texts.public_objects().items()}
    return {name: answer for name, answer in answers.items() if answer}


def test_there_is_much_to_look_at():
    objects = public_texts.public_objects()
    assert len(objects) > 800
    assert sum(public.owner is not None for public in objects.values()) > 350
    assert {"accelrt.Stream", "accelrt.Stream.device_index", "accelrt.memory.sleep"} <= objects.keys()


def test_every_public_name_and_attribute_has_a_text():
    assert lacking(public_texts.lacks_text) == {}


def test_texts_begin_with_what_is_done():
    assert lacking(public_texts.lacks_verb) == {}


def test_no_text_of_the_package_is_half_a_question():
    halves = re.compile(r'"""(?:What|Whether|How|Where|When|Why|Which)\b.*')
    paths = [path for suffix in ("py", "pyx") for path in PACKAGE.rglob(f"*.{suffix}")]
    texts = {str(path.relative_to(PACKAGE)): halves.findall(path.read_text()) for path in paths}
    assert {name: found for name, found in texts.items() if found} == {}


def test_every_parameter_is_explained():
    assert lacking(public_texts.lacking_arguments) == {}


def test_results_are_told():
    assert lacking(public_texts.lacks_returns) == {}


def test_errors_are_told():
    assert lacking(public_texts.lacking_raises) == {}


def test_errors_that_are_told_exist():
    assert lacking(public_texts.unknown_errors) == {}


def test_sections_that_refer_to_another_text_find_it():
    assert lacking(public_texts.dangling) == {}


def test_inspect_finds_the_parameters():
    assert lacking(public_texts.lacks_signature) == {}


def public_of(doc, source="def function(first, second=None) -> int: ..."):
    node = public_texts.ast.parse(source).body[0]
    kind = node.name if source.startswith("class") else ""
    return public_texts.Public("accelrt.function", "accelrt.function", kind, (node,), doc)


def test_what_is_lacking_is_seen():
    bare = public_of("Whether it is.")
    assert public_texts.lacks_verb(bare)
    assert public_texts.lacking_arguments(bare) == {"first", "second"}
    assert public_texts.lacks_returns(bare)
    half = public_of(
        "Counts.\n\nArguments:\n    first: int.\nReturns:\n    int.\nRaises:\n    NoSuchError: never."
    )
    assert not public_texts.lacks_verb(half)
    assert public_texts.lacking_arguments(half) == {"second"}
    assert not public_texts.lacks_returns(half)
    assert public_texts.unknown_errors(half) == {"NoSuchError"}
    assert public_texts.dangling(public_of("Counts.\n\nArguments: as nothing_there.")) == {"Arguments"}
    handed_on = public_of(
        "Waits.  Arguments, Raises: as\naccelrt.Stream.wait_event.", "def function(event): ..."
    )
    assert public_texts.lacking_arguments(handed_on) == set()
    assert public_texts.dangling(handed_on) == set()


def test_attributes_may_stand_with_their_class():
    owner = public_of("A thing.\n\nAttributes:\n    size, width: int, bytes.", "class Thing: ...")
    node = public_texts.ast.parse("size: int").body[0]
    listed, other = (
        public_texts.Public(f"accelrt.Thing.{name}", "accelrt", "Thing", (node,), "", owner=owner)
        for name in ("size", "height")
    )
    assert not public_texts.lacks_text(listed)
    assert public_texts.lacks_text(other)


def test_errors_are_found_where_they_are_raised():
    texts = sources()
    key = ("accelrt.runtime.cuda_status", "", "set_module_loading")
    assert texts.own(key) == {"ValueError", "RuntimeError", "ForkedError"}
    assert ("accelrt.streams.stream", "", "event_of") in texts.called(
        ("accelrt.streams.stream", "Stream", "wait_event")
    )
