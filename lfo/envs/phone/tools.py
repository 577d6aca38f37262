"""The agent's three tools, and the public directory, which answers the one that needs nothing hidden.

The other two are answered by people: the user (`user`) and the company's CSR (`csr`). How a call is written and read is
the same in all environments and stands in `lfo.envs.base`.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping

from lfo.envs.base import Tool
from lfo.envs.phone.records import Company
from lfo.envs.phone.vocabulary import FIELDS
from lfo.types import Call

SEARCH, FORM, PHONE = "search_company", "auth_info_form", "make_phone_call"
_FIELD = {"type": "string", "enum": list(FIELDS), "title": "field"}
TOOLS = {
    tool.name: tool
    for tool in (
        Tool(SEARCH, "READ", "Look a company up in the public directory.", {"company_name": {"type": "string"}}),
        Tool(
            FORM,
            "WRITE",
            "Ask the user, once, for the personal fields that the calls will need.",
            {"fields": {"type": "array", "items": _FIELD}},
        ),
        Tool(
            PHONE,
            "WRITE",
            "Call a department and authenticate with the given fields.",
            {
                "phone_number": {"type": "string"},
                "auth_info": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        ),
    )
}


def search(company_name: str) -> Call:
    return Call(SEARCH, {"company_name": company_name})


def form(fields: Iterable[str]) -> Call:
    return Call(FORM, {"fields": list(fields)})


def phone_call(phone_number: str, auth_info: Mapping[str, str] | None = None) -> Call:
    """With empty hands unless something is handed over."""
    return Call(PHONE, {"phone_number": phone_number, "auth_info": dict(auth_info or {})})


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9 ]", "", name.lower()).strip()


def find_company(companies: Mapping[str, Company], name: str) -> Company | None:
    """Forgiving match: case and punctuation do not matter, part of a name or a typing error is enough."""
    by_name = {_plain(c.name): c for c in companies.values()}
    wanted = _plain(name)
    if wanted in by_name:
        return by_name[wanted]
    if len(wanted) >= 4 and len(partial := [c for n, c in by_name.items() if wanted in n]) == 1:
        return partial[0]
    close = difflib.get_close_matches(wanted[:100], by_name, n=1, cutoff=0.8)
    return by_name[close[0]] if close else None


def search_company(companies: Mapping[str, Company], company_name: str) -> dict:
    """The READ tool: a company's public directory, empty where no name matches."""
    company = find_company(companies, company_name)
    return {"departments": [dataclasses.asdict(d) for d in company.departments] if company else []}
