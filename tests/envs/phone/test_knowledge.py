"""knowledge: what a world model is told and asked, how a company is made unknown, who answers in a dream."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from collections import Counter

import pytest
from scripted import NO, VERDICTS, YES

from lfo.envs.base import written
from lfo.envs.phone.callers import REFERENCE_POLICIES, Oracle, RandomForm, RetryFromCsr, run_scripted
from lfo.envs.phone.csr import DreamtCsr
from lfo.envs.phone.environment import PhoneEnvironment
from lfo.envs.phone.episode import PhoneEpisode, Rules
from lfo.envs.phone.knowledge import PhoneKnowledge, empty_handed, rule_questions
from lfo.envs.phone.phrasings import SITUATION_STATUS, meaning, say
from lfo.envs.phone.tools import TOOLS, form, phone_call, search, search_company
from lfo.envs.phone.vocabulary import FIELDS
from lfo.protocols import Question
from lfo.types import Call, Encoded, Example, Hangup, Malformed, StopReason, Turn


@pytest.fixture
def known(tiny) -> PhoneKnowledge:
    return PhoneKnowledge(tiny)


@pytest.fixture
def looked_up(tiny):
    """looked_up(name): the turn of looking a company up."""

    def make(name: str) -> Turn:
        return Turn(search(name), json.dumps(search_company(tiny.companies, name)), "ok")

    return make


def called(number: str, status: str = "auth_failed", message: str = "Billing. I need your email address.") -> Turn:
    return Turn(phone_call(number), json.dumps({"status": status, "message": message}), status)


def as_example(task_id: str, request: str, turns: list[Turn]) -> Example:
    """What is learned from the last of these turns."""
    *before, last = turns
    return Example(
        task_id, last.action, last.observation, last.status, Encoded((), ()), request=request, turns=tuple(before)
    )


# --- what it is told -------------------------------------------------------------------------


def test_state_by_hand(known):
    departments = [{"name": "Billing", "phone": "800-555-0003"}, {"name": "Sales", "phone": "800-555-0005"}]
    turns = [
        Turn(search("Harbor"), json.dumps({"departments": departments}), "ok"),
        Turn(form(["email", "last_4_cc"]), '{"email": "ana77@example.com", "unavailable": ["last_4_cc"]}', "ok"),
        called("800-555-0003"),
        Turn(Malformed("gibberish", "no"), '{"error": "no"}', "error"),
        Turn(form([]), '{"refused": "no"}', "refused"),
    ]
    assert known.state("Please.", []) == (
        "Please. Step 1. Directory: . Previous Actions: . Collected Auth: []. Unavailable: []."
    )
    rest = "make_phone_call 800-555-0003 auth_failed; none error; auth_info_form refused."
    collected = 'Collected Auth: ["email"]. Unavailable: ["last_4_cc"].'
    directory = "Please. Step 6. Directory: Billing 800-555-0003; Sales 800-555-0005."
    assert known.state("Please.", turns) == (
        f"{directory} Previous Actions: search_company ok; auth_info_form ok; {rest} {collected}"
    )
    assert known.state("Please.", turns, dropped=2) == f"{directory} Previous Actions: {rest} {collected}"
    hung_up = [Turn(Hangup(), "", "stopped")]
    assert "Previous Actions: none stopped." in known.state("Please.", hung_up)


def test_values_of_the_form_never_enter_a_state(world):
    """What the user gave stands in no state of any step, neither of exploratory episodes nor of the oracle's."""
    seen, known = 0, PhoneKnowledge(world)
    for i, task in enumerate(world.split("train")[:60]):
        episode = PhoneEpisode(world, task, Rules(slack=9), i)
        run_scripted(episode, (Oracle, RandomForm)[i % 2](episode, world, random.Random(i)))
        for step in range(len(episode.turns) + 1):
            state = known.state(episode.request, episode.turns[:step])
            for department in world.companies[task.company_id].departments:
                state = state.replace(department.phone, "")  # four digits may be like those of a value
            assert not [v for v in episode.collected.values() if v in state]
            seen += len(episode.collected)
    assert seen > 300


