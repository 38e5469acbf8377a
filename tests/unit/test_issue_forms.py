"""Issue forms keep GitHub's rules: GitHub leaves out a form that breaks one."""

import re
from pathlib import Path

import pytest
import yaml

FORMS = sorted((Path(__file__).parents[2] / ".github" / "ISSUE_TEMPLATE").glob("[0-9]*.yml"))
FIELDS = {"input", "textarea", "dropdown"}
ATTRIBUTES = {"label", "description", "placeholder", "render", "options"}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_a_form_keeps_githubs_rules(form):
    read = yaml.safe_load(form.read_text())
    assert set(read) == {"name", "description", "labels", "body"}
    ids = [field["id"] for field in read["body"]]
    labels = [field["attributes"]["label"] for field in read["body"]]
    assert len(set(ids)) == len(ids) and len(set(labels)) == len(labels)
    assert any(field.get("validations", {}).get("required") for field in read["body"])
    for field in read["body"]:
        assert field["type"] in FIELDS and re.fullmatch(r"[\w-]+", field["id"])
        assert set(field) <= {"type", "id", "attributes", "validations"}
        assert set(field["attributes"]) <= ATTRIBUTES
        assert ("options" in field["attributes"]) == (field["type"] == "dropdown")
        # YAML reads a bare Yes as true, which GitHub refuses.
        assert all(isinstance(each, str) for each in field["attributes"].get("options", ()))


def test_there_are_four_forms_each_with_a_name_of_its_own():
    names = {yaml.safe_load(form.read_text())["name"] for form in FORMS}
    assert len(FORMS) == len(names) == 4
