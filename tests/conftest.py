"""Shared fixtures: the world of the experiments, and a small one written out by hand."""

from __future__ import annotations

import pytest

from lfo.records import Company, Department, HiddenRule, Profile, Task
from lfo.simulator import UserSimulator
from lfo.world import DEPARTMENTS, TypicalRules, World, generate_world


@pytest.fixture(scope="session")
def world() -> World:
    return generate_world(0)


def _hand_made_world() -> World:
    """One bank whose rules a reader can hold in mind, one user who has everything, one without a card."""
    names = ("Customer Service", "Fraud Department", "Billing", "Loans", "Sales")
    departments = tuple(
        Department(n, f"800-555-000{i}", DEPARTMENTS[n].description, "Mon-Fri 8-18") for i, n in enumerate(names, 1)
    )
    other = (Department("Sales", "800-555-0009", DEPARTMENTS["Sales"].description, "Mon-Fri 8-18"),)
    rules = [
        HiddenRule("bank", "Customer Service", ("account_number", "last_4_ssn"), "date_of_birth", "", "typical"),
        HiddenRule(
            "bank",
            "Fraud Department",
            ("account_number", "last_4_ssn", "last_4_cc"),
            "date_of_birth",
            "Customer Service",
            "typical",
        ),
        HiddenRule("bank", "Billing", ("account_number", "billing_zip"), "date_of_birth", "", "typical"),
        HiddenRule("bank", "Loans", ("name", "date_of_birth"), "email", "", "different"),
        HiddenRule("bank", "Sales", (), "date_of_birth", "", "typical"),
        HiddenRule("shop", "Sales", (), "date_of_birth", "", "typical"),
    ]
    values = {
        "name": "Ana Lopez",
        "account_number": "123456",
        "last_4_ssn": "1111",
        "date_of_birth": "1980-02-03",
        "billing_zip": "22222",
        "last_4_cc": "3333",
        "phone_number": "444-555-6666",
        "email": "ana77@example.com",
        "branch_code": "7777",
        "card_expiry": "9999",
    }
    no_card = {f: v for f, v in values.items() if f != "last_4_cc"}
    tasks = [
        ("bill", "all", ("dispute a charge",), 3),
        ("fraud", "all", ("report a fraud",), 4),
        ("nocard", "nocard", ("report a fraud",), 5),
        ("loan", "all", ("defer a loan payment",), 3),
        ("offer", "all", ("hear about offers",), 3),
        ("two", "all", ("dispute a charge", "close my account"), 4),
    ]
    return World(
        seed=-1,
        companies={
            "bank": Company("bank", "Harbor Bank", "banking", departments),
            "shop": Company("shop", "Summit Stores", "retail", other),
        },
        rules={(r.company_id, r.department): r for r in rules},
        typical=TypicalRules({}, {}, {}),
        profiles={"all": Profile("all", "banking", values), "nocard": Profile("nocard", "banking", no_card)},
        tasks=tuple(
            Task(name, "train", 1, "bank", who, f"Please call Harbor Bank for me: {' and '.join(goals)}.", goals, steps)
            for name, who, goals, steps in tasks
        ),
    )


@pytest.fixture(scope="session")
def tiny() -> World:
    return _hand_made_world()


@pytest.fixture(scope="session")
def seed_where(tiny):
    """seed_where(task, test): the first episode seed whose (fresh) user passes `test`."""

    def search(task: Task, test) -> int:
        profile = tiny.profiles[task.profile_id]
        return next(s for s in range(10_000) if test(UserSimulator(profile, f"{s}/{task.task_id}")))

    return search
