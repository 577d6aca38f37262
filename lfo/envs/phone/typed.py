"""What people type at the prompt of ``lfo play``, read as actions; what is answered, shown as lines.

Knows what the caller has read so far, as an agent does, and nothing hidden. A line that cannot be read costs no turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from lfo.envs.base import ARGS_TAG, parse_action
from lfo.envs.phone.tools import FORM, SEARCH, TOOLS, phone_call
from lfo.envs.phone.vocabulary import FIELDS
from lfo.protocols import Episode
from lfo.types import Action, Call, Hangup, Malformed, StopReason, Turn

HELP = "Type: search COMPANY | ask FIELD, FIELD | call DEPARTMENT or NUMBER [with FIELD, FIELD] | hang up | help"
MORE_HELP = f"""{HELP}
search Harbor Bank              the company's directory
ask name, account number        the one form for the user, before the first call; asking for too much gets nothing
call Billing, call 800-555-0100 hands over all that the form gave; `with account number` only that; `with nothing`
hang up                         ends the episode
search_company{ARGS_TAG}{{...}}      a call as a model writes it
Fields: {", ".join(FIELDS.values())}"""
ENDINGS = {
    StopReason.SUCCESS: "Done: everything the user wanted is settled.",
    StopReason.AGENT_STOPPED: "You hung up; the user still wants something.",
    StopReason.MALFORMED: "Too many calls could not be read.",
    StopReason.MAX_TURNS: "That was the last turn; the user still wants something.",
}


class Unreadable(ValueError):
    """What was typed is no action; the message says what can be typed."""


def read_typed(text: str, episode: Episode) -> Action:
    """The action that a line means, given what was read in the episode so far.

    Raises:
        Unreadable: it means none.
    """
    text = text.strip()
    if ARGS_TAG in text:
        action = parse_action(text, TOOLS)
        if isinstance(action, Malformed):
            raise Unreadable(action.reason)
        return action
    word, _, rest = " ".join(text.split()).partition(" ")
    word = word.casefold()
    if word == "search" and rest:
        return Call(SEARCH, {"company_name": rest.strip(" .'\"")})
    if word == "ask" and rest:
        return Call(FORM, {"fields": _fields(rest)})
    if word == "call" and rest:
        return _phone_call(rest, episode.turns)
    if text.casefold().replace(" ", "") == "hangup":
        return Hangup()
    raise Unreadable(HELP)


def _fields(text: str) -> list[str]:
    """Fields by their names or as people say them, or a part of that which only one of them has."""
    found = []
    for said in filter(None, (part.strip(" .'\"") for part in re.split(r",| and ", text))):
        plain = re.sub(r"^(the|my|your|their) ", "", said.casefold()).replace("_", " ")
        names = {field: (field.replace("_", " "), spoken.casefold()) for field, spoken in FIELDS.items()}
        exact = [field for field, words in names.items() if plain in words]
        fitting = exact or [field for field, words in names.items() if any(plain in w for w in words)]
        if len(fitting) != 1:
            which = f"could be {' or '.join(FIELDS[f] for f in fitting)}" if fitting else "is no field"
            raise Unreadable(f"'{said}' {which}. Fields: {', '.join(FIELDS.values())}.")
        found += fitting
    return list(dict.fromkeys(found))


def _phone_call(text: str, turns: Sequence[Turn]) -> Call:
    whom, limited, fields = re.sub(r"^the ", "", text).partition(" with ")
    given = _given(turns)
    chosen = list(given) if not limited else [] if fields.casefold() == "nothing" else _fields(fields)
    if absent := [FIELDS[field] for field in chosen if field not in given]:
        raise Unreadable(f"The user has not given: {', '.join(absent)}. Ask first, or call with something else.")
    number = whom if re.fullmatch(r"[\d ()+.-]+", whom) else _number_of(whom, _directory(turns))
    return phone_call(number, {field: given[field] for field in chosen})


def _number_of(name: str, directory: Mapping[str, str]) -> str:
    """The number of a listed department, by its name or a part of it which no other has."""
    plain = {department.casefold(): phone for department, phone in directory.items()}
    wanted = name.casefold().strip(" .'\"")
    fitting = [wanted] if wanted in plain else [department for department in plain if wanted in department]
    if len(fitting) != 1:
        listed = f"Departments: {', '.join(directory)}." if directory else "Search a company first."
        raise Unreadable(f"'{name}' is no listed department. {listed}")
    return plain[fitting[0]]


def _directory(turns: Sequence[Turn]) -> dict[str, str]:
    """Name -> number of the departments that were listed last."""
    read = [json.loads(turn.observation)["departments"] for turn in turns if turn.tool == SEARCH]
    return {department["name"]: department["phone"] for department in read[-1]} if read else {}


def _given(turns: Sequence[Turn]) -> dict[str, str]:
    """Field -> value, of all that forms were answered with."""
    forms = [json.loads(turn.observation) for turn in turns if turn.tool == FORM and turn.status == "ok"]
    return {field: value for form in forms for field, value in form.items() if field != "unavailable"}


# --- playing ---------------------------------------------------------------------------------


def shown(observation: str) -> str:
    """What a tool answered, in lines for people."""
    data = json.loads(observation) if observation else {}
    if "departments" in data:
        line = "  {name}, {phone}: {description} ({operating_hours})"
        return "\n".join(line.format(**listed) for listed in data["departments"]) or "  no company of that name"
    if "message" in data:
        return f"  {data['message']} ({data['status'].replace('_', ' ')})"
    missing = data.pop("unavailable", [])
    lines = [f"  {FIELDS.get(name, name)}: {value}" for name, value in data.items()]
    return "\n".join(lines + [f"  {FIELDS[field]}: not available" for field in missing])


def answered(text: str, episode: Episode) -> str:
    """What is shown to a line that was typed, after the step that it means, if it means one."""
    if text.strip().casefold() in ("help", "?"):
        return MORE_HELP
    try:
        return shown(episode.step(read_typed(text, episode)))
    except Unreadable as problem:
        return str(problem)


def ending(episode: Episode) -> str:
    """How an episode that is over has ended."""
    return f"{ENDINGS.get(episode.stop, episode.stop)} Turns: {len(episode.turns)}."


def play_at_prompt(episode: Episode, read: Callable[[str], str] = input, show: Callable[[str], None] = print) -> None:
    """Play an episode to its end with what is typed. read: asks for a line, given the prompt; show: prints."""
    show(f"{episode.request}\n{HELP}")
    try:
        while episode.stop is None:
            if said := answered(read("> "), episode):
                show(said)
        show(ending(episode))
    finally:
        episode.close()
