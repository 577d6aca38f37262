"""sampling: the order of tasks, which groups teach, what is read before imagining."""

from __future__ import annotations

import json
import random
import re
from collections import Counter

import pytest

from lfo.records import Turn
from lfo.sampling import (
    TaskStream,
    by_group,
    directory_of,
    disguised,
    empty_handed_call,
    informative,
    intended_number,
    shuffled,
)
from lfo.tokens import CALL_PREFIX, CallExample, state_text
from lfo.tools import ToolCall, parse_action, search_company


@pytest.fixture
def directory_turn(tiny):
    """directory_turn(name): the turn of looking a company up."""

    def make(name: str) -> Turn:
        return Turn("search", json.dumps(search_company(tiny.companies, name)), "search_company", "ok")

    return make


# --- tasks -----------------------------------------------------------------------------------


def test_every_epoch_is_a_permutation_and_no_two_are_alike(tiny):
    stream = TaskStream(tiny.tasks, seed=0)
    epochs = [stream.take(len(tiny.tasks)) for _ in range(3)]
    for epoch in epochs:
        assert sorted(t.task_id for t in epoch) == sorted(t.task_id for t in tiny.tasks)
    assert len({tuple(t.task_id for t in epoch) for epoch in epochs}) == 3
    assert stream.position == 3 * len(tiny.tasks)


def test_a_stream_goes_on_from_a_position(tiny):
    whole = TaskStream(tiny.tasks, seed=4).take(20)
    for position in (0, 1, 6, 13):
        assert TaskStream(tiny.tasks, 4, position).take(20 - position) == whole[position:]


def test_how_tasks_are_taken_does_not_matter(tiny):
    stream = TaskStream(tiny.tasks, seed=4)
    assert [t for n in (1, 4, 0, 7) for t in stream.take(n)] == TaskStream(tiny.tasks, 4).take(12)


def test_seeds_order_tasks_differently(world):
    orders = {tuple(t.task_id for t in TaskStream(world.split("train"), seed).take(20)) for seed in range(5)}
    assert len(orders) == 5


def test_no_task_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="no training task at these levels; widen `levels`"):
        TaskStream([], 0)


# --- groups ----------------------------------------------------------------------------------


def test_rows_come_by_group_in_their_order(make_trajectory):
    rows = [make_trajectory([1], [i], group=g) for i, g in enumerate((5, 2, 5, 2, 9))]
    assert {g: [r.tokens[-1] for r in group] for g, group in by_group(rows).items()} == {5: [0, 2], 2: [1, 3], 9: [4]}
    assert by_group([]) == {}


@pytest.mark.parametrize(("successes", "teaches"), [(0, False), (1, True), (3, True), (4, False)])
def test_a_group_teaches_when_some_succeed_and_some_fail(make_trajectory, successes, teaches):
    assert informative([make_trajectory([1], success=i < successes) for i in range(4)]) is teaches


def test_a_shaped_reward_does_not_make_a_group_informative(make_trajectory):
    assert not informative([make_trajectory([1], reward=r) for r in (0.0, 0.2, 0.7)])
    assert informative([make_trajectory([1], success=s, reward=0.5) for s in (True, False)])


# --- placebo ---------------------------------------------------------------------------------


@pytest.fixture
def calls():
    """Nine distinct calls of four tasks with a reply each, and two that were made twice."""
    sizes = {"a": 4, "b": 2, "c": 2, "d": 1}
    made = [
        CallExample((ord(task), i), (100 * ord(task) + i,), "success" if i else "auth_failed", f"{task}{i}", task)
        for task, size in sizes.items()
        for i in range(size)
    ]
    return [*made, made[0], made[5]]


def test_a_placebo_exchanges_replies_between_tasks(calls):
    """Prompts stay, every distinct reply is used once, none stays with its task, and the same call hears the same."""
    placebo = shuffled(calls, seed=0)
    assert [(c.prompt, c.task_id) for c in placebo] == [(c.prompt, c.task_id) for c in calls]
    assert {c.reply for c in placebo} == {c.reply for c in calls} and len({c.prompt for c in placebo}) == 9
    assert not any(c.reply_text.startswith(c.task_id) for c in placebo)
    assert placebo[9:] == [placebo[0], placebo[5]]
    told = {c.reply: (c.status, c.reply_text) for c in calls}
    assert all(told[c.reply] == (c.status, c.reply_text) for c in placebo)
    assert shuffled(calls, seed=0) == placebo != shuffled(calls, seed=1)


