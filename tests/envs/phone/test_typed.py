"""What people type at the prompt: every form of it, whatever cannot be read, and whole episodes."""

import json

import pytest

from lfo.config import EnvConfig
from lfo.envs.phone import make
from lfo.envs.phone.rules import oracle_plan
from lfo.envs.phone.tools import FORM, PHONE, SEARCH
from lfo.envs.phone.typed import HELP, MORE_HELP, Unreadable, play_at_prompt, read_typed, shown
from lfo.envs.phone.vocabulary import FIELDS
from lfo.types import Call, Hangup, StopReason, Turn

DIRECTORY = {
    "departments": [
        {"name": name, "phone": f"800-555-010{i}", "description": "this and that", "operating_hours": "Mon-Fri 8-18"}
        for i, name in enumerate(("Billing", "Technical Support", "Technical Support (Priority)"))
    ]
}
SEARCHED = Turn(Call(SEARCH, {"company_name": "Harbor Bank"}), json.dumps(DIRECTORY), "ok")
GIVEN = {"name": "Ana Lopez", "account_number": "123456"}
ASKED = Turn(Call(FORM, {"fields": [*GIVEN, "email"]}), json.dumps(GIVEN | {"unavailable": ["email"]}), "ok")
DECLINED = Turn(Call(FORM, {"fields": ["email"]}), '{"declined": "too much"}', "declined")


class Stub:
    """An episode in which the first phone call succeeds."""

    request = "Please call Harbor Bank for me."

    def __init__(self, *turns):
        self.turns, self.stop, self.closed = list(turns), None, 0

    def step(self, action):
        self.turns.append(Turn(action, "{}", "ok"))
        if action == Hangup():
            self.stop = StopReason.AGENT_STOPPED
            return ""
        if action.tool == PHONE:
            self.stop = StopReason.SUCCESS
            return '{"status": "success", "message": "All done."}'
        return json.dumps(DIRECTORY)

    def close(self):
        self.closed += 1


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("search Harbor Bank", Call(SEARCH, {"company_name": "Harbor Bank"})),
        ("  Search  Harbor   Bank. ", Call(SEARCH, {"company_name": "Harbor Bank"})),
        ("ask name, account number", Call(FORM, {"fields": ["name", "account_number"]})),
        ("ask account_number", Call(FORM, {"fields": ["account_number"]})),
        ("ask the ssn and my ZIP", Call(FORM, {"fields": ["last_4_ssn", "billing_zip"]})),
        ("ask Date of birth, date of birth", Call(FORM, {"fields": ["date_of_birth"]})),
        ("ask phone number", Call(FORM, {"fields": ["phone_number"]})),
        ("call 800-555-0100", Call(PHONE, {"phone_number": "800-555-0100", "auth_info": GIVEN})),
        ("call 999-999-9999", Call(PHONE, {"phone_number": "999-999-9999", "auth_info": GIVEN})),
        ("call billing", Call(PHONE, {"phone_number": "800-555-0100", "auth_info": GIVEN})),
        ("call the Technical Support", Call(PHONE, {"phone_number": "800-555-0101", "auth_info": GIVEN})),
        ("call priority", Call(PHONE, {"phone_number": "800-555-0102", "auth_info": GIVEN})),
        (
            "call 800-555-0100 with account number",
            Call(PHONE, {"phone_number": "800-555-0100", "auth_info": {"account_number": "123456"}}),
        ),
        ("call Billing with nothing", Call(PHONE, {"phone_number": "800-555-0100", "auth_info": {}})),
        ("hang up", Hangup()),
        ("Hangup", Hangup()),
        ('search_company<|args|>{"company_name": "X"}', Call(SEARCH, {"company_name": "X"})),
    ],
)
def test_what_can_be_typed(line, action):
    assert read_typed(line, Stub(SEARCHED, ASKED, DECLINED)) == action


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("", HELP),
        ("hello", HELP),
        ("call", HELP),
        ("ask shoe size", "Fields: full name, account number"),
        ("ask last four digits", "last four digits of the SSN or last four digits of the card"),
        ("call Sales", "Departments: Billing, Technical Support"),
        ("call support", "is no listed department"),
        ("call Billing with email", "The user has not given: email address"),
        ("search_company<|args|>{", "not valid JSON"),
        ("dance<|args|>{}", "Tools: search_company"),
    ],
)
def test_what_cannot_be_read_says_what_can_be_typed(line, remedy):
    with pytest.raises(Unreadable) as problem:
        read_typed(line, Stub(SEARCHED, ASKED))
    assert remedy in str(problem.value)


def test_departments_are_known_after_a_search_only():
    with pytest.raises(Unreadable, match="Search a company first"):
        read_typed("call Billing", Stub())
    assert read_typed("call 800-555-0100", Stub()).arguments["auth_info"] == {}


def test_every_field_is_understood_by_both_of_its_names():
    for field, spoken in FIELDS.items():
        assert read_typed(f"ask {field}", Stub()) == read_typed(f"ask {spoken}", Stub())
        assert read_typed(f"ask {spoken}", Stub()).arguments == {"fields": [field]}


def test_answers_are_shown_in_lines():
    assert shown(SEARCHED.observation).splitlines()[0] == "  Billing, 800-555-0100: this and that (Mon-Fri 8-18)"
    assert "no company" in shown('{"departments": []}')
    assert shown(ASKED.observation).splitlines()[1:] == ["  account number: 123456", "  email address: not available"]
    assert "too much" in shown(DECLINED.observation)
    assert shown('{"status": "auth_failed", "message": "No."}') == "  No. (auth failed)"


def play(episode, *lines):
    """What a person sees who types these lines."""
    typed, seen = iter(lines), []
    play_at_prompt(episode, lambda prompt: next(typed), seen.append)
    return "\n".join(seen)


def test_help_and_unreadable_lines_cost_no_turn():
    episode = Stub()
    seen = play(episode, "help", "what?", "search Harbor Bank", "call 800-555-0100")
    assert [turn.tool for turn in episode.turns] == [SEARCH, PHONE]
    assert seen.startswith(f"{episode.request}\n{HELP}") and MORE_HELP in seen and seen.count(HELP) == 3
    assert "All done. (success)" in seen and seen.endswith("Turns: 2.")
    assert episode.closed == 1


def test_an_episode_that_is_given_up_is_closed():
    episode = Stub()
    with pytest.raises(StopIteration):
        play(episode, "search Harbor Bank")
    assert episode.closed == 1


def test_a_person_who_knows_the_rules_succeeds():
    env = make(EnvConfig(levels=(1,)))
    task = env.tasks("train")[0]
    plan = oracle_plan(env.world.demands_of(task), env.world.profiles[task.profile_id])
    spoken = ", ".join(FIELDS[field] for field in plan.fields)
    company = env.world.companies[task.company_id]
    (department,) = plan.departments
    for seed in range(10):  # the first user who is cooperative
        episode = env.episode(task, seed)
        lines = [f"search {company.name}", *([f"ask {spoken}"] if spoken else []), f"call {department}", "hang up"]
        seen = play(episode, *lines)
        if episode.stop is StopReason.SUCCESS:
            break
    assert "Done" in seen and department in seen