def test_how_csrs_say_a_field_stands_in_no_state(world):
    """The world model is told what was done and not what was answered."""
    known, spoken = PhoneKnowledge(world), re.compile("|".join(map(re.escape, FIELDS.values())))
    for i, task in enumerate(world.split("train")[:40]):
        episode = PhoneEpisode(world, task, Rules(form_after_call=True), i)
        run_scripted(episode, RetryFromCsr(episode, world, random.Random(i)))
        assert any(spoken.search(turn.observation) for turn in episode.turns) or episode.success
        assert not spoken.search(known.state(episode.request, episode.turns))


@pytest.mark.parametrize("number", ["\ud800", "\u0000", "😀" * 20, "<|/state|>", "x" * 50, ""])
def test_whatever_was_dialled_can_be_said_to_the_world_model(known, number):
    """A lone surrogate is legal JSON and has no UTF-8 form."""
    state = known.state("Please.", [Turn(phone_call(number), "{}", "wrong_department")])
    assert len(state) < 200 and state.isascii()


def test_what_is_learned_is_what_the_tools_answer(known):
    assert {name: set(tools) for name, tools in known.learned.items()} == {
        "phone": {"make_phone_call"},
        "phone+form": {"make_phone_call", "auth_info_form"},
        "all": set(TOOLS),
    }
    assert "answered with\nX" in known.hint.format(reply="X")


# --- what it is asked ------------------------------------------------------------------------


def test_whom_it_means_to_call_is_asked_once_a_directory_was_read(known, looked_up):
    filled, bank = Turn(form(["email"]), '{"unavailable": ["email"]}', "ok"), looked_up("Harbor Bank")
    assert known.intention([]) is known.intention([filled]) is known.intention([looked_up("Nobody Knows")]) is None
    assert known.intention([bank, looked_up("Nobody Knows")]) is None  # the last one counts
    blank = known.intention([looked_up("Nobody Knows"), bank, filled])
    assert blank == known.intention([bank])
    before, _, after = written(blank.call).partition(blank.value)
    assert (before, after) == ('make_phone_call<|args|>{"phone_number": "', '", "auth_info": {}}')


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('800-555-0002", "auth', "800-555-0002"),
        ("800-555-0002", "800-555-0002"),
        ("800-555-0009", None),  # not in the directory
        ("80-555-0002", None),
        ("", None),
    ],
)
def test_the_intended_number_must_be_listed(known, looked_up, text, number):
    question = known.question([looked_up("Harbor Bank")], text)
    assert question == (number and Call("make_phone_call", {"phone_number": number, "auth_info": {}}))
    assert known.question([], text) is None


def test_the_directory_is_the_last_one_read(known, looked_up):
    bank, shop = looked_up("Harbor Bank"), looked_up("Summit Stores")
    assert known.question([bank, shop], "800-555-0002") is None
    assert known.question([bank, shop], "800-555-0009") == phone_call("800-555-0009")


# --- a company that nobody knows -------------------------------------------------------------

_NUMBER = re.compile(r"\d{3}-\d{3}-\d{4}")
_DIRECTORY = re.compile(r"(?<=Directory: )[^.]+(?=\. Previous)")


def disguised(state: str, reply: str, company, names, rng: random.Random) -> str:
    """How a prompt was edited as text before turns had a structure: what `anonymise` must come to."""
    if _NUMBER.search(reply):
        return state
    if found := _DIRECTORY.search(state):
        lines = found[0].split("; ")
        told = state[found.end() :] + reply
        lines = [x for x in lines if x[-12:] in told or x[:-13] in told or rng.random() < 0.5]
        rng.shuffle(lines)
        state = state[: found.start()] + "; ".join(lines) + state[found.end() :]
    own = company.name.split()[0]
    state = re.sub(rf"\b{re.escape(own)}\b", rng.choice(names), state)
    made_up = {d.phone: d.phone[:-4] + f"{rng.randrange(10_000):04d}" for d in company.departments}
    return _NUMBER.sub(lambda number: made_up.get(number[0], number[0]), state)


