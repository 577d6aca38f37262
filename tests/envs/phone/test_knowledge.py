"""knowledge: what a world model is told and asked, what is true, how a company is made unknown, who answers a dream."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import re
from collections import Counter

import pytest
from scripted import NO, VERDICTS, YES

from lfo.envs.base import written
from lfo.envs.phone import generate_world
from lfo.envs.phone import knowledge as knowledge_module
from lfo.envs.phone.callers import REFERENCE_POLICIES, Oracle, RandomForm, run_scripted
from lfo.envs.phone.csr import DreamtCsr
from lfo.envs.phone.environment import PhoneEnvironment
from lfo.envs.phone.episode import PhoneEpisode, Rules
from lfo.envs.phone.knowledge import SENT, PhoneKnowledge
from lfo.envs.phone.phrasings import meaning, read_reply
from lfo.envs.phone.tools import PHONE, TOOLS, form, phone_call, search, search_company
from lfo.envs.phone.vocabulary import CIRCUMSTANCES, DEPARTMENT_OF_GOAL, FIELDS
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
    assert state_before(known, "Please.", []) == (
        "Please. Step 1. Directory: . Previous Actions: . Collected Auth: []. Unavailable: []."
    )
    said = "(Billing. I need your email address.)"
    rest = f"make_phone_call 800-555-0003 auth_failed {said}; none error; auth_info_form refused."
    collected = 'Collected Auth: ["email"]. Unavailable: ["last_4_cc"].'
    directory = "Please. Step 6. Directory: Billing 800-555-0003; Sales 800-555-0005."
    assert state_before(known, "Please.", turns) == (
        f"{directory} Previous Actions: search_company ok; auth_info_form ok; {rest} {collected}"
    )
    assert state_before(known, "Please.", turns, dropped=2) == f"{directory} Previous Actions: {rest} {collected}"
    hung_up = [Turn(Hangup(), "", "stopped")]
    assert "Previous Actions: none stopped." in state_before(known, "Please.", hung_up)


def test_the_department_that_is_called_is_named(known, looked_up):
    """Where the directory has its number: who reads the state need not look it up."""
    billing = "800-555-0003"
    calls = [phone_call(billing), phone_call(billing, {"email": "x"}), phone_call("800-555-9999"), form([])]
    states = [known.state(Question("Please.", (looked_up("Harbor Bank"),), call)) for call in calls]
    named = [state.partition("Unavailable: [].")[2] for state in states]
    assert named == [" Calls Billing.", " Calls Billing.", "", ""]


def test_values_of_the_form_never_enter_a_state(world):
    """What the user gave stands in no state of any step, neither of exploratory episodes nor of the oracle's."""
    seen, known = 0, PhoneKnowledge(world)
    for i, task in enumerate(world.split("train")[:60]):
        episode = PhoneEpisode(world, task, Rules(slack=9), i)
        run_scripted(episode, (Oracle, RandomForm)[i % 2](episode, world, random.Random(i)))
        for step in range(len(episode.turns) + 1):
            state = state_before(known, episode.request, episode.turns[:step])
            for department in world.companies[task.company_id].departments:
                state = state.replace(department.phone, "")  # four digits may be like those of a value
            assert not [v for v in episode.collected.values() if v in state]
            seen += len(episode.collected)
    assert seen > 300


def test_what_csrs_said_stands_in_the_state(world):
    """Word by word, in the order of the calls; of what happened otherwise only that it did."""
    known, heard = PhoneKnowledge(world), 0
    for i, task in enumerate(world.split("train")[:40]):
        episode = PhoneEpisode(world, task, seed=i)
        run_scripted(episode, RandomForm(episode, world, random.Random(i)))
        said = [json.loads(turn.observation)["message"] for turn in episode.turns if turn.tool == PHONE]
        state = state_before(known, episode.request, episode.turns)
        assert re.findall(r"make_phone_call \S+ \w+ \((.*?)\)(?=; |\. Collected)", state) == said
        heard += len(said)
    assert heard > 40


def test_a_department_that_is_supposed_to_have_served_said_so(known, looked_up):
    turns = known.supposed([looked_up("Harbor Bank")], phone_call("800-555-0003"), NO)
    said = "; make_phone_call 800-555-0003 success (Billing. Done.). Collected"
    assert said in state_before(known, "Please.", turns)


