"""Result files -> what README and docs/ show of them. Reads tables alone: no run, no model, no torch.

A page has places that begin with ``<!-- name -->`` and end with ``<!-- /name -->``; what stands between is written
here, everything else by people. `tests/lab/test_pages.py` sees to it that pages say what results/ says.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from lfo.lab.statistics import REFUTED, SUPPORTED, in_percent, together


class PageError(ValueError):
    """A page or a table cannot be used; the message names it and the remedy."""


# What README shows: who says the notes, as summary.csv names it, and what that is.
ROWS = {
    "nothing": "DAPO, where trained",
    "backoff": "look-up by company or trade, and circumstances (`table`: silent once served)",
    "boosted": "trees told of fields",
    "additive": "a classifier told of circumstances, too",
    "grammar": "a parser of all that is said",
    "world model": "`imagine`: what it predicts",
    "truth": "the real answers",
}
# And the figures that it shows, where they were drawn.
FIGURES = {
    "04_factorial": "who says the notes; worlds 1 to 5",
    "04_confirm": "unseen worlds",
    "04_dials": "circumstances and reasons, policy frozen; worlds 1 to 3, one run each",
    "04_confirm_curves": "success against tasks, unseen worlds",
}
CLAIMED = (
    "Most claims ([rule](docs/metrics.md#verdicts)), what was found, or how many hold (`_frozen`: policy frozen;\n"
    "area: mean success over 320 tasks):\n"
)
FEW = 3  # who refute a hypothesis are named where they are fewer
# Claims that begin with these are in docs/ alone.
ELSEWHERE = ("imagine_memory", "imagine_silent", "imagine is better than cloning")
OTHER_TABLES, FEEDBACK_TABLES = "tables.md", "feedback_tables.md"
KNOWN, NEW = "validation", "test"
PLACES = {KNOWN: "known", NEW: "new"}  # companies

# What the pages of tables show, each with its heading and what is to be said before it.
TABLES = {
    "04_verdicts": "## Claims of the factorial\n\n"
    "What becomes of the claims, which were written down before the worlds were opened, but where "
    "[claims.yaml](../configs/claims.yaml) says\notherwise: aims that were made claims, and two memories. "
    "Adjusted p-values (Holm) over the table; fewer than five worlds decide nothing:",
    "04_confirm_verdicts": "## Claims in worlds nobody had seen\n\n"
    "What was seen in worlds 1 to 5, claimed and asked again in worlds of which nobody had seen anything\n"
    "([confirm.yaml](../configs/confirm.yaml)): 6 to 10, and 21 to 25, added when the former had been judged.\n"
    "Of all ten, a table of their own:",
    "04_confirm_new_verdicts": "## The same in the five that were added, alone\n\nWorlds 21 to 25:",
    "04_confirm": "## Success in worlds nobody had seen\n\nWorlds 6 to 10 and 21 to 25, some of the arms:",
    "04_confirm_levels": "## Success in worlds nobody had seen, by level\n\n"
    "Success at the end, medians of the runs; known as new companies have 20, 30, 30, 10 and 10 tasks of levels\n"
    "1 to 5 in a world:",
    "04_confirm_known": "## What is known in worlds nobody had seen\n\n"
    "Of calls on the ways of held-out tasks, the share whose reply is known after so many tasks:",
    "04_plain": "## Calls learned as they were heard\n\n"
    "Worlds 21 to 25, some of the arms above beside `plain_frozen`, whose world model learns no disguised calls\n"
    "([plain.yaml](../configs/plain.yaml)):",
    "04_plain_verdicts": "## Claims about calls learned as they were heard\n\n"
    "Written before any run of that arm there:",
    "04_plain_known": "## What is known of calls learned as they were heard\n\nThe share known after so many tasks:",
    "04_factorial": "## Success of every arm\n\n"
    "Success, greedy, all levels; sampled tasks, dropped ones included; median and 95% interval of a "
    "hierarchical bootstrap over worlds, runs, companies and tasks.\n"
    "[Notebook 04](../notebooks/04_transfer_eval.ipynb) says what each arm is.",
    "04_levels": "## By level\n\n"
    "Success at the end by level: one call (1, 2), two (3), a field that the user lacks (4), three or four\n"
    "departments (5); medians over the runs with 95% intervals:",
    "04_rules": "## By how unusual a company's rules are\n\n"
    "The same by a company's rules: usual in its trade (`typical`), with a field of their own (`extra`), or drawn\n"
    "anew (`different`), of which nothing can be known before the company was called:",
    "04_form": "## One form for all, and users who lack a field\n\n"
    "Success at the end, beside a caller without a model that asks for the same three fields everywhere; a user who\n"
    "lacks a field that is needed may be asked once more, by when a CSR may have named all of them:",
    "04_form_levels": "## One form for all, by level\n\nThe callers without a model:",
    "04_factor": "## Tasks to nine tenths of the baseline\n\n"
    "Sampled tasks to nine tenths of what the baseline ends with after its 800, and how many times fewer\n"
    "than the baseline's own that is (described, not judged; no interval where many draws never arrive):",
    "04_behaviour": "## What is done\n\n"
    "At the last evaluation, medians over the runs; [metrics.md](metrics.md) says what each is:",
    "04_costs": "## What it costs\n\n"
    "Tokens of a sampled task, and seconds as multiples of the baseline's where both ran on one kind of machine;\n"
    "calls of a rollout, replies that its coupling took up, and different calls heard in all (of `cloning`: what it\n"
    "imitates; who is told the truth learns nothing of them):",
    "04_known": "## How fast it is known what would be answered\n\n"
    "Of calls on the ways of held-out tasks, the share whose reply is known after so many tasks\n"
    "([curves](../results/04_known.png) of frozen policies); intervals know of worlds and runs alone:",
    "04_knowledge": "## What is known\n\n"
    "What is known at the end, as shares that mean the right thing: of calls on the ways of held-out\n"
    "tasks, and of what was really answered to each arm's own calls, by kind; beside calls that were learned:",
    "04_untrained": "## World models beside the untrained base\n\n"
    "Is a world model better than the base that it began as? Of the replies to its own policy's calls\n"
    "at held-out tasks those that it had right, before training and at the end, which are not the same calls:",
    "04_way": "## What is known of first and of later calls\n\n"
    "Of calls on the ways of held-out tasks, the share whose reply is known, by whether some department has served\n"
    "the caller before, and of those at companies whose rules are usual (policies frozen, first seeds at hand):",
    "06_replies": "## Which replies world models have right\n\n"
    "Of `imagine` and of the base that it began as, on the same calls, by caller and by kind of reply\n"
    "([notebook 06](../notebooks/06_wm_probing.ipynb)):",
    "06_recalled": "## The same calls, asked of memories\n\n"
    "Scripted callers' calls: the share whose answer is said right, of all runs together. Memories (policies trained,\n"
    "first seed) know what was named to empty hands, and are told that who gives all that is served, and who does not\n"
    "is named the rest; beside world models (second seed) the untrained base:",
    "06_richer": "## A base from richer worlds, and word dropout\n\n"
    "Worlds 16 to 20, policies frozen; `richer` and `additive_richer` on that base, `words_frozen` with word dropout\n"
    "([richer.yaml](../configs/richer.yaml)):",
    "06_richer_verdicts": "## Claims about richer worlds and word dropout\n\n"
    "Written before any run in these worlds was looked at:",
    "06_richer_known": "## What is known so\n\nWhat these know at the end:",
    "06_richer_costs": "## What they hear and take\n\n"
    "Multiples of the first arm's; of calls heard the distinct ones, median over runs:",
    "06_rules": "## Whose rules world models know\n\n"
    "Of calls on the ways of held-out tasks, by how a company's rules depart from the usual ones, and of those\n"
    "that do not by the circumstances in the request:",
    "06_calibration": "## Is a world model sure where it is right?\n\n"
    "Share of eight samples that mean the most frequent answer, how often that is true, and the expected error; as it\n"
    "is said, and read by what that share was worth at known companies of the other worlds. By chance: the error\n"
    "where all were right just as often as is read:",
    "04_told": "## What bounds the policy\n\n"
    "What bounds it: the same policies told nothing, what their world model says (`imagined`), what is\n"
    "usual in the trade (`typical`; `typical and house` with the field that companies of it like to add), of a new\n"
    "company all that can be known, and the truth; `placebo` was trained beside notes that are wrong,\n"
    "`imagine_second_base` on a base that never saw a note:",
    "04_progress": "## Does what is known predict what is achieved?\n\n"
    "Rank correlation, at known companies, of what is known with the success gained later, and with success itself;\n"
    "worlds and whole runs resampled. The first row of each arm is the hypothesis of\n"
    "notebook 06; verdicts by the rule of the claims, over all rows:",
    "04_dials": "## Both dials\n\n"
    "Kinds of circumstances, and whether CSRs give reasons: success after 320 tasks, policy\n"
    "frozen ([dials.yaml](../configs/dials.yaml)):",
    "04_reasons": "## Reasons, at all positions of the dials\n\n"
    "What reasons are worth to whoever predicts replies: of the ways of held-out tasks, the share whose\n"
    "reply is known, where CSRs list what they want and where they say why; same worlds, means (described only):",
    "04_reasons_verdicts": "## Claims about reasons\n\n"
    "The claims about that, at 4 circumstances in all five worlds "
    "([reasons.yaml](../configs/reasons.yaml)):",
    "04_reasons_known": "## What is known with reasons and with lists\n\n"
    "What these know at the end, as above (`..._frozen` hear reasons, `..._list` lists):",
    "04_ensemble_verdicts": "## Claims about several world models\n\n"
    "Three that vote (`imagine_ensemble_frozen`), one with as many updates (`imagine_long_frozen`), and one with as\n"
    "many votes (`imagine_voting_frozen`), as far as they were run; and one that replays half of its calls as they\n"
    "were heard (`imagine_half_frozen`):",
    "04_backoff_verdicts": "## A table that speaks of later calls\n\n"
    "Of calls after somebody has served scouts hear nothing, and `table` is silent; `backoff` says of one what it\n"
    "would if nobody had. Claims written when all others had been judged, before it was run:",
    "04_imitation_verdicts": "## A baseline that imitates its successes as well\n\n"
    "`baseline_imitate` has what was third in tuning on top of what the baseline has. Claims written when two tuning\n"
    "worlds had shown that it may be stronger, before it was run in these:",
    "04_factor_imitate": "## Tasks to nine tenths of that baseline\n\n"
    "As the table of tasks to nine tenths of the baseline, of what `baseline_imitate` ends with (described):",
    "04_replayed_verdicts": "## One adapter that replays\n\n"
    "`shared` never replays, as all else does; `shared_replay` does. Claims written before it was run:",
    "04_groups_verdicts": "## Claims about larger groups beside notes\n\n"
    "`backoff_32` trains its policy in groups of 32, two tasks a step and two passes, as tuning found best for the\n"
    "baseline; `backoff_32_frozen` hears about as much. Written before their runs:",
    "04_schedule_verdicts": "## Who learns when\n\n"
    "In `policy_leads` the world model learns in every fifth step, what five would have. Claims written before:",
    "04_six": "## Six kinds of circumstances\n\n"
    "Success where requests combine six kinds, policies frozen ([six.yaml](../configs/six.yaml)):",
    "04_six_verdicts": "## Claims about six kinds of circumstances\n\n"
    "Claims written when the dials had been seen, at this position world 1 (of the table worlds 1 to 3), so\n"
    "that four worlds are new to the comparison:",
    "04_six_words_verdicts": "## Claims about six kinds, against what reads words\n\n"
    "Classifiers that are told what a field is, and of circumstances read the words; written before their runs:",
    "04_six_known": "## What is known of six kinds of circumstances\n\nWhat these know at the end, as above:",
    "04_six_levels": "## Six kinds of circumstances, by level\n\nSuccess at the end, as in the other tables by level:",
    "04_reads": "## A world model that reads similar calls\n\n"
    "Worlds 11 to 15, policies frozen, a base that was taught to read ([reads.yaml](../configs/reads.yaml)):",
    "04_reads_verdicts": "## Claims about reading\n\n"
    "A table of their own, written before any run in these worlds was looked at; some when the first had begun:",
    "04_reads_known": "## What is known by reading\n\nWhat these know at the end, as above:",
    "04_noted": "## Another try, with one's notes\n\n"
    "Worlds 11 to 15: later attempts read what was answered, with the notes of their coupling (notes kept) or without:",
    "04_noted_verdicts": "## Claims about notes that are kept\n\nWritten before anybody tried again in these worlds:",
    "04_second_base": "## A base that never saw a note\n\n"
    "As in the factorial, in the same worlds, with a base that was pretrained without notes\n"
    "([second_base.yaml](../configs/second_base.yaml)):",
    "04_second_base_verdicts": "## Claims about a base that never saw a note\n\n"
    "Written down before these runs; the first is on what a true note adds to the frozen policy, `there` is with\n"
    "this base:",
    "04_second_base_known": "## What is known beside a base that never saw a note\n\n"
    "Shares of calls whose answer is known, as in the table of how fast it is known, with this base; intervals\n"
    "know of worlds and runs alone:",
    "04_second_base_levels": "## A base that never saw a note, by level\n\n"
    "Success at the end, as in the other tables by level:",
    "04_second_base_notes": "## How many notes a base can read that never saw one\n\n"
    "Success where the policy is told no more than one note, two, or six, which is the limit everywhere else:",
    "04_transfer": "## Phrasings that were never heard in training\n\n"
    "Adapters as they ended; the base met the users' held-out phrasings in pretraining, not those of the CSRs. The\n"
    "executed notebook says in its parameters how many tasks and episodes that are:",
    "04_phrasings": "## What new words cost\n\n"
    "Success lost in held-out phrasings, on the same tasks of new companies, and how much more than the last arm does:",
    "04_acquaintance": "## Companies called before, and unusual rules\n\n"
    "Success by whether a task at the company was sampled in training, and how its rules depart from the\n"
    "usual ones:",
    "04_attempts": "## Another try\n\nSuccess within k attempts, and calls per success; arms of "
    "[again.yaml](../configs/again.yaml) are trained a second time:",
    "04_retry": "## Another try, against one that learns nothing\n\n"
    "How many more tasks within two attempts than the untrained policy that reads what it was answered\n"
    "(`nothing_frozen`), and so tries again without having learned:",
    "04_second_attempts": "## Two attempts, by level\n\nSuccess within two attempts:",
    "04_again": "## Trained a second time\n\n"
    "The same configs and seeds on another machine: success at the end, and how far the two of a world are apart:",
    "estimate": "## How long everything takes\n\n"
    "Hours of one process, by kind of run: what `lfo estimate` says of all runs of all grids, and what they took by\n"
    "their metrics, on the machines that they were made on; the last row is by the clock:",
    "05_lambda": "## Lambda\n\n"
    "World 0, 80 tasks: success and area, medians over five seeds, and how much the area is above that of\n"
    "`reference` (0.5), 95%; `imagine` has an adapter for each, `shared` one for both, `policy_alone` is that at 0:",
    "05_schedule": "## Schedules\n\nAs above: who learns when, where `reference` has both learn in every step:",
    "05_rank": "## Rank\n\nAs above: the rank of both adapters, where `reference` has 64:",
    "05_predict": "## What to predict\n\nAs above: the phone's replies alone in `reference`, those of more tools:",
    "05_rates": "## Rates and replay\n\nAs above: rates (`reference`: w 3e-3, p 1e-3), replay updates a step (20):",
    "05_further": "## Further variants\n\n"
    "As above: `surprise` rewards replies that were not expected, `internalise` learns to act without notes as well;\n"
    "the two `shared` have lambda 0.1, without replay:",
    "05_told": "## Without notes\n\n`internalise` as it is, told nothing, what is usual, and the truth:",
    "05_world_model": "## What would make the world model know more\n\n"
    "320 tasks, the policy frozen, in tuning worlds, at known companies: what is known at the end, and how much more\n"
    "that is than what `reference` knows in the same worlds:",
    "05_replayed": "## Replay in proportion\n\nThe first two of these arms, by kind of reply, of all runs together:",
    "05_tuned_imagine": "## The policy's rate beside notes\n\n"
    "160 tasks in world 100, which no figure shows, at known companies; `reference` is `imagine` as it is:",
    "05_tuned_cloning": "## How cloning was tuned\n\n320 tasks in worlds 100 and 101, at known companies:",
    "05_costs": "## What the controls cost\n\nMultiples are medians of the ratios to `reference` with the same seed:",
    "05_verdicts": "## Claims about lambda and other choices\n\n"
    "World 0, where everything was developed: what is decided is decided for it alone, and for 80 tasks:",
    "08_overview": "## Feedback\n\n"
    "Feedback-guided DAPO, first attempts, which read no feedback but the notes of who says some "
    "([notebook 08](../notebooks/08_feedback_guided_dapo.ipynb)):",
    "08_verdicts": "## Claims about feedback\n\nWhat becomes of its claims:",
    "08_aims": "## Feedback: an aim\n\n"
    "Where each ends, as a share of what the truth gives, against the 70% that were aimed at:",
    "08_imitation": "## Feedback: beside imitation of one's own successes\n\n"
    "A claim that was written down when its runs had been seen:",
    "08_long": "## Feedback: twice the tasks\n\nClaims that were written down before it was run:",
    "08_questions": "## Feedback: five questions\n\nWhat its claims answer:",
    "08_feedback": "## Feedback: in training\n\n"
    "First tries, rollouts that read feedback, by place in the group, and why attempts failed; medians over the runs:",
    "08_failures": "## Feedback: what goes wrong\n\n"
    "Episodes that fail, and of these the share in which something of a kind does; policies by themselves, "
    "after training; two episodes of every task:",
    "08_levels": "## Feedback: by level\n\nSuccess at the end [by level](tables.md#by-level):",
    "08_attempts": "## Feedback: another try\n\nSuccess within k attempts; from the second on feedback is read:",
    "08_second_attempts": "## Feedback: two attempts, by level\n\nSuccess within two attempts:",
    "08_costs": "## Feedback: what it costs\n\n[Columns](tables.md#what-it-costs) as beside other arms:",
    "08_unaided": "## Feedback: what policies do without notes\n\n"
    "Trained policies without any note at the end ([curves](../results/08_unaided.png)); with notes: the same\n"
    "episodes with those that they were trained with:",
    "08_unaided_levels": "## Feedback: what policies do without notes, by level\n\nThe same without any note:",
    "08_why": "## Feedback: why it does not add to the notes\n\n"
    "Claims that runs with notes alone, and those whose teacher heard no feedback, succeed more often once they are\n"
    "told the truth, and that world models know more with notes alone; each against runs with notes and feedback:",
    "08_told": "## Feedback: told more and less\n\n"
    "These policies, by what they are told at the end ([what that is](tables.md#what-bounds-the-policy)):",
    "08_factor": "## Feedback: tasks to nine tenths of the baseline\n\n"
    "Tasks to nine tenths of what the baseline ends with ([columns](tables.md#tasks-to-nine-tenths-of-the-baseline)):",
    "08_kinds": "## Feedback: new kinds of task\n\n"
    "New kinds of task: trained on levels 1 to 3 alone, measured at 4 and 5 as well:",
    "08_kinds_verdicts": "## Claim about new kinds of task\n\nWhat becomes of the claim about them:",
    "08_rank": "## Claims about feedback at one rank\n\n"
    "Alone, feedback has LoRA rank 16, beside notes and in `cloning` it is 64; written before any run at the higher\n"
    "rank in these worlds:",
    "08_sources_verdicts": "## Claims about who says it\n\n"
    "Who should say what went wrong, in tuning worlds, at known companies:",
    "08_sources": "## Who says it\n\n"
    "Area under the curve by who says it, against rules; seconds where both ran on one kind of machine:",
    "08_critics": "## What feedback is good for\n\n"
    "One more attempt of the untrained base, which reads what each of these says about the first\n"
    "([feedback](feedback.md#who-says-it-where-the-update-happens-and-other-settings),\n"
    "[columns](metrics.md#one-more-attempt-lfolabcriticspy)):",
    "08_tuning": "## Feedback: its settings\n\n"
    "Its settings in tuning worlds, which no other table here shows, at known companies; mind how few runs:",
    "09_factorial": "## The shell\n\n"
    "The shell world: success on tasks with house tools, at known and at new machines "
    "([notebook 09](../notebooks/09_shell_ppo.ipynb)):",
    "09_objectives": "## The shell: PPO beside DAPO\n\n"
    "PPO beside DAPO, without notes: success before and after, and how many times as much that is:",
    "09_ppo_settings": "## The shell: settings of PPO\n\n"
    "What PPO's guide leaves open, one setting at a time: success on known templates, and points "
    "above `ppo`:",
    "09_real_model": "## The shell: SmolLM2-135M\n\n"
    "SmolLM2-135M by PPO's ten epochs of fifty, one run: greedy success on held-out tasks, with\n"
    "Wilson 95% intervals over the tasks; level 0 is all:",
    "09_ends": "## The shell: how tasks end\n\n"
    "How held-out tasks of skills end, in percent, before and after PPO, of the runs that were looked at:",
    "09_ends_by_root": "## The shell: how tasks end, by folder\n\n"
    "The same on known templates alone, by the folder in which a task's tree is:",
    "10_factorial": "## The public world\n\n"
    "The public world, where 22% is chance and a constant answer wins half "
    "([notebook 10](../notebooks/10_public_world.ipynb)):",
    "10_knowledge": "## The public world: what is known\n\n"
    "What its world models know at the end, asked about a right and a wrong place of things (a coin\n"
    "has half):",
    "02_tuning": "## How the baseline was tuned\n\n"
    "800 tasks in worlds 100 to 102, which no figure shows, at known companies; `group_32_epochs_2` is what\n"
    "[baseline.yaml](../configs/baseline.yaml) has:",
    "02_longer": "## World 0: a baseline of 3,200 tasks\n\n"
    "Success by quarter of its tasks, means of the evaluations in each (0: before training):",
    "03_final_success": "## World 0, of `make results`\n\n"
    "What `make results` trains in world 0, where everything was developed, by level: medians over the runs with\n"
    "95% intervals, which know of no other world ([curves](../results/03_learning_curves.png)):",
}


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; [] where there is none."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --- README ----------------------------------------------------------------------------------


def headline(results: Path) -> str:
    """README's rows, verdicts and figures; what was not made is left out."""
    summary = read_table(results / "summary.csv")
    rows = [r for r in summary if r["metric"] == "success" and r["world"] == "all"]
    rows = [r for r in rows if _grid(r) == _grid(rows[0])]  # others have arms of the same names
    found = {(r["notes"], r["policy"], r["split"]): r for r in reversed(rows)}  # of several arms the first
    lines = [
        "| notes by | what it is | policy frozen: known | new | trained: known | new |",
        "|---|---|---|---|---|---|",
    ]
    shown: list[dict[str, str]] = []
    for notes, what in ROWS.items():
        cells = [found.get((notes, policy, split)) for policy in ("frozen", "trained") for split in PLACES]
        if any(cells):
            lines.append(f"| {notes} | {what} | {' | '.join(map(_percent, cells))} |")
            shown += filter(None, cells)
    if not shown:
        return "No arm was measured yet in these worlds: `make notebooks`."
    ends = sorted({pick(int(r["runs"]) for r in shown) for pick in (min, max)})
    worlds = {r["world"] for r in summary if _grid(r) == _grid(shown[0])} - {"all"}
    dials = f"{shown[0]['circumstances']} kinds of circumstances, replies with {shown[0]['replies']}"
    caption = (
        f"Greedy success, all levels ({dials}), after 320 tasks (DAPO alone 800); median and 95%\n"
        f"interval, {' to '.join(map(str, ends))} runs in {len(worlds)} worlds:"
    )
    drawn = [f"![{what}](results/{name}.png)" for name, what in FIGURES.items() if (results / f"{name}.png").exists()]
    return "\n\n".join(filter(None, (caption, "\n".join(lines), _verdicts(results), "\n".join(drawn))))