def prompt(known: PhoneKnowledge, request: str, turns, call: Call) -> str:
    return f"<|state|>{known.state(request, turns)}<|/state|><|action|>{written(call)}<|/action|><|predict_csr|>"


def test_what_is_made_unknown_reads_as_it_always_did(world):
    """Every kind of caller and answer; the same text from the same draws, and as many of them."""
    known = PhoneKnowledge(world, (1, 2))
    names = sorted({world.companies[t.company_id].name.split()[0] for t in world.split("train", (1, 2))})
    changed, kinds = 0, Counter()
    for i, task in enumerate(world.split("train")[::4]):
        for policy in ("oracle", "random", "retry-from-csr"):
            episode = PhoneEpisode(world, task, Rules(form_after_call=i % 2 == 0), i)
            run_scripted(episode, REFERENCE_POLICIES[policy](episode, world, random.Random(i)))
            for n, turn in enumerate(episode.turns):
                if not turn.tool:
                    continue
                example = as_example(task.task_id, episode.request, episode.turns[: n + 1])
                before = prompt(known, example.request, example.turns, example.call)
                one, two = random.Random(f"{i}/{n}"), random.Random(f"{i}/{n}")
                expected = disguised(before, example.reply, world.companies[task.company_id], names, one)
                assert prompt(known, *known.anonymise(example, two)) == expected
                assert one.random() == two.random()
                changed += expected != before
                kinds[turn.tool, turn.status] += 1
    assert changed > 700 and len(kinds) >= 6, kinds


@pytest.fixture
def told(tiny, looked_up):
    """told(reply): an empty-handed call of a company's second department; and the company."""
    company = tiny.companies["bank"]
    number = company.departments[1].phone

    def make(reply: str) -> Example:
        turns = [looked_up(company.name), Turn(phone_call(number), reply, "auth_failed")]
        return as_example("bill", f"Please call {company.name}.", turns)

    return make, company


@pytest.fixture
def anywhere(tiny) -> PhoneKnowledge:
    """Knows one company by another name, so that nobody's own name is drawn."""
    known = PhoneKnowledge(tiny)
    known._names = ["Quux"]
    return known


def test_nothing_is_left_that_only_one_company_has(told, anywhere):
    make, company = told
    called_department, own = company.departments[1], company.name.split()[0]
    others = {d.name for d in company.departments} - {called_department.name}
    kept, orders, real = Counter(), set(), 0
    for seed in range(400):
        example = make(f"{called_department.name}. Your name, please.")
        request, turns, call = anywhere.anonymise(example, random.Random(seed))
        assert request == f"Please call Quux {company.name.split()[1]}."
        everything = " ".join([request, written(call), *(written(t.action) + t.observation for t in turns)])
        assert own not in everything
        real += sum(d.phone in everything for d in company.departments)
        numbers = {d["name"]: d["phone"] for d in json.loads(turns[0].observation)["departments"]}
        assert call == phone_call(numbers[called_department.name]), "the call goes to the line that is listed"
        kept.update(list(numbers))
        orders.add(tuple(numbers))
    assert real < 5, "a made-up number is a real one by accident only"
    assert kept.pop(called_department.name) == 400 and set(kept) == others
    assert all(140 < n < 260 for n in kept.values()), "about half of the other lines"
    assert len(orders) > len(others) + 1


def test_a_department_that_the_reply_names_stays_listed(told, anywhere):
    make, company = told
    last = company.departments[-1].name
    for seed in range(50):
        _, turns, _ = anywhere.anonymise(make(f"Ask {last}."), random.Random(seed))
        assert f'"{last}"' in turns[0].observation


def test_a_reply_with_numbers_changes_nothing(told, anywhere):
    make, company = told
    example = make(json.dumps({"phone_number": company.departments[0].phone}))
    unchanged = (example.request, list(example.turns), example.call)
    assert anywhere.anonymise(example, random.Random(0)) == unchanged


