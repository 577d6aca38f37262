"""What the phone world is made of: fields, departments, goals, circumstances, names. The same in every drawn world.

Public knowledge only, as tables. What is drawn from them, and what of it is hidden, is said in `world`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

INDUSTRIES = ("banking", "insurance", "telecom", "retail")

# Field -> how people say it. This order is the canonical order of every list of fields.
COMMON_FIELDS = {
    "name": "full name",
    "account_number": "account number",
    "last_4_ssn": "last four digits of the SSN",
    "date_of_birth": "date of birth",
    "billing_zip": "billing ZIP code",
    "last_4_cc": "last four digits of the card",
    "phone_number": "phone number",
    "email": "email address",
}
INDUSTRY_FIELDS = {
    "banking": {"branch_code": "branch code", "card_expiry": "card expiry date"},
    "insurance": {"policy_number": "policy number", "claim_number": "claim number"},
    "telecom": {"contract_number": "contract number", "sim_number": "SIM number"},
    "retail": {"order_number": "order number", "loyalty_id": "loyalty ID"},
}
FIELDS = COMMON_FIELDS | {k: v for fields in INDUSTRY_FIELDS.values() for k, v in fields.items()}

# Any user can give these, so a department that must do without a field can fall back on one.
ALWAYS_AVAILABLE = ("date_of_birth", "email", "name")


@dataclasses.dataclass(frozen=True)
class DepartmentKind:
    """What a department of this name does everywhere: public knowledge, the same in every world."""

    description: str
    goals: tuple[str, ...]  # a user's wish, each belonging to one kind only


PRIORITY = "Technical Support (Priority)"
COMMON_DEPARTMENTS = {
    "Customer Service": DepartmentKind(
        "general account questions", ("update my mailing address", "close my account", "get a copy of my contract")
    ),
    "Billing": DepartmentKind(
        "bills, charges and payments", ("dispute a charge", "explain my last bill", "change my payment method")
    ),
    "Technical Support": DepartmentKind(
        "problems with apps and devices", ("fix the mobile app", "reset my online password", "repair a device")
    ),
    PRIORITY: DepartmentKind(
        "escalated technical problems", ("escalate a fault", "get an engineer on site", "recover lost data")
    ),
    "Fraud Department": DepartmentKind(
        "suspicious activity", ("report a fraud", "block a stolen card", "unlock a frozen account")
    ),
    "Sales": DepartmentKind("new products and offers", ("ask for a quote", "hear about offers", "order a brochure")),
}
INDUSTRY_DEPARTMENTS = {
    "banking": {
        "Loans": DepartmentKind("personal loans", ("defer a loan payment", "repay a loan early")),
        "Mortgages": DepartmentKind("home mortgages", ("renew a mortgage", "get a mortgage statement")),
        "Wire Transfers": DepartmentKind("transfers abroad", ("trace a transfer", "cancel a transfer")),
        "Card Services": DepartmentKind("debit and credit cards", ("raise my card limit", "replace a worn card")),
    },
    "insurance": {
        "Claims": DepartmentKind("damage and claims", ("file a claim", "check a claim")),
        "Policy Changes": DepartmentKind("changes to a policy", ("add a driver", "change my coverage")),
        "Underwriting": DepartmentKind("risk assessment", ("appeal a refusal", "review my premium")),
        "Roadside Assistance": DepartmentKind("help on the road", ("send a tow truck", "book a replacement car")),
    },
    "telecom": {
        "Roaming": DepartmentKind("use abroad", ("activate roaming", "contest roaming fees")),
        "Number Porting": DepartmentKind("moving numbers", ("keep my number", "release my number")),
        "Device Upgrades": DepartmentKind("new handsets", ("upgrade my phone", "trade in my phone")),
        "Network Outages": DepartmentKind("lines that are down", ("report a dead line", "claim outage credit")),
    },
    "retail": {
        "Returns": DepartmentKind("returns and refunds", ("return an item", "chase a refund")),
        "Loyalty Program": DepartmentKind("points and rewards", ("transfer my points", "restore expired points")),
        "Delivery": DepartmentKind("parcels and shipping", ("reroute a parcel", "find a lost parcel")),
        "Gift Cards": DepartmentKind("gift cards and vouchers", ("activate a gift card", "replace a gift card")),
    },
}
DEPARTMENTS = COMMON_DEPARTMENTS | {n: k for kinds in INDUSTRY_DEPARTMENTS.values() for n, k in kinds.items()}
DEPARTMENT_OF_GOAL = {goal: name for name, kind in DEPARTMENTS.items() for goal in kind.goals}

# Typical requirements of the common departments; those of the others are drawn once per world.
TYPICAL_COMMON = {
    "Customer Service": ("account_number", "last_4_ssn"),
    "Billing": ("account_number", "billing_zip"),
    "Technical Support": ("account_number", "phone_number"),
    "Fraud Department": ("account_number", "last_4_ssn", "last_4_cc"),
    "Sales": (),
}
ROUTING_COMMON = {"Fraud Department": "Customer Service", PRIORITY: "Technical Support"}

OPERATING_HOURS = ("Mon-Fri 8-18", "Mon-Sat 9-20", "every day 0-24")
NAME_PREFIXES = tuple(
    "Harbor Summit Cedar Pioneer Atlas Beacon Granite Willow Falcon Meridian Cobalt Juniper Orchard Sterling Vertex "
    "Prairie Lantern Compass Redwood Aurora Keystone Mariner Maple Horizon Evergreen Canyon Silver Crescent Liberty "
    "Northgate Oakmont Brookside Highland Ironwood Clearwater Bluebird Sandstone Whitfield Ashford Kingsley Elmwood "
    "Foxglove Greystone Hawthorn Ivory Jasper Kestrel Linden Magnolia Nimbus Obsidian Pinnacle Quartz Ridgeway "
    "Sapphire Tamarack Umber Vanguard Westbrook Yarrow Zephyr Alder Birchwood Copper Dunmore Emerald Fairview "
    "Garnet Hollis Indigo Jubilee Kinetic Larkspur Monarch Nova Onyx Pacific Quarry Riverbend Solstice Thornton "
    "Unity Valley Windward Yosemite Zenith Amber Bramble Cascade Delta Eastgate Fernhill Glacier Hearth Inland "
    "Jetty Knoll Laurel Mosaic Nordic Opal Pebble Quill Rosewood Saffron Tidewater Upland Verdant Wharf Xenia "
    "Yellowstone Zircon Anchor Boulder Citadel Driftwood".split()
)
NAME_SUFFIXES = {
    "banking": ("Bank", "Savings", "Trust"),
    "insurance": ("Insurance", "Mutual", "Assurance"),
    "telecom": ("Telecom", "Mobile", "Wireless"),
    "retail": ("Stores", "Market", "Outfitters"),
}
FIRST_NAMES = tuple(
    "Ana Ben Carla David Elena Frank Grace Hugo Irene James Karen Luis Maria Nadia Oscar Paula Quinn Rosa Samuel "
    "Tina Ursula Victor Wendy Xavier Yara Zoe Amir Bella Chen Dmitri Esther Farid".split()
)
LAST_NAMES = tuple(
    "Lopez Smith Nguyen Patel Kim Garcia Muller Rossi Silva Khan Brown Dubois Ivanov Haddad Jensen Kowalski Larsen "
    "Moreau Novak Okafor Popescu Quist Reyes Sato Tanaka Usman Varga Weber Xu Yilmaz Zhang Adams".split()
)


@dataclasses.dataclass(frozen=True)
class Circumstance:
    """Something about a request that may change what is demanded.

    said: how users put it; because: how CSRs do. The last phrasing of each is held out from training.
    """

    said: tuple[str, ...]
    because: tuple[str, ...]


CIRCUMSTANCES = {
    "joint_account": Circumstance(
        (
            "It is a joint account.",
            "I share the account with my partner.",
            "The account is in two names.",
            "Two of us hold the account.",
        ),
        ("as it is a joint account", "because two people share it", "with a joint account"),
    ),
    "large_amount": Circumstance(
        (
            "A large sum is at stake.",
            "It is about more than 5000 dollars.",
            "This is about a lot of money.",
            "The amount is high.",
        ),
        ("as the amount is large", "because so much money is at stake", "with a large sum"),
    ),
    "abroad": Circumstance(
        (
            "I am calling from abroad.",
            "I am out of the country.",
            "I am travelling overseas.",
            "I am in a foreign country.",
        ),
        ("as you call from abroad", "because you are out of the country", "for calls from overseas"),
    ),
    "business_account": Circumstance(
        (
            "It is a business account.",
            "The account belongs to my firm.",
            "This is for my company.",
            "My shop holds the account.",
        ),
        ("as it is a business account", "because a firm holds it", "with a business account"),
    ),
    "on_behalf": Circumstance(
        (
            "I ask on behalf of my mother.",
            "It is for somebody else.",
            "I act for a relative.",
            "A friend asked me to do this.",
        ),
        ("as you act for somebody else", "because it is for another person", "when acting for others"),
    ),
    "new_account": Circumstance(
        (
            "The account was opened this month.",
            "I joined only last week.",
            "I am a new customer.",
            "My account is brand new.",
        ),
        ("as the account is new", "because you joined so recently", "with a new account"),
    ),
}
REQUESTS = (
    "Please call {company} for me: {goals}.",
    "I need help with {company}. I want to {goals}.",
    "Could you phone {company} and {goals}?",
)


def goals_in(request: str) -> tuple[str, ...]:
    """The goals that a request speaks of, in its order."""
    return tuple(sorted((goal for goal in DEPARTMENT_OF_GOAL if goal in request), key=request.index))


def circumstances_in(request: str) -> tuple[str, ...]:
    """The circumstances that a request speaks of, in `CIRCUMSTANCES` order."""
    return tuple(name for name, kind in CIRCUMSTANCES.items() if any(said in request for said in kind.said))


def rephrased(request: str) -> str:
    """The request with its circumstances put as users never put them in training."""
    for kind in CIRCUMSTANCES.values():
        for said in kind.said:
            request = request.replace(said, kind.said[-1])
    return request


def industry_fields(industry: str) -> tuple[str, ...]:
    """The fields a user of this industry can be asked for, in canonical order."""
    return tuple(COMMON_FIELDS) + tuple(INDUSTRY_FIELDS[industry])


def canonical(fields: Iterable[str]) -> tuple[str, ...]:
    """Known fields without repetition, in `FIELDS` order."""
    chosen = set(fields)
    return tuple(f for f in FIELDS if f in chosen)
