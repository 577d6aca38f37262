"""Hand-written calls in world 0, each with the gist of its answer, worked out by hand from data/world/*.jsonl.

`stage` plays what came before and makes the call; `gist` is what an answer means.
"""

from __future__ import annotations

import dataclasses
import json
import re

from lfo.envs.phone import World
from lfo.envs.phone.csr import CsrSimulator
from lfo.envs.phone.phrasings import read_reply
from lfo.envs.phone.tools import FORM, SEARCH, phone_call, search_company
from lfo.envs.phone.vocabulary import canonical, circumstances_in, industry_fields
from lfo.protocols import Question
from lfo.types import Call, Turn

WORLD = (0, 4)  # that the situations are about: its seed, and how many kinds of circumstances it knows
ASKING = "form"

# Name, company, goal, and what is said of circumstances; then what was done before the call, the call, and the gist of
# its answer.
WRITTEN = """
banking, typical rules | Prairie Savings | trace a transfer
    Wire Transfers -> auth_failed: account_number, last_4_cc, email
insurance, typical rules | Valley Assurance | file a claim
    Claims -> auth_failed: account_number, date_of_birth, billing_zip, phone_number
telecom, typical rules | Canyon Telecom | activate roaming
    Roaming -> auth_failed: last_4_cc, phone_number
retail, typical rules | Eastgate Outfitters | return an item
    Returns -> auth_failed: last_4_ssn, order_number
nothing is required | Kestrel Bank | ask for a quote
    Sales -> success
one of two fields is given | Alder Mutual | dispute a charge
    form: account_number; Billing: account_number -> auth_failed: billing_zip
every field is given | Kestrel Bank | repay a loan early
    form: name date_of_birth branch_code; Loans: name date_of_birth branch_code -> success
one value is made up | Alder Mutual | dispute a charge
    form: account_number billing_zip; Billing: wrong-account_number billing_zip -> auth_failed: account_number
a field is unavailable | Prairie Savings | cancel a transfer
    form: account_number no-last_4_cc email; Wire Transfers: account_number email
    -> auth_failed: date_of_birth, last_4_cc
another department first | Vertex Outfitters | report a fraud
    Fraud Department -> routing_violation: Customer Service
the other department has served | Vertex Outfitters | report a fraud
    form: account_number last_4_ssn; Customer Service: account_number last_4_ssn;
    Fraud Department: account_number last_4_ssn -> auth_failed: last_4_cc
wrong department | Maple Stores | dispute a charge
    form: account_number last_4_ssn; Customer Service: account_number last_4_ssn -> wrong_department: Billing
a number that nobody has | Greystone Trust | repay a loan early
    800-555-9999 -> wrong_department
known company, rules of its own | Pebble Bank | change my payment method
    Billing -> auth_failed: billing_zip, card_expiry
known company, one field more | Jubilee Outfitters | chase a refund
    Returns -> auth_failed: name, last_4_ssn, order_number
new company, typical rules | Foxglove Telecom | report a dead line
    Network Outages -> auth_failed: name, phone_number, sim_number
new company, one field more | Kingsley Savings | defer a loan payment
    Loans -> auth_failed: name, date_of_birth, branch_code, card_expiry
a circumstance demands a field | Larkspur Bank | explain my last bill | It is a joint account.
    Billing -> auth_failed: account_number, billing_zip, card_expiry
the usual fields are given | Larkspur Bank | explain my last bill | The account is in two names.
    form: account_number billing_zip; Billing: account_number billing_zip -> auth_failed: card_expiry
a circumstance demands what is demanded anyway | Indigo Market | close my account | It is a business account.
    Customer Service -> auth_failed: account_number, last_4_ssn
two circumstances | Unity Wireless | claim outage credit | I am out of the country. A large sum is at stake.
    Network Outages -> auth_failed: name, billing_zip, last_4_cc, phone_number, sim_number
a circumstance wants another department first | Amber Outfitters | return an item | I am travelling overseas.
    Returns -> routing_violation: Billing
the department that it wants has served | Amber Outfitters | return an item | I am travelling overseas.
    form: account_number last_4_ssn billing_zip; Billing: account_number billing_zip; Returns: last_4_ssn
    -> auth_failed: order_number
known company, exceptions of its own | Rosewood Wireless | report a dead line | I am calling from abroad.
    Network Outages -> auth_failed: account_number, last_4_ssn, email, contract_number
known company, one exception | Driftwood Bank | trace a transfer | This is for my company.
    Wire Transfers -> auth_failed: account_number, billing_zip, last_4_cc, email, card_expiry
new company, a circumstance | Beacon Insurance | file a claim | The account belongs to my firm.
    Claims -> auth_failed: account_number, date_of_birth, billing_zip, phone_number, claim_number
new company, another department first | Pacific Telecom | close my account | It is a joint account.
    Customer Service -> routing_violation: Technical Support
"""