def test_what_was_malformed_is_made_unknown_too(told, anywhere):
    make, company = told
    example = make("Your name, please.")
    garbage = Turn(Malformed(f"call {company.name}", "no"), '{"error": "no"}', "error")
    turns = (*example.turns, garbage, Turn(Hangup(), "", "stopped"))
    _, masked, _ = anywhere.anonymise(dataclasses.replace(example, turns=turns), random.Random(0))
    assert masked[1].action == Malformed("call Quux Bank", "no") and masked[2] == turns[2]


def test_names_are_those_of_the_companies_that_are_trained_on(world):
    for levels in ((1,), (5,), (1, 2, 3, 4, 5)):
        names = {world.companies[t.company_id].name.split()[0] for t in world.split("train", levels)}
        example = as_example("test-000", "Please call Nobody.", [called("800-555-0001")])
        known = PhoneKnowledge(world, levels)
        company = world.companies[next(t for t in world.tasks if t.task_id == "test-000").company_id]
        example = dataclasses.replace(example, request=f"Please call {company.name}.")
        drawn = {known.anonymise(example, random.Random(i))[0].split()[2] for i in range(1000)}
        assert drawn == names


# --- dreams ----------------------------------------------------------------------------------

BILLING, SALES = phone_call("800-555-0003"), phone_call("800-555-0005")


@pytest.fixture
def dreamt(tiny):
    """dreamt(replies, actions, ...): an episode whose phone is answered with `replies`, over and over."""

    def play(replies, *actions, task="bill", agreement=1.0) -> PhoneEpisode:
        env = PhoneEnvironment(tiny)
        task = next(t for t in tiny.tasks if t.task_id == task)
        responder = env.knowledge.responder(task, agreement)
        episode = env.episode(task, 0, responder)
        for action in actions:
            if env.knowledge.is_dreamt(action):
                responder.heard(replies)
            episode.step(action)
        return episode

    return play


def test_only_calls_are_dreamt(known):
    assert known.is_dreamt(BILLING)
    assert not any(map(known.is_dreamt, (search("x"), form(["email"]), Hangup(), Malformed("make_phone_call", "no"))))


def test_in_a_dream_the_world_model_answers_the_phone(dreamt):
    """The real Billing demands two fields; here it is content with nothing."""
    episode = dreamt([YES] * 4, search("Harbor Bank"), BILLING)
    assert (episode.outcome().success, episode.outcome().reward, episode.stop) == (True, 1.0, StopReason.SUCCESS)
    assert json.loads(episode.turns[1].observation) == json.loads(YES)


@pytest.mark.parametrize(("replies", "agreement", "success"), VERDICTS)
def test_success_needs_agreement_and_the_agent_hears_the_verdict(dreamt, replies, agreement, success):
    episode = dreamt(replies, BILLING, agreement=agreement)
    assert episode.success == success
    heard = json.loads(episode.turns[0].observation)
    assert (heard["status"] == "success") == success
    assert heard["status"] in ("success", "auth_failed", "unreadable")


@pytest.mark.parametrize("number", ["800-555-0005", "800-555-9999"])
def test_the_success_of_another_department_serves_nobody(dreamt, number):
    """Sales, or a number that nobody has, says it is done; the charge is Billing's."""
    episode = dreamt([YES], phone_call(number), Hangup())
    assert (episode.turns[0].status, episode.success) == ("success", False)
    assert episode.stop is StopReason.AGENT_STOPPED


def test_every_goal_has_to_be_served(dreamt):
    """Disputing a charge is Billing's, closing an account Customer Service's; either order."""
    first = phone_call("(800) 555 0001")
    assert dreamt([YES], first, BILLING, task="two").success
    assert not dreamt([YES], first, Hangup(), task="two").success


def test_the_user_of_a_dream_is_real(dreamt, tiny):
    episode = dreamt([YES], form(["account_number", "billing_zip"]), BILLING)
    given = json.loads(episode.turns[0].observation)
    assert given["account_number"] == tiny.profiles["all"].values["account_number"] and episode.success
    greedy = form(["name", "email", "date_of_birth", "account_number"])
    assert dreamt([YES], greedy, BILLING).turns[0].status == "declined"