def _grid(row: Mapping[str, str]) -> str:
    """The folder of all arms of the grid that a row is of: its source without arm, runs and file."""
    return row["source"].rsplit("/", 3)[0]


def _percent(row: Mapping[str, str] | None) -> str:
    """Median and interval of a share, in percent."""
    if row is None:
        return ""
    return in_percent(*(float(row[name]) for name in ("median", "low", "high")))


def _verdicts(results: Path) -> str:
    """A line for every hypothesis, which is what stands before the last colon of its claims: what became of it; without
    those of `ELSEWHERE`."""
    found: dict[str, dict[str, dict[str, Mapping[str, str]]]] = {}
    for row in read_table(results / "04_verdicts.csv"):
        hypothesis, _, part = row["claim"].rpartition(": ")
        if hypothesis.startswith(ELSEWHERE):
            continue
        found.setdefault(hypothesis or part, {}).setdefault(row["split"], {})[part] = row
    lines = [CLAIMED] if found else []
    for hypothesis, splits in found.items():
        said = {PLACES[split]: _verdict(parts) for split, parts in splits.items()}
        alike = len({*said.values()}) < len(said)
        lines.append(f"- {hypothesis}: {said['known'] if alike else ', '.join(map(' '.join, said.items()))}")
    return "\n".join(lines)