@pytest.mark.parametrize("number", ["\ud800", "\u0000", "😀" * 20, "<|/state|>", "x" * 50, ""])
def test_whatever_was_dialled_can_be_said_to_the_world_model(known, number):
    """A lone surrogate is legal JSON and has no UTF-8 form."""
    state = state_before(known, "Please.", [Turn(phone_call(number), "{}", "wrong_department")])
    assert len(state) < 200 and state.isascii()


@pytest.mark.parametrize("said", ["\ud800", "\u0000", "😀", 'a "b" \\ c\n', "x"])
def test_whatever_was_said_can_be_said_to_the_world_model(known, said):
    """In a dream a model answers the phone, and may escape what has no UTF-8 form."""
    reply = json.dumps({"status": "auth_failed", "message": said})
    state = state_before(known, "Please.", [Turn(phone_call("1"), reply, "auth_failed")])
    assert state.isascii() and state.isprintable()


def test_what_is_learned_is_what_the_tools_answer(known):
    assert {name: set(tools) for name, tools in known.learned.items()} == {
        "phone": {"make_phone_call"},
        "phone+form": {"make_phone_call", "auth_info_form"},
        "all": set(TOOLS),
    }
    hint = known.hint.format(source="memory", reply="X")  # in words that are true of feedback as well
    assert hint == "A note (memory), which may be wrong, on what is answered here:\nX"


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


def test_who_has_served_is_not_asked_about_again(known, looked_up):
    """Who refused is, and so is who serves a company that is looked up only then."""
    bank, number = looked_up("Harbor Bank"), "800-555-0003"
    assert known.question([bank, called(number)], number) == phone_call(number)
    assert known.question([bank, called(number, "success")], number) is None
    assert known.question([bank, called(number, "success")], "800-555-0001") == phone_call("800-555-0001")


@pytest.mark.parametrize("status", ["auth_failed", "success", "routing_violation", "wrong_department"])
def test_what_is_supposed_of_a_reply(known, looked_up, status):
    """Whoever asks for something would serve who has it; whoever sends the caller elsewhere would not."""
    turns, call = (looked_up("Harbor Bank"),), phone_call("800-555-0003")
    after = known.supposed(turns, call, json.dumps({"status": status, "message": "Billing. Call Sales first."}))
    served = Turn(call, '{"status": "success", "message": "Billing. Done."}', "success")
    assert after == (turns if status in SENT else (*turns, served))


# --- what is remembered ----------------------------------------------------------------------

JOINT = "Please call Harbor Bank for me: dispute a charge. It is a joint account."


def test_cases_by_hand(known, looked_up):
    """Narrowest first: this company in these circumstances, such a company in these, and either in whatever ones."""
    turns, billing = (looked_up("Harbor Bank"),), phone_call("800-555-0003")
    here, there = ("bank", "Billing", False), ("banking", "Billing", False)
    assert known.cases(Question(JOINT, turns, billing)) == (
        (*here, ("joint_account",)),
        (*there, ("joint_account",)),
        here,
        there,
    )
    here, there = ("bank", "Billing", True), ("banking", "Billing", True)
    after = (*turns, called("800-555-0001", "success"))
    assert known.cases(Question("Please call.", after, billing)) == ((*here, ()), (*there, ()), here, there)
    refused = (*turns, called("800-555-0001"))  # nobody has served
    assert known.cases(Question(JOINT, refused, billing)) == known.cases(Question(JOINT, turns, billing))


def test_what_names_only_a_part_is_no_case(known, looked_up):
    turns = (looked_up("Harbor Bank"),)
    assert known.cases(Question(JOINT, turns, phone_call("800-555-0003", {"email": "e"}))) == ()
    assert known.cases(Question(JOINT, turns, phone_call("800-555-9999"))) == ()  # nobody's number


def test_a_case_can_be_remembered(known, looked_up):
    """The same for the same, whatever else was said: other words for a circumstance, other goals, other refusals."""
    bank, billing = looked_up("Harbor Bank"), phone_call("800-555-0003")
    cases = known.cases(Question(JOINT, (bank,), billing))
    assert len({*cases, *cases}) == 4
    other = "I need help with Harbor Bank. I want to close my account. Two of us hold the account."
    assert known.cases(Question(other, (bank, called("800-555-0002")), billing)) == cases
    assert not set(known.cases(Question(JOINT, (bank,), phone_call("800-555-0004")))) & set(cases)