def test_who_answers_in_a_dream_knows_no_rule(tiny):
    responder = PhoneKnowledge(tiny).responder(tiny.tasks[0], 1.0)
    assert isinstance(responder, DreamtCsr)
    assert "HiddenRule" not in repr(vars(responder))


# --- what it knows ---------------------------------------------------------------------------


def truthful(world):
    """Answers questions as the rules say."""
    rng = random.Random(0)
    rules = {d.phone: world.rules[c.company_id, d.name] for c in world.companies.values() for d in c.departments}

    def answer(question: Question) -> str:
        rule = rules[question.call.arguments["phone_number"]]
        message = say(rng, "missing", False, dept=rule.department, fields=rule.required)
        return json.dumps({"status": SITUATION_STATUS["missing"], "message": message})

    return lambda questions: [answer(q) for q in questions]


def askable(world, split: str) -> list[tuple[str, str]]:
    companies = {t.company_id for t in world.split(split)}
    return [key for key, rule in world.rules.items() if key[0] in companies and rule.required and not rule.after]


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_perfect_world_model_names_every_rule(world, split):
    known = PhoneKnowledge(world, (1, 2))  # asked about all companies of the split, whatever is trained on
    assert known.examine(truthful(world), split) == {
        "rule_accuracy": 1.0,
        "rule_accuracy_typical": 1.0,
        "n": len(askable(world, split)),
    }
    assert known.examine(lambda questions: [], "nowhere")["n"] == 0


def test_one_field_too_many_or_too_few_is_wrong(world):
    """A world model that believes other rules for every third department is right about the other two thirds."""
    keys = askable(world, "test")
    believed = dict(world.rules)
    for i, key in enumerate(keys[::3]):
        required = believed[key].required
        spare = next(f for f in FIELDS if f not in required)
        others = required[1:] if i % 2 and len(required) > 1 else (*required, spare)
        believed[key] = dataclasses.replace(believed[key], required=others)
    found = PhoneKnowledge(world).examine(truthful(dataclasses.replace(world, rules=believed)), "test")
    typical = [world.rules[key].variation == "typical" for key in keys]
    changed = [i % 3 == 0 for i in range(len(keys))]
    right = [t for t, c in zip(typical, changed, strict=True) if not c]
    assert found["rule_accuracy"] == pytest.approx(len(right) / len(keys))
    assert found["rule_accuracy_typical"] == pytest.approx(sum(right) / sum(typical))
    assert found["rule_accuracy"] != found["rule_accuracy_typical"]


def test_rules_are_asked_with_empty_hands_and_without_telling(tiny):
    """Fraud comes after another call, Sales demands nothing: neither is asked about."""
    known = PhoneKnowledge(tiny)
    asked = rule_questions(tiny, ["bank", "shop"])
    assert known.rules("train") == asked  # nobody wants anything of the shop, and it would not be asked about
    assert [q.question.call for q in asked] == [phone_call(f"800-555-000{n}") for n in (1, 3, 4)]
    texts = [prompt(known, q.question.request, q.question.turns, q.question.call) for q in asked]
    assert not any(spoken in text for text in texts for spoken in FIELDS.values())
    assert all("Step 2. Directory: Customer Service 800-555-0001; " in text for text in texts)


def test_a_call_may_be_made_for_another_goal(tiny):
    """The number is that of the department called, the wish that of the other one."""
    bank = tiny.companies["bank"]
    question = empty_handed(tiny, bank, "Billing", "Loans")
    assert question.request == "Please call Harbor Bank for me: defer a loan payment."
    assert question.call == phone_call("800-555-0003")
    [asked] = [q for q in rule_questions(tiny, ["bank"]) if q.department == "Billing"]
    assert asked.question == empty_handed(tiny, bank, "Billing", "Billing")
    assert (asked.truth, asked.variation) == ({"account_number", "billing_zip"}, "typical")


def test_meaning_is_that_of_the_phrasings(known):
    assert known.meaning(YES) == meaning(YES) == known.meaning(YES.replace("Done", "Settled")) != known.meaning(NO)
    assert hash(known.meaning(NO)) == hash(known.meaning(NO))
