"""Which tests decided which arm: an ``if`` with its elifs and else, or a conditional expression, and its passes.

Reads  the truths that Python took of tensors, where each was taken, op rows, and the text of the functions
       (source/texts.py).
Gives  one ``Conditional`` for each that a tensor's truth had a part in, with one ``Evaluation`` per pass; per op the
       tests and arms that it ran in.
Rule   two evaluations are passes of one conditional when innermost module instance, chain of calls and place in the
       text agree: the rule by which ops are passes of a layer (grouping.py).
Rule   an op ran in an arm if it, or any call on the way to it, stands there: what a module or a helper does that is
       called in an arm was done in that arm.
Rule   which arm was taken follows from the truths. Where others had a part that are not seen (``if self.training and
       mask.any()``), an op that ran in an arm tells; where none did, it is not known.
Not    columns (records/control.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import attrs

from journal.errors import JournalError
from projections.folds.graph import IDENTITY, NOWHERE
from projections.folds.vocabulary import Site, Vocabulary
from projections.source.syntax import CONDITIONAL, Branching, Role, Syntax, Test, Tree, leaves_in, outcome
from projections.source.texts import Texts
from projections.structure.rows import Calls, Rows

Key = tuple[int, int, int, tuple[int, int]]
"""Module number, code, call site of the caller, place in the text: what makes a conditional."""

FLAT: Final = 1 << 21
EACH: Final = 1 << 8
"""Arms that all ops may run in, and as many more for each op."""


FRAMES: Final = 16
"""Calls within an operator that are looked through to the place where it stands."""


LINKS: Final = 1 << 17
"""Arms that all call sites may stand in."""


class Item(NamedTuple):
    """A frame on the way to an op stands in a test or arm."""

    code: int
    caller: int
    start: tuple[int, int]  # of the branching
    arm: int
    role: Role


@attrs.frozen(eq=False)
class Link:
    """The tests and arms around a place, the innermost one with a link to those around it."""

    around: Link | None
    item: Item
    depth: int


@attrs.frozen(eq=False)
class CallLink:
    """The same for what is around a module call: the items of one site, in the call that it was called from."""

    around: CallLink | None
    call: int
    link: Link
    depth: int


@attrs.define(eq=False)
class Evaluation:
    """One pass of a conditional: the truths of its tests, and which arm was taken."""

    number: int  # from 0
    call: int  # module call
    start: int  # event of its first truth
    arm: int  # whose test was asked last
    at: int  # event of the last truth
    leaf: int  # whose truth that was
    truths: dict[int, dict[int, bool]] = attrs.Factory(dict[int, dict[int, bool]])  # by arm, by leaf
    counts: dict[tuple[int, int], int] = attrs.Factory(dict[tuple[int, int], int])  # truths taken by arm and leaf
    rows: dict[int, int] = attrs.Factory(dict[int, int])  # by arm: op row of the last truth
    seen: set[int] = attrs.Factory(set[int])  # arms that ops ran in
    entered: dict[tuple[int, Role], tuple[int, int]] = attrs.Factory(dict[tuple[int, Role], tuple[int, int]])


@attrs.define(eq=False)
class Conditional:
    """An if or conditional expression that the truth of a tensor had a part in."""

    number: int  # from 0, in the order of their first truths
    key: Key
    syntax: Syntax
    branching: Branching
    evaluations: list[Evaluation] = attrs.Factory(list[Evaluation])

    def tree(self, arm: int) -> Tree:
        return self.syntax.tests[self.branching.tests[arm]].tree

    @property
    def num_tests(self) -> int:
        return len(self.branching.tests)

    def value(self, evaluation: Evaluation, arm: int) -> bool | None:
        """What the test of an arm came to; None where it was not asked, or not seen."""
        if arm >= self.num_tests:
            return None
        if any(later > arm for later in evaluation.truths):
            return False  # else the next one would not have been asked
        found = outcome(self.tree(arm), evaluation.truths.get(arm, {}))
        if found is None and len(evaluation.seen) == 1:
            (taken,) = evaluation.seen
            return taken == arm if taken >= arm else None
        return found

    def fired(self, evaluation: Evaluation) -> tuple[bool | None, ...]:
        """Of each arm, whether it was taken; None where that is not known."""
        made: list[bool | None] = []
        is_open = True  # whether every arm before this one is known not to have been taken
        for arm in range(len(self.branching.arms)):
            value = self.value(evaluation, arm) if arm < self.num_tests else True
            if not is_open:
                made.append(False)
            elif value is None:
                return (*made, *(None,) * (len(self.branching.arms) - arm))
            else:
                made.append(value)
                is_open = not value
        return tuple(made)

    def is_evaluated(self, evaluation: Evaluation, arm: int) -> bool:
        """Whether the test of an arm was asked, also where no tensor told."""
        asked = max((*evaluation.truths, *evaluation.seen))
        return arm < self.num_tests and arm <= asked


class Truth(NamedTuple):
    """What taking a truth was for."""

    context: str  # "if_test", "elif_test", "ifexp", "while", "assert", "unknown"
    wrapper: str | None
    conditional: int  # -1 for none
    arm: int


UNKNOWN: Final = Truth("unknown", None, NOWHERE, 0)


class Ran(NamedTuple):
    """An op ran in a test or an arm of a conditional."""

    conditional: int
    arm: int
    role: Role
    call: int  # module call of the frame that stood there


class Conditionals:
    """The conditionals of one forward.

    Args:
        rows: Op rows.
        calls: Module calls.
        words: Code and call sites.
        texts: The text of the code.
    """

    def __init__(self, rows: Rows, calls: Calls, words: Vocabulary, texts: Texts) -> None:
        self.rows = rows
        self.calls = calls
        self.sites: Sequence[Site] = words.sites
        self.codes = words.codes
        self.texts = texts
        self.all: list[Conditional] = []
        self.numbers: dict[Key, int] = {}
        self.truths: dict[int, list[Truth]] = {}  # by op row, in order
        self.num_links = 0
        self.site_links: dict[int, Link | None] = {}
        self.call_links: list[CallLink | None] = []
        self.weight = 0  # tests and arms that all ops stand in
        self.asked: dict[tuple[int, int], list[tuple[int, int, int]]] = {}  # event, evaluation, arm
        if rows.branches:
            self.link_calls()
            self.take_truths()
        if self.all:
            self.require_bounded()
            self.take_ops()

    def __len__(self) -> int:
        return len(self.all)

    def ids(self, labels: Sequence[str], layers: Sequence[int]) -> list[str]:
        """``cond_`` and the layer label of the first op that was tested; a later one of the same label is counted.

        One that tested no op of the table (a parameter, a constant, an island) is ``cond_unseen``, counted too.

        Args:
            labels: By layer.
            layers: By op row.
        """
        counts: dict[str, int] = {}
        made: list[str] = []
        for conditional in self.all:
            tested = [row for one in conditional.evaluations for row in one.rows.values() if row >= 0]
            name = f"cond_{labels[layers[tested[0]]]}" if tested else "cond_unseen"
            count = counts[name] = counts.get(name, 0) + 1
            made.append(f"{name}_{count}" if count > 1 or not tested else name)
        return made

    # -- where things stand

    def link(self, site: int) -> Link | None:
        """The tests and arms around a call site, within the module's forward."""
        known, chain = self.site_links, list[int]()
        here: int | None = site
        while here is not None and 0 <= here < len(self.sites) and here not in known:
            chain.append(here)
            caller = self.sites[here].caller
            here = caller if caller is not None and caller < here else None
        for number in reversed(chain):
            place = self.sites[number]
            caller = place.caller
            found = None if caller is None else known.get(caller)
            syntax = self.texts.at_site(place)
            if syntax is not None and 0 <= place.code < len(self.codes):
                for region in syntax.regions_at(place.span, self.codes[place.code].name):
                    start = syntax.branchings[region.branching].start
                    item = Item(place.code, NOWHERE if caller is None else caller, start, region.arm, region.role)
                    found = Link(found, item, 1 if found is None else found.depth + 1)
                    self.num_links += 1
                if self.num_links > LINKS:
                    raise too_large(self.num_links, len(self.rows))
            known[number] = found
        return known.get(site)

    def link_calls(self) -> None:
        for parent, site in zip(self.calls.parent, self.calls.site, strict=True):
            around = self.call_links[parent] if parent >= 0 else None
            link = self.link(site) if site >= 0 else None
            if link is not None and parent >= 0:
                around = CallLink(around, parent, link, link.depth + (0 if around is None else around.depth))
            self.call_links.append(around)

    def depth(self, call: int, site: int) -> int:
        """In how many tests and arms something stands."""
        around = self.call_links[call] if 0 <= call < len(self.call_links) else None
        link = self.link(site) if site >= 0 else None
        return (0 if around is None else around.depth) + (0 if link is None else link.depth)

    def items(self, call: int, site: int) -> Iterator[tuple[int, Item]]:
        """The tests and arms around a place, innermost first, each with the module call of its frame."""
        link = self.link(site) if site >= 0 else None
        while link is not None:
            yield call, link.item
            link = link.around
        around = self.call_links[call] if 0 <= call < len(self.call_links) else None
        while around is not None:
            link = around.link
            while link is not None:
                yield around.call, link.item
                link = link.around
            around = around.around

    def ran(self, call: int, site: int) -> list[Ran]:
        """The same, as far as they are of conditionals; outermost first."""
        if not self.all:
            return []
        made: list[Ran] = []
        module = self.calls.module
        for frame, item in self.items(call, site):
            number = self.numbers.get((module[frame], item.code, item.caller, item.start))
            if number is not None:
                made.append(Ran(number, item.arm, item.role, frame))
        made.reverse()
        return made

    def ran_row(self, row: int) -> list[Ran]:
        """The tests and arms of conditionals that a row ran in. What only shows a value ran nowhere."""
        function = self.rows.function[row]
        if IDENTITY < function < 0 or not self.all:
            return []
        return self.ran(self.rows.call[row], self.rows.site[row] if function >= 0 else NOWHERE)

    def evaluation_of(self, row: int, ran: Ran) -> Evaluation | None:
        """The pass in which a row ran where it did."""
        asked = self.asked.get((ran.conditional, ran.call), [])
        place = bisect_right(asked, (self.rows.event[row],))
        if ran.role == "evaluation":  # the test's truth comes behind it
            found = asked[place] if place < len(asked) and asked[place][2] == ran.arm else None
        else:
            found = asked[place - 1] if place else None
        return None if found is None else self.all[ran.conditional].evaluations[found[1]]

    # -- what was tested

    def take_truths(self) -> None:
        running: dict[tuple[int, int], Evaluation] = {}  # by conditional and module call
        for row, truth, at, site, call in self.rows.branches:
            told = self.take_truth(running, row, truth, at, site, call)
            if row >= 0:
                self.truths.setdefault(row, []).append(told)

    def take_truth(
        self, running: dict[tuple[int, int], Evaluation], row: int, truth: bool, at: int, site: int, call: int
    ) -> Truth:
        if not (0 <= site < len(self.sites) and 0 <= call < len(self.calls)):
            return UNKNOWN
        place = self.sites[site]
        syntax = self.texts.at_site(place)
        found = None if syntax is None else syntax.test_at(place.span)
        if syntax is None or found is None:
            cast = syntax is not None and syntax.is_cast(place.span)
            return UNKNOWN._replace(wrapper="bool_cast") if cast else UNKNOWN
        number, leaf = found
        test = syntax.tests[number]
        if leaf is None or test.leaves[leaf].is_own:
            # A name behind a comparison is told at the span of that by Python 3.11.
            leaf = self.leaf_of(syntax, number, row, place) if row >= 0 else leaf
        wrapper = None if leaf is None else test.leaves[leaf].wrapper
        if test.context not in CONDITIONAL:
            return Truth(test.context, wrapper, NOWHERE, 0)
        branching = syntax.branchings[test.branching]
        caller = NOWHERE if place.caller is None else place.caller
        key = (self.calls.module[call], place.code, caller, branching.start)
        index = self.numbers.setdefault(key, len(self.all))
        if index == len(self.all):
            self.all.append(Conditional(index, key, syntax, branching))
        conditional = self.all[index]
        before = running.get((index, call))
        if row < 0 and leaf is not None and before is not None and before.leaf == leaf and before.arm == test.arm:
            leaf = None if test.leaves[leaf].is_own and test.leaves[leaf].num_truths == 1 else leaf
        goes_on = None if before is None else self.next_leaf(conditional, before, test.arm, leaf, at, place, row)
        if before is None or goes_on is None:
            leaf = first_leaf(test) if leaf is None else leaf
            before = Evaluation(len(conditional.evaluations), call, at, test.arm, at, leaf)
            conditional.evaluations.append(before)
            running[index, call] = before
        else:
            leaf = goes_on
        before.arm, before.leaf, before.at = test.arm, leaf, at
        before.truths.setdefault(test.arm, {})[leaf] = truth
        before.counts[test.arm, leaf] = before.counts.get((test.arm, leaf), 0) + 1
        before.rows[test.arm] = row
        self.asked.setdefault((index, call), []).append((at, before.number, test.arm))
        return Truth(test.context, wrapper, index, test.arm)

    def leaf_of(self, syntax: Syntax, test: int, row: int, place: Site) -> int | None:
        """The part of a test in which a value was made, where it was made by the same run of the function."""
        site: int | None = self.rows.site[row] if self.rows.function[row] >= 0 else NOWHERE
        for _ in range(FRAMES):
            made = self.sites[site] if site is not None and 0 <= site < len(self.sites) else None
            if made is None:
                return None
            if (made.code, made.caller) == (place.code, place.caller):
                if len(place.span) != 4 and len(syntax.tests[test].leaves) == 1:
                    return 0
                return syntax.leaf_around(test, made.span)
            site = made.caller
        return None

    def next_leaf(
        self, conditional: Conditional, now: Evaluation, arm: int, leaf: int | None, at: int, place: Site, row: int
    ) -> int | None:
        """The part of a test that a truth is of if the evaluation goes on with it; None if that has ended before."""
        tree = conditional.tree(arm)
        value = outcome(conditional.tree(now.arm), now.truths[now.arm])
        if arm < now.arm or (arm > now.arm and value is True):
            return None
        if not self.is_quiet(conditional, now, at, place):
            return None
        test = conditional.syntax.tests[conditional.branching.tests[arm]]
        if arm > now.arm:
            return first_leaf(test) if leaf is None else leaf
        truths, last = now.truths[arm], now.leaf
        if leaf == last:
            part = test.leaves[last]
            if not part.is_open(now.counts[arm, last], truths[last]):
                return None
            if part.is_of_items and not self.is_same_comparison(now, at, place):
                return None
            return None if part.is_search and self.is_other_search(now.rows[arm], row) else leaf
        if value is not None:
            return None
        following = [number for number in leaves_in(tree) if number > last and may_follow(tree, truths, number)]
        if leaf is None:
            return next((number for number in following if not test.leaves[number].is_own), None)
        return leaf if leaf in following else None

    def is_quiet(self, conditional: Conditional, now: Evaluation, at: int, place: Site) -> bool:
        """Whether between the last truth and this event nothing ran but tests of the same conditional."""
        if len(place.span) != 4:
            return True
        events = self.rows.event
        for row in range(bisect_right(events, now.at), len(events)):
            if events[row] >= at:
                break
            if self.rows.function[row] < 0:
                continue
            where = [
                item.role
                for frame, item in self.items(self.rows.call[row], self.rows.site[row])
                if frame == now.call and (item.code, item.caller, item.start) == conditional.key[1:]
            ]
            if where[:1] != ["evaluation"]:
                return False
        return True

    def is_same_comparison(self, now: Evaluation, at: int, place: Site) -> bool:
        """Whether between the last truth and this event nothing ran but the comparison of items that stands there."""
        events = self.rows.event
        for row in range(bisect_right(events, now.at), len(events)):
            if events[row] >= at:
                break
            if self.rows.function[row] >= 0 and not self.is_made_at(row, place):
                return False
        return True

    def is_other_search(self, before: int, row: int) -> bool:
        """Whether two comparisons with an item look for different values; what is looked for stands last in each."""
        parents = self.rows.parents
        if row < 0 or before < 0 or len(parents[row]) < 2 or len(parents[before]) < 2:
            return False
        return parents[row][-1] != parents[before][-1]

    def is_made_at(self, row: int, place: Site) -> bool:
        """Whether a row was made right at a place, by the same run of the function, or by what was called there."""
        site: int | None = self.rows.site[row]
        for _ in range(FRAMES):
            made = self.sites[site] if site is not None and 0 <= site < len(self.sites) else None
            if made is None:
                return False
            if (made.code, made.caller) == (place.code, place.caller):
                return made.span == place.span
            site = made.caller
        return False

    # -- what ran where

    def require_bounded(self) -> None:
        rows = self.rows
        depths = {
            place: self.depth(*place)
            for place in {
                (call, site) for call, site, kind in zip(rows.call, rows.site, rows.function, strict=True) if kind >= 0
            }
        }
        places = zip(rows.call, rows.site, strict=True)
        weight = self.weight = sum([depths.get(place, 0) for place in places])
        if weight > FLAT + EACH * len(rows):
            raise too_large(weight, len(rows))

    def take_ops(self) -> None:
        """Note which arms ops ran in, pass by pass, and by which edge each test and arm was entered."""
        for row, parents in enumerate(self.rows.parents):
            for ran in self.ran_row(row):
                evaluation = self.evaluation_of(row, ran)
                if evaluation is None:
                    continue
                if ran.role == "body":
                    evaluation.seen.add(ran.arm)
                if (ran.arm, ran.role) not in evaluation.entered:
                    outside = next((parent for parent in parents if not self.is_in(parent, ran, evaluation)), None)
                    if outside is not None:
                        evaluation.entered[ran.arm, ran.role] = (outside, row)

    def is_in(self, row: int, wanted: Ran, evaluation: Evaluation) -> bool:
        """Whether a row ran in the same test or arm, in the same pass."""
        return any(ran == wanted and self.evaluation_of(row, ran) is evaluation for ran in self.ran_row(row))


def too_large(weight: int, told: int) -> JournalError:
    return JournalError(
        code="records_too_large",
        problem=f"the {told} ops of this stream ran in {weight} arms of conditionals, one in another",
        remedy="read its events, or other records; no model is known that is so nested",
        weight=weight,
        told=told,
    )


def first_leaf(test: Test) -> int:
    """The first part of a test whose truth may be told at the span of the whole, which does not say of what it is."""
    return next((number for number, leaf in enumerate(test.leaves) if not leaf.is_own), 0)


def may_follow(tree: Tree, truths: dict[int, bool], leaf: int) -> bool:
    """Whether a part of a test may be asked, given the truths before it."""
    kind, inner = tree
    if kind in ("leaf", "items", "const"):
        return True
    if kind == "not":
        return may_follow(inner, truths, leaf)
    for part in inner:
        if leaf in leaves_in(part):
            return may_follow(part, truths, leaf)
        if outcome(part, truths) is (kind == "or"):
            return False
    return False