def _verdict(parts: Mapping[str, Mapping[str, str]]) -> str:
    """One refuted claim refutes a hypothesis, all of them support it; in brackets, what was found, or of several claims
    how many are supported, and which are refuted, or where these are several how many."""
    verdicts = [row["verdict"] for row in parts.values()]
    if len(parts) == 1:
        (row,) = parts.values()
        factor, places = (1, 1) if "times fewer" in row["claim"] else (100, 0)
        how = "{} [{}, {}]" if factor == 1 else "{}% [{}, {}]" if "%" in row["claim"] else "{} [{}, {}] points"
        found = [f"{factor * float(row[name]):.{places}f}" for name in ("value", "low", "high") if row[name]]
        return f"**{row['verdict']}** ({how.format(*found) if found else 'never got there'})"
    refuted = [part for part, row in parts.items() if row["verdict"] == REFUTED]
    count = f"{verdicts.count(SUPPORTED)} of {len(verdicts)}"
    if refuted:
        count += f"; refuted by {' and '.join(refuted)}" if len(refuted) < FEW else f"; {len(refuted)} refute it"
    return f"**{together(verdicts)}** ({count})"


# --- docs ------------------------------------------------------------------------------------


def tables(results: Path, page: str) -> str:
    """The tables of a page in docs/, and under each the name of its files; one that was not made is left out."""
    made = {name: results / f"{name}.md" for name in TABLES if page_of(name) == page}
    shown = {name: path.read_text(encoding="utf-8").strip() for name, path in made.items() if path.exists()}
    return "\n\n".join(f"{TABLES[name]}\n\n{table}\n\n`results/{name}.csv`" for name, table in shown.items())