@dataclasses.dataclass(frozen=True)
class Situation:
    """What came before a call, and the call: steps such as "Billing: account_number email" (a department or a number,
    and the fields that are handed over) or "form: email" (fields that the user is asked for).

    ``wrong-x`` hands over a value that is not the user's; ``no-x`` is a field that the form reports as unavailable.
    """

    name: str
    company: str
    goal: str
    circumstances: str  # sentences of the request, "" for none
    before: tuple[str, ...]
    call: str
    expected: str  # as `gist` writes it

    @classmethod
    def read(cls, written: str) -> Situation:
        about, _, what = written.partition("\n")
        steps, _, expected = " ".join(what.split()).partition(" -> ")
        *before, call = steps.split("; ")
        name, company, goal, *said = about.split(" | ")
        return cls(name, company, goal, " ".join(said), tuple(before), call, expected)


SITUATIONS = tuple(map(Situation.read, re.split(r"\n(?=\S)", WRITTEN.strip())))


def gist(reply: str) -> str:
    """What a reply means, as text: its status and whatever fields and departments it names."""
    status, fields, departments = read_reply(reply)
    named = [*canonical(fields), *sorted(departments)]
    return f"{status}: {', '.join(named)}" if named else status


def stage(world: World, situation: Situation, reasons: bool = True) -> tuple[Question, str]:
    """A situation in its world: what a world model is asked, and what the CSR says, with its reasons or without."""
    company = next(c for c in world.companies.values() if c.name == situation.company)
    fields = industry_fields(company.industry)
    truth = next(p.values for p in world.profiles.values() if set(p.values) == set(fields))
    phone = {d.name: d.phone for d in company.departments}
    demands = world.demands(company.company_id, [situation.goal], circumstances_in(situation.circumstances))
    csr = CsrSimulator(company, demands, "situations", reasons=reasons)
    unavailable: set[str] = set()

    def take(step: str) -> Turn:
        who, _, what = step.partition(": ")
        marks = {field: mark for mark, _, field in (word.rpartition("-") for word in what.split())}
        if who == ASKING:
            unavailable.update(field for field, mark in marks.items() if mark == "no")
            answer = {f: truth[f] for f, mark in marks.items() if not mark} | {"unavailable": sorted(unavailable)}
            return Turn(Call(FORM, {"fields": list(marks)}), json.dumps(answer), "ok")
        given = {field: "0" if mark == "wrong" else truth[field] for field, mark in marks.items()}
        number = phone.get(who, who)
        reply = csr.call(number, given, truth, unavailable)
        said = json.dumps({"status": reply.status, "message": reply.message})
        return Turn(phone_call(number, given), said, reply.status)

    directory = json.dumps(search_company(world.companies, company.name))
    turns = [Turn(Call(SEARCH, {"company_name": company.name}), directory, "ok")]
    turns += [take(step) for step in situation.before]
    call = take(situation.call)
    request = f"Please call {company.name} for me: {situation.goal}. {situation.circumstances}".strip()
    return Question(request, tuple(turns), call.action), call.observation