def test_words_by_hand(known, looked_up):
    bank = looked_up("Harbor Bank")
    turns = (bank, called("800-555-0001", "success"), called("800-555-0005"))
    assert known.words(Question(JOINT, (bank,), phone_call("800-555-0002"))) == f"{JOINT} Fraud_Department"
    after = Question(JOINT, turns, phone_call("800-555-0002"))
    assert known.words(after) == f"{JOINT} Fraud_Department after_Customer_Service"
    assert known.words(Question(JOINT, (bank,), phone_call("800-555-9999"))) == JOINT


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


def state_before(known: PhoneKnowledge, request: str, turns, dropped: int = 0) -> str:
    """What is known before some call that is no phone call."""
    return known.state(Question(request, tuple(turns), form([])), dropped)


def prompt(known: PhoneKnowledge, request: str, turns, call: Call) -> str:
    state = known.state(Question(request, tuple(turns), call))
    return f"<|state|>{state}<|/state|><|action|>{written(call)}<|/action|><|predict_csr|>"


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
    assert not [hidden for hidden in ("HiddenRule", "Demand", "Effect") if hidden in repr(vars(responder))]


# --- what is true ----------------------------------------------------------------------------

drawn = functools.cache(generate_world)
DRAWN = [(0, 4), (0, 0), (5, 4), (3, 6)]  # seed and kinds of circumstances; the last two have who serves instead


def looked_up_at(world, company) -> tuple[Turn, ...]:
    return knowledge_module.looked_up(world, company.company_id)


def test_an_episode_begins_with_looking_a_company_up(world):
    for company in list(world.companies.values())[:5]:
        [turn] = looked_up_at(world, company)
        episode = PhoneEpisode(world, next(t for t in world.tasks if t.company_id == company.company_id))
        episode.step(turn.action)
        assert episode.turns == [turn]


@pytest.mark.parametrize(("seed", "circumstances"), DRAWN)
@pytest.mark.parametrize("replies", ["list", "reasons"])
def test_the_truth_is_what_an_empty_handed_caller_is_answered(seed, circumstances, replies):
    """To the first call of an episode, whoever is called; the same but for the wording, and also in its kind."""
    world = drawn(seed, circumstances)
    known, seen, explained = PhoneKnowledge(world, reasons=replies == "reasons"), Counter(), 0
    reasons = [reason for kind in CIRCUMSTANCES.values() for reason in kind.because]
    for task in world.tasks[::9]:
        company = world.companies[task.company_id]
        turns = looked_up_at(world, company)
        for department in company.departments:
            question = Question(task.request, turns, phone_call(department.phone))
            episode = PhoneEpisode(world, task, Rules(replies=replies))
            episode.step(turns[0].action)
            truth, answer = known.truth(question), episode.step(question.call)
            assert meaning(truth) == meaning(answer)
            told = [any(reason in text.lower() for reason in reasons) for text in (truth, answer)]
            assert told[0] == told[1]
            seen[episode.turns[-1].status] += 1
            explained += told[0]
    assert set(seen) == {"auth_failed", "success", *SENT} and seen["auth_failed"] > 100
    assert (explained > 0) == (replies == "reasons" and circumstances > 0)


@pytest.mark.parametrize(("seed", "circumstances"), DRAWN)
def test_the_truth_goes_on_after_what_is_supposed(seed, circumstances):
    """It is what the caller hears who has everything, hands it over, and calls the next one with empty hands."""
    world, compared = drawn(seed, circumstances), 0
    known = PhoneKnowledge(world)
    for task in world.split("train", (3, 5))[::4]:
        company, truth = world.companies[task.company_id], world.profiles[task.profile_id].values
        phones = {d.name: d.phone for d in company.departments}
        turns = looked_up_at(world, company)
        episode = PhoneEpisode(world, task)
        for name in world.demands_of(task).to_call():
            question = Question(task.request, turns, phone_call(phones[name]))
            assert meaning(known.truth(question)) == meaning(episode.step(question.call))
            if episode.stop:
                break  # nothing was demanded of the last one
            turns = known.supposed(turns, question.call, known.truth(question))
            episode.step(phone_call(phones[name], truth))
            compared += 1
        assert episode.success
    assert compared > 90