def test_a_placebo_depends_on_nothing_that_the_call_says(calls):
    """Over many steps a call of one task hears the five replies of the other three about equally often."""
    heard = Counter(shuffled(calls, seed)[0].reply_text for seed in range(1500))
    assert set(heard) == {"b0", "b1", "c0", "c1", "d0"} and max(heard.values()) < 1.5 * min(heard.values())


def test_a_call_without_another_task_is_left_out(calls):
    assert shuffled(calls[:4], seed=0) == [] == shuffled([], seed=0)
    few = shuffled(calls[:5], seed=0)  # four calls of one task, one of another: one pair can exchange
    assert sorted(c.task_id for c in few) == ["a", "b"]
    assert {c.reply_text[0] for c in few} == {"a", "b"} and all(c.reply_text[0] != c.task_id for c in few)


# --- disguise --------------------------------------------------------------------------------


@pytest.fixture
def told(tiny, directory_turn):
    """The state before an empty-handed call of a company's second department, as text, and the company."""
    company = next(c for c in tiny.companies.values() if len(c.departments) > 2)
    turn = directory_turn(company.name)
    state = state_text(f"Please call {company.name}.", [turn]) + empty_handed_call(company.departments[1].phone)
    return state, company


def test_a_disguise_leaves_nothing_that_only_one_company_has(told):
    state, company = told
    called, own = company.departments[1], company.name.split()[0]
    other = {d.name for d in company.departments} - {called.name}
    kept, orders, real = Counter(), set(), 0
    for seed in range(400):
        text = disguised(state, f"{called.name}. Your name, please.", company, ["Quux"], random.Random(seed))
        assert own not in text and f"Quux {company.name.split()[1]}" in text
        real += sum(d.phone in text for d in company.departments)
        listed = re.search(r"Directory: (.*?)\. Previous", text)[1].split("; ")
        numbers = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in listed}
        assert text.count(numbers[called.name]) == 2, "the call goes to the line that is listed"
        kept.update(list(numbers))
        orders.add(tuple(numbers))
    assert real < 5, "a made-up number is a real one by accident only"
    assert kept.pop(called.name) == 400 and set(kept) == other
    assert all(140 < n < 260 for n in kept.values()), "about half of the other lines"
    assert len(orders) > len(other) + 1


def test_a_department_that_the_reply_names_stays_listed(told):
    state, company = told
    last = company.departments[-1].name
    for seed in range(50):
        assert f"{last} 800" in disguised(state, f"Ask {last}.", company, ["Quux"], random.Random(seed))


def test_a_reply_with_numbers_is_not_disguised(told):
    state, company = told
    reply = json.dumps({"phone_number": company.departments[0].phone})
    assert disguised(state, reply, company, ["Quux"], random.Random(0)) == state


# --- imagination -----------------------------------------------------------------------------


def test_the_directory_is_the_last_one_read(directory_turn):
    other = Turn("form", "{}", "auth_info_form", "ok")
    bank, shop = directory_turn("Harbor Bank"), directory_turn("Summit Stores")
    assert directory_of([]) == {} == directory_of([other])
    assert directory_of([bank, other])["800-555-0002"] == "Fraud Department"
    assert directory_of([bank, other, shop]) == {"800-555-0009": "Sales"}
    assert directory_of([directory_turn("Nobody Knows")]) == {}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('800-555-0002", "auth', "800-555-0002"),
        ("800-555-0002", "800-555-0002"),
        ("800-555-0003", None),  # not in the directory
        ("80-555-0002", None),
        ("", None),
    ],
)
def test_the_intended_number_must_be_listed(text, number):
    assert intended_number(text, {"800-555-0002": "Fraud Department"}) == number


def test_an_empty_handed_call_gives_nothing():
    call = empty_handed_call("800-555-0002")
    assert parse_action(call) == ToolCall("make_phone_call", {"phone_number": "800-555-0002", "auth_info": {}})
    assert call.startswith(CALL_PREFIX)  # what the policy is asked with is the beginning of such a call
