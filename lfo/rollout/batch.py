"""The rows of one adapter that are decoded together, each at its own pace.

Every tick feeds each row all that it has not read yet, a whole context or the token that it has just said, and
samples one token for every row that has then read all. Nobody waits for anybody else: rows come and go between ticks.

What was read once is not read again. A row that begins as another one does takes over its keys and values. Rows whose
contexts are the same (the rollouts of a group, until they differ) follow one of them: only the leader is fed, its
logits are everybody's, and a row that samples something else leaves with a copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import torch

from lfo.rollout.decoder import Decoder
from lfo.rollout.engine import Completion, Prompt

WORTHWHILE = 4  # tokens in common that are copied; fewer are read sooner


@dataclasses.dataclass(eq=False)
class Request:
    """A continuation in the making."""

    ticket: int
    prompt: Prompt
    tokens: list[int] = dataclasses.field(init=False)  # the context and what was said
    draws: list[float] = dataclasses.field(init=False)  # a random number for each token that may be said
    logprobs: list[float] = dataclasses.field(init=False, default_factory=list)

    def __post_init__(self):
        self.tokens = list(self.prompt.tokens)
        self.draws = uniform(self.prompt.seed, self.prompt.max_new) if self.prompt.temperature else []

    @property
    def draw(self) -> float:
        return self.draws[len(self.logprobs)] if self.draws else 0.0

    def say(self, token: int, logprob: float) -> None:
        self.tokens.append(token)
        self.logprobs.append(logprob)

    @property
    def done(self) -> bool:
        return self.tokens[-1] == self.prompt.stop or len(self.logprobs) == self.prompt.max_new

    def completion(self) -> Completion:
        return Completion(self.tokens[len(self.prompt.tokens) :], self.logprobs)


@dataclasses.dataclass(eq=False)
class Row:
    """A slot of the cache: the tokens it holds, the session it is kept for, the request it works on."""

    slot: int
    held: list[int] = dataclasses.field(default_factory=list)
    session: Hashable | None = None
    request: Request | None = None
    leader: Row | None = None  # the row that is fed in its place, while both have the same tokens
    used: int = 0  # the tick of its last request


class Batch:
    """The requests of one adapter. limit: rows at a time; budget: tokens that are fed at a time."""

    def __init__(self, decoder: Decoder, limit: int, budget: int):
        self.decoder, self.cache = decoder, decoder.cache()
        self.limit, self.budget = limit, budget
        self.reset()

    def reset(self) -> None:
        """Forget all requests and sessions."""
        self.ticks = 0
        self.waiting: list[Request] = []
        self.rows: list[Row] = []  # by slot
        self.kept: dict[Hashable, Row] = {}  # by session

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(row.request for row in self.rows)

    def end_session(self, session: Hashable) -> None:
        if row := self.kept.pop(session, None):
            row.session = None

    @torch.inference_mode()
    def tick(self) -> list[Request]:
        """Feed and sample once; the requests that are done."""
        self.ticks += 1
        self._admit()
        chunks = self._chunks()
        if not chunks:
            return []
        self._arrange([*chunks])
        fed = sorted(chunks, key=lambda row: row.slot)
        step = self.decoder.step([chunks[row] for row in fed], [len(row.held) for row in fed], self.cache)
        logits = self.decoder.forward(step, self.cache)
        for row in fed:
            row.held += chunks[row]
        read = {row: None for row in fed if len(row.held) == len(row.request.tokens)}
        return self._say([*read, *(row for row in self.rows if row.leader in read)], logits)

    # --- who takes part ------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give rows to the requests that wait, while there are any; first to those whose sessions have one."""
        if not self.waiting or (len(self.rows) == self.limit and all(row.request for row in self.rows)):
            return
        if all(row.request is None and row.session is None for row in self.rows):
            self.rows = []  # what has all ended leaves no trace: what follows is the same, bit for bit, as at first
        leaders = {tuple(row.request.tokens): row for row in self.rows if row.request and not row.leader}
        waiting, self.waiting, admitted, full = self.waiting, [], [], False
        for request in sorted(waiting, key=lambda request: request.prompt.session not in self.kept):
            known = request.prompt.session in self.kept
            row = self._row(request.prompt.session) if known or not full else None
            if row is None:
                self.waiting.append(request)
                full = full or not known
            else:
                row.request, row.used = request, self.ticks
                admitted.append(row)
        longest = max((len(row.request.tokens) + row.request.prompt.max_new for row in admitted), default=0)
        self.cache.reserve(len(self.rows), longest)
        for row in admitted:
            leader = leaders.setdefault(tuple(row.request.tokens), row)
            if leader is row:
                self._recall(row)
            else:
                row.leader = leader

    def _row(self, session: Hashable | None) -> Row | None:
        """The session's row, a free one, a new one, or that of the session that is idle for longest; or None."""
        if row := self.kept.get(session):
            return None if row.request else row
        idle = [row for row in self.rows if not row.request]
        row = min(idle, key=lambda row: (row.session is not None, row.used), default=None)
        if (row is None or row.session is not None) and len(self.rows) < self.limit:
            row = Row(len(self.rows))
            self.rows.append(row)
        if row is not None:
            self.end_session(row.session)
            row.session = session
            if session is not None:
                self.kept[session] = row
        return row

    def _recall(self, row: Row) -> None:
        """Keep what the row holds of its context; take over what another row holds beyond that."""
        tokens = row.request.tokens[:-1]  # the last is always fed: it makes the logits
        have = common(row.held, tokens)
        del row.held[have:]
        if have < len(tokens):
            others = [other for other in self.rows if len(other.held) > have and other.held[have] == tokens[have]]
            best = max(others, key=lambda other: common(other.held, tokens), default=row)
            if common(best.held, tokens) >= have + WORTHWHILE:
                self._take_over(row, best, common(best.held, tokens))

    def _take_over(self, row: Row, other: Row, count: int) -> None:
        """Hold the first `count` tokens that another row holds."""
        start = common(row.held, other.held[:count])
        self.cache.copy(other.slot, row.slot, start, count)
        row.held = other.held[:count]

    # --- what is fed ---------------------------------------------------------------------------

    def _chunks(self) -> dict[Row, list[int]]:
        """What each leader reads now. Those that speak come first, long contexts take several ticks."""
        unread = {row: row.request.tokens[len(row.held) :] for row in self.rows if row.request and not row.leader}
        chunks, left = {}, self.budget
        for row, tokens in sorted(unread.items(), key=lambda item: len(item[1])):
            if left > 0:
                chunks[row] = tokens[:left]
                left -= len(tokens)
        return chunks

    def _arrange(self, fed: list[Row]) -> None:
        """Have these rows in the first slots: they change places with those that are there."""
        there, wanted = self.rows[: len(fed)], set(fed)
        outside = [row for row in fed if row.slot >= len(fed)]
        for one, other in zip([row for row in there if row not in wanted], outside, strict=True):
            self.cache.swap(one.slot, other.slot, max(len(one.held), len(other.held)))
            one.slot, other.slot = other.slot, one.slot
            self.rows[one.slot], self.rows[other.slot] = one, other

    # --- what is said --------------------------------------------------------------------------

    def _say(self, speakers: list[Row], logits: torch.Tensor) -> list[Request]:
        """Sample a token for each speaker, leaders first; the requests that are done."""
        if not speakers:
            return []
        device, requests = logits.device, [row.request for row in speakers]
        slots = [(row.leader or row).slot for row in speakers]
        if slots != [*range(len(logits))]:
            logits = logits.index_select(0, torch.tensor(slots, device=device))
        temperature = torch.tensor([request.prompt.temperature for request in requests], device=device).unsqueeze(1)
        draws = torch.tensor([request.draw for request in requests], dtype=torch.float64, device=device)
        picked, logprobs = sample(logits, temperature, draws)
        done, leaders = [], {}
        for row, token, logprob in zip(speakers, picked.tolist(), logprobs.tolist(), strict=True):
            row.request.say(token, logprob)
            leader, row.leader = row.leader or row, None
            if row.request.done:
                done.append(row.request)
                row.request = None
            elif (agreed := leaders.setdefault((leader, token), row)) is not row:
                row.leader = agreed
            elif leader is not row:
                self._take_over(row, leader, len(leader.held))
        return done


def common(some: Sequence[int], others: Sequence[int]) -> int:
    """The number of tokens that both begin with."""
    count = min(len(some), len(others))
    if some[:count] == others[:count]:
        return count
    return next(i for i in range(count) if some[i] != others[i])


def uniform(seed: int, count: int) -> list[float]:
    """Numbers in [0, 1) from a random stream of their own."""
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).tolist()


def sample(logits: torch.Tensor, temperature: torch.Tensor, draws: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row and its log-probability; greedy where the temperature is 0.

    logits (B, V), temperature (B, 1), draws (B,) in [0, 1), at which the distribution function is inverted. The
    log-probability of a greedy token is taken at temperature 1.
    """
    warm = temperature > 0
    probabilities = torch.softmax(logits / torch.where(warm, temperature, 1.0), dim=-1)
    below = probabilities.cumsum(-1, dtype=torch.float64)
    picked = torch.searchsorted(below, draws.unsqueeze(1) * below[:, -1:], right=True)
    if not warm.all():
        picked = torch.where(warm, picked, logits.argmax(-1, keepdim=True))
    return picked.squeeze(1), probabilities.gather(1, picked).squeeze(1).log()