def test_the_truth_is_the_same_each_time(world):
    """Also of another world model's knowledge; other requests and numbers are answered in other words."""
    one, two, texts = PhoneKnowledge(world), PhoneKnowledge(world, (1,)), set()
    company = next(c for c in world.companies.values() if world.rules.get((c.company_id, "Billing")))
    number = next(d.phone for d in company.departments if d.name == "Billing")
    for i in range(30):
        request = f"Please call {company.name} for me: dispute a charge." + " Please." * i
        question = Question(request, looked_up_at(world, company), phone_call(number))
        assert one.truth(question) == one.truth(question) == two.truth(question)
        texts.add(one.truth(question))
    assert len(texts) > 4 and len({meaning(text) for text in texts}) == 1


def test_there_is_no_such_number_at_another_company(known, looked_up, tiny):
    """The shop was looked up by mistake; the bank is meant."""
    question = Question(JOINT, (looked_up("Summit Stores"),), phone_call("800-555-0009"))
    assert json.loads(known.truth(question)) == {
        "status": "wrong_department",
        "message": "This number is not in service.",
    }


# --- what it knows ---------------------------------------------------------------------------


def on_the_way(known: PhoneKnowledge, tiny, goals: str) -> list[tuple]:
    """Whom a caller of the hand-made bank calls, and what is answered: status, then fields or departments."""
    request = f"Please call Harbor Bank for me: {goals}"
    steps = known.way(request, looked_up_at(tiny, tiny.companies["bank"]), "some")
    assert all((s.task_id, s.company_id, s.question.request) == ("some", "bank", request) for s in steps)
    assert [s.truth for s in steps] == [known.truth(s.question) for s in steps]
    return [(s.department, *(x if isinstance(x, str) else set(x) for x in read_reply(s.truth) if x)) for s in steps]


CS, FRAUD = "Customer Service", "Fraud Department"
IDS = {"account_number", "last_4_ssn"}
BILL = {"account_number", "billing_zip"}


def test_ways_by_hand(known, tiny):
    assert on_the_way(known, tiny, "dispute a charge.") == [("Billing", "auth_failed", BILL)]
    assert on_the_way(known, tiny, "hear about offers.") == [("Sales", "success")]
    fraud = [(CS, "auth_failed", IDS), (FRAUD, "auth_failed", IDS | {"last_4_cc"})]
    assert on_the_way(known, tiny, "report a fraud.") == [(FRAUD, "routing_violation", {CS}), *fraud]
    both = on_the_way(known, tiny, "report a fraud and dispute a charge.")
    assert both == [("Billing", "auth_failed", BILL), (FRAUD, "routing_violation", {CS}), *fraud]  # the table's order
    # Customer Service has served already when the Fraud Department asks for it.
    assert on_the_way(known, tiny, "report a fraud and close my account.") == fraud


def test_ways_in_circumstances_by_hand(known, tiny):
    joint, abroad = "It is a joint account.", "I am calling from abroad."
    assert on_the_way(known, tiny, f"dispute a charge. {joint}") == [
        ("Billing", "auth_failed", BILL | {"phone_number"})
    ]
    assert on_the_way(known, tiny, f"report a fraud. {abroad}") == [
        (FRAUD, "routing_violation", {CS}),
        (CS, "routing_violation", {"Billing"}),
        ("Billing", "auth_failed", BILL),
        (CS, "auth_failed", IDS),
        (FRAUD, "auth_failed", IDS | {"last_4_cc"}),
    ]
    firm = "It is a business account."
    assert on_the_way(known, tiny, f"report a fraud. {firm}") == [
        (FRAUD, "wrong_department", {CS}),
        (CS, "auth_failed", IDS),
    ]
    assert on_the_way(known, tiny, f"hear about offers. {joint} {abroad} {firm}") == [
        ("Sales", "wrong_department", {CS}),
        (CS, "routing_violation", {"Billing"}),
        ("Billing", "auth_failed", BILL | {"phone_number"}),
        (CS, "auth_failed", IDS | {"phone_number"}),
    ]


def test_nobody_calls_on_when_everything_is_done(known, tiny):
    """Two goals are moved, each by its own department; Customer Service serves both, and the way is at its end."""
    assert on_the_way(known, tiny, "dispute a charge and defer a loan payment. It is a business account.") == [
        ("Billing", "wrong_department", {CS}),
        (CS, "auth_failed", IDS),
    ]


