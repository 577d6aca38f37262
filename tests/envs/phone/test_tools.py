"""tools: what the agent is shown of them, and the public directory."""

from __future__ import annotations

import dataclasses

import pytest

from lfo.envs.base import written
from lfo.envs.phone.records import Company, Department
from lfo.envs.phone.tools import TOOLS, find_company, form, phone_call, search, search_company
from lfo.envs.phone.vocabulary import FIELDS


def test_schemas():
    assert [(name, tool.kind) for name, tool in TOOLS.items()] == [
        ("search_company", "READ"),
        ("auth_info_form", "WRITE"),
        ("make_phone_call", "WRITE"),
    ]
    assert all(tool.name == name for name, tool in TOOLS.items())
    schema = TOOLS["make_phone_call"].schema()
    assert schema["type"] == "function"
    assert schema["function"]["name"] == "make_phone_call"
    assert schema["function"]["parameters"]["required"] == ["phone_number", "auth_info"]
    form_schema = TOOLS["auth_info_form"].schema()["function"]
    assert form_schema["parameters"]["properties"]["fields"]["items"]["enum"] == [*FIELDS]


def test_calls_have_the_tools_arguments():
    assert written(search("Harbor Bank")) == 'search_company<|args|>{"company_name": "Harbor Bank"}'
    assert written(form(("name", "email"))) == 'auth_info_form<|args|>{"fields": ["name", "email"]}'
    assert written(phone_call("1")) == 'make_phone_call<|args|>{"phone_number": "1", "auth_info": {}}'
    assert all(not TOOLS[c.tool].complaint(c.arguments) for c in (search(""), form([]), phone_call("", {"name": "A"})))


# --- the directory ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Harbor Bank", "harbor bank", " HARBOR BANK!! ", "Harbor", "bor Ba", "Harbr Bank"])
def test_forgiving_match(tiny, name):
    assert find_company(tiny.companies, name).company_id == "bank"


@pytest.mark.parametrize("name", ["", "?!", "Har", "Zebra Airways", "o" * 3_900, "\u0000", "Harbor Bank" * 300])
def test_no_match(tiny, name):
    assert find_company(tiny.companies, name) is None
    assert search_company(tiny.companies, name) == {"departments": []}


def test_a_part_that_fits_several_names_is_no_match(tiny):
    two = tiny.companies | {"two": dataclasses.replace(tiny.companies["bank"], company_id="two", name="Harbor Trust")}
    assert find_company(two, "Harbor") is None
    assert find_company(two, "Harbor Trust").company_id == "two"


def test_every_company_is_found_in_spite_of_a_typing_error(world):
    for company in world.companies.values():
        for typed in (company.name, company.name.upper(), company.name[1:], company.name[:3] + company.name[4:]):
            assert find_company(world.companies, typed) is company, typed


def test_search_returns_the_public_directory_only(tiny):
    found = search_company(tiny.companies, "Summit Stores")
    assert found == {
        "departments": [
            {
                "name": "Sales",
                "phone": "800-555-0009",
                "description": "new products and offers",
                "operating_hours": "Mon-Fri 8-18",
            }
        ]
    }
    assert {f.name for f in dataclasses.fields(Department)} == {"name", "phone", "description", "operating_hours"}
    assert {f.name for f in dataclasses.fields(Company)} == {"company_id", "name", "industry", "departments"}