def page_of(table: str) -> str:
    """Which page of docs/ shows a table: two pages, as viewers cut one that is longer than half a megabyte."""
    return FEEDBACK_TABLES if table.startswith("08_") else OTHER_TABLES


# --- writing ---------------------------------------------------------------------------------


def parts(root: str | Path) -> dict[Path, dict[str, str]]:
    """What is generated: page -> name of a place -> its text."""
    root, results = Path(root), Path(root) / "results"
    shown = {root / "docs" / page: {"tables": tables(results, page)} for page in (OTHER_TABLES, FEEDBACK_TABLES)}
    return {root / "README.md": {"headline": headline(results)}} | shown


def filled(page: str, name: str, text: str) -> str:
    """The page with the text in its place of that name.

    Raises:
        PageError: it has no such place, or more than one.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(end) < page.index(begin):
        raise PageError(f"a page needs one place '{begin} ... {end}' for what is generated; put it in.")
    before, after = page.partition(begin)[0], page.partition(end)[2]
    return f"{before}{begin}\n{text}\n{end}{after}"


def write_pages(root: str | Path) -> list[Path]:
    """Write the generated parts of all pages of the repository at `root`; returns the pages."""
    made = parts(root)
    for path, places in made.items():
        page = path.read_text(encoding="utf-8")
        for name, text in places.items():
            page = filled(page, name, text)
        path.write_text(page, encoding="utf-8")
    return list(made)