def test_a_way_needs_a_directory(known, looked_up):
    assert known.way(JOINT, ()) == [] == known.way(JOINT, (looked_up("Nobody Knows"),))
    assert known.way("Please call Harbor Bank for me: activate roaming.", (looked_up("Harbor Bank"),)) == []
    only = known.way(JOINT, (looked_up("Harbor Bank"),))
    assert [(s.task_id, s.department) for s in only] == [("", "Billing")]


@pytest.mark.parametrize(("seed", "circumstances"), DRAWN)
def test_a_way_leads_to_whom_the_task_needs(seed, circumstances):
    """Exactly those that the goals need, each once and in an order that routing allows, and who sends the caller on.

    Who sends the caller on usually serves one of the goals, or is needed, only later.
    """
    world = drawn(seed, circumstances)
    known, longest = PhoneKnowledge(world), 0
    for task in world.tasks:
        demanded, turns = world.demands_of(task), looked_up_at(world, world.companies[task.company_id])
        steps = known.way(task.request, turns, task.task_id)
        serving = [s for s in steps if read_reply(s.truth)[0] not in SENT]
        sending = [s.department for s in steps if s not in serving]
        order = [s.department for s in serving]
        assert sorted(order) == sorted(demanded.to_call())
        assert all(demanded.of[name].after in ("", *order[:i]) for i, name in enumerate(order))
        assert [read_reply(s.truth)[1] for s in serving] == [set(demanded.of[name].required) for name in order]
        assert set(sending) <= {*demanded.to_call(), *(DEPARTMENT_OF_GOAL[goal] for goal in task.goals)}
        assert len(set(sending)) == len(sending)
        assert all(s.question.call.arguments["auth_info"] == {} for s in steps)
        longest = max(longest, len(steps))
    assert longest > 4


def test_steps_by_hand(tiny):
    """Two tasks want the same of the bank: it is asked about once. Who has served first is not asked again."""
    asked = PhoneKnowledge(tiny, (5,)).steps("train")  # of all levels, whatever is trained on
    assert [(s.task_id, s.department, read_reply(s.truth)[0]) for s in asked] == [
        ("bill", "Billing", "auth_failed"),
        ("fraud", FRAUD, "routing_violation"),
        ("fraud", CS, "auth_failed"),
        ("fraud", FRAUD, "auth_failed"),
        ("loan", "Loans", "auth_failed"),
        ("offer", "Sales", "success"),
        ("two", CS, "auth_failed"),
        ("two", "Billing", "auth_failed"),
    ]
    assert PhoneKnowledge(tiny, (5,)).steps("train", 2) == asked[:4]  # its first two tasks
    assert PhoneKnowledge(tiny).steps("nowhere") == []


def test_steps_are_asked_with_empty_hands_and_without_telling(world):
    """Neither a value nor a field nor a reason stands in what is asked; who has served does."""
    known = PhoneKnowledge(world)
    words = [*FIELDS.values(), *(reason for kind in CIRCUMSTANCES.values() for reason in kind.because)]
    for step in known.steps("test"):
        text = prompt(known, step.question.request, step.question.turns, step.question.call)
        assert not [word for word in words if word in text.lower()]
        assert '"auth_info": {}' in text and "Collected Auth: []. Unavailable: []." in text
        assert text.count(" success") == len(step.question.turns) - 1


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_perfect_world_model_answers_every_step(world, split):
    """In words of its own: it gives no reasons."""
    known, plain = PhoneKnowledge(world), PhoneKnowledge(world, (1, 2), reasons=False)
    truthful = lambda questions: [plain.truth(question) for question in questions]  # noqa: E731
    assert known.examine(truthful, split) == {
        "rule_accuracy": 1.0,
        "rule_accuracy_typical": 1.0,
        "rule_accuracy_way": 1.0,
        "n": len(known.steps(split)),
    }
    asked = [step.question for step in known.steps(split)]
    assert truthful(asked) != [known.truth(question) for question in asked]
    assert known.examine(truthful, split, 10)["n"] == len(known.steps(split, 10)) < len(asked)
    assert known.examine(lambda questions: [], "nowhere")["n"] == 0


def test_what_is_examined_by_hand(bank):
    """Of the eight steps of the hand-made tasks, one is a success, one sends the caller on, Loans is not typical."""
    known = PhoneKnowledge(bank)

    def scores(answer) -> list[float]:
        found = known.examine(lambda questions: [answer(question) for question in questions], "train")
        return [found[name] for name in ("rule_accuracy", "rule_accuracy_typical", "rule_accuracy_way", "n")]

    assert scores(lambda question: YES) == [1 / 8, 1 / 8, 0, 8]
    assert scores(lambda question: "gibberish") == [0, 0, 0, 8]
    sent = json.dumps({"status": "routing_violation", "message": f"{FRAUD}. Try {CS} first."})
    assert scores(lambda question: sent) == [1 / 8, 1 / 8, 1, 8]
    wrong_status = sent.replace("routing_violation", "wrong_department")
    assert scores(lambda question: wrong_status) == [0, 0, 0, 8]
    bill = "Billing. Give me your account number and billing ZIP code."
    named = lambda message: scores(lambda question: json.dumps({"status": "auth_failed", "message": message}))  # noqa: E731
    assert named(bill) == [2 / 8, 2 / 8, 0, 8]
    assert named(bill.replace("account number and ", "")) == [0, 0, 0, 8]  # a field too few
    assert named(bill.replace("your", "your email address,")) == [0, 0, 0, 8]  # one too many


@pytest.fixture
def bank(tiny):
    """The hand-made world, its bank typical of its trade."""
    rules = {key: dataclasses.replace(rule, variation="typical") for key, rule in tiny.rules.items()}
    return dataclasses.replace(tiny, rules=rules)


def test_typical_companies_are_scored_apart(world):
    known = PhoneKnowledge(world)
    steps = known.steps("test")
    typical = {s.question for s in steps if world.variation(s.company_id) == "typical"}
    knows = lambda questions: [known.truth(q) if q in typical else "gibberish" for q in questions]  # noqa: E731
    found = known.examine(knows, "test")
    assert found["rule_accuracy_typical"] == 1.0
    assert found["rule_accuracy"] == pytest.approx(len(typical) / len(steps)) and 0.5 < found["rule_accuracy"] < 0.9


def test_whoever_ignores_circumstances_is_wrong_about_many_steps(world):
    """The rules alone do not answer: a world model has to read the request."""
    deaf = PhoneKnowledge(dataclasses.replace(world, effects={}))
    found = PhoneKnowledge(world).examine(lambda questions: [deaf.truth(q) for q in questions], "validation")
    assert 0.2 < found["rule_accuracy"] < 0.7


def test_only_the_truth_and_who_asks_for_it_read_what_is_hidden(tiny, looked_up):
    """Whatever else is told, asked and remembered is the same in a world with other rules and effects."""
    rules = {k: dataclasses.replace(r, required=("email",), after="") for k, r in tiny.rules.items()}
    one, two = PhoneKnowledge(tiny), PhoneKnowledge(dataclasses.replace(tiny, rules=rules, effects={}))
    request = f"{JOINT} I am calling from abroad. It is a business account."
    turns = [
        looked_up("Harbor Bank"),
        Turn(form(["email"]), '{"unavailable": ["email"]}', "ok"),
        called("800-555-0001"),
    ]
    for turns_so_far in (turns[:1], turns):
        for number in (d.phone for d in tiny.companies["bank"].departments):
            question = Question(request, tuple(turns_so_far), phone_call(number))
            assert one.truth(question) != two.truth(question)
            for ask in (PhoneKnowledge.cases, PhoneKnowledge.words):
                assert ask(one, question) == ask(two, question)
            assert one.question(turns_so_far, number) == two.question(turns_so_far, number)
            assert one.supposed(turns_so_far, question.call, NO) == two.supposed(turns_so_far, question.call, NO)
            assert one.state(question) == two.state(question)
        assert one.intention(turns_so_far) == two.intention(turns_so_far)
        example = as_example("bill", request, turns_so_far)
        assert one.anonymise(example, random.Random(1)) == two.anonymise(example, random.Random(1))


def test_meaning_is_that_of_the_phrasings(known):
    assert known.meaning(YES) == meaning(YES) == known.meaning(YES.replace("Done", "Settled")) != known.meaning(NO)
    assert hash(known.meaning(NO)) == hash(known.meaning(NO))
