"""Coordinators, a stream, a queue and workers in virtual time: what decides about cron jobs is real, the rest is not.

Each coordinator folds the stream for itself with the folds of the product, a part of it at a time and as late as chance
will have it. It has a clock of its own, wrong by minutes. Some believe at times that they lead, now and then two at
once. They are killed between any two steps: what they had in memory is gone, what they had folded is kept, as in a
database. A worker asks for each copy that it finds in the queue; it may be killed, too, and finds the copy again.

Times are Unix milliseconds. One seed is one course of events.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from waybill.ojs.coordinator.claims import PENDING, Claim, ClaimFold, key_of
from waybill.ojs.coordinator.feature_fold import FeatureFold, FeatureFolds, Rows
from waybill.ojs.coordinator.memory_rows import MemoryRows
from waybill.ojs.coordinator.overflow import Overflow
from waybill.ojs.cron.cron_fold import CRON, CronFold, CronRow
from waybill.ojs.cron.decision import decide, next_tick, wake_ms
from waybill.ojs.cron.definition import CronJob, time_of
from waybill.ojs.spec.cron_events import ClaimAdmitted, ClaimCopied, ClaimPushed, CronRegistered
from waybill.ojs.spec.event_data import EventData
from waybill.ojs.spec.events import EVENT_TYPES, JobCompleted, JobStarted, ReceivedEvent
from waybill.ojs.spec.identifiers import new_id

COORDINATORS: Final = 3
MAX_SKEW_MS: Final = 150_000
MAX_ROUNDS: Final = 400
KILL: Final = 0.04
ZONES: Final = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "Pacific/Auckland")


class Plan(NamedTuple):
    """A cron job, as its expression and as plain sets, from which the ticks are reckoned without the expression."""

    job: CronJob
    hours: Sequence[int]
    minutes: Sequence[int]
    weekdays: Sequence[int]
    """Monday is 0."""
    days: Sequence[int]

    def ticks(self, first: date, last: date) -> dict[str, int]:
        """Return all ticks of some local days, by key."""
        where, found = ZoneInfo(self.job.timezone), {}
        for number in range((last - first).days + 1):
            day = first + timedelta(days=number)
            if day.weekday() not in self.weekdays or day.day not in self.days:
                continue
            for hour in self.hours:
                for minute in self.minutes:
                    local = datetime.combine(day, time(hour, minute))
                    moment = local.replace(tzinfo=where, fold=0).astimezone(UTC)
                    if moment.astimezone(where).replace(tzinfo=None, fold=0) == local:
                        found[local.isoformat()] = int(moment.timestamp()) * 1000
        return found


def plans(count: int, seed: int, *, rare: bool = False) -> list[Plan]:
    """Make cron jobs of all kinds, many of them in the hours in which clocks change; most are `rare` for many years."""
    chance, made = random.Random(seed), []
    for number in range(count):
        hours: Sequence[int] = sorted(
            chance.sample(range(24), chance.choice([1, 1, 2])) if number % 2 else [chance.choice([1, 2, 3])]
        )
        minutes: Sequence[int] = [chance.choice([0, 0, 30, 15])]
        weekdays: Sequence[int] = range(7) if number % 3 else sorted(chance.sample(range(7), 3))
        days: Sequence[int] = range(1, 32) if number % 5 else [chance.randint(1, 31)]
        if rare and number % 7:
            hours, minutes = [hours[0]], [0]
            weekdays = range(7) if number % 2 else [6, chance.randrange(6)]
            days = sorted(chance.sample(range(1, 32), 2))
        if not isinstance(weekdays, range):
            days = range(1, 32)
        # Sunday is 0 there.
        numbers = weekdays if isinstance(weekdays, range) else [(one + 1) % 7 for one in weekdays]
        fields: list[Sequence[int]] = [minutes, hours, days, range(12), numbers]
        text = " ".join("*" if isinstance(one, range) else ",".join(map(str, one)) for one in fields)
        policy = ("once", "all")[number % 2]
        overlap = ("allow", "skip", "cancel_previous", "enqueue")[number // 2 % 4]
        value = {"name": f"job-{number}", "cron": text, "type": "a.b", "timezone": ZONES[number % len(ZONES)],
                 "missed_policy": policy, "overlap_policy": overlap}  # fmt: skip
        made.append(Plan(msgspec.convert(value, CronJob), hours, minutes, weekdays, days))
    return made


class World:
    """The stream, the queue, the workers, and what ran."""

    def __init__(self, plans: Sequence[Plan], seed: int, start: date, *, cron_fold: type[CronFold] = CronFold) -> None:
        self.chance = random.Random(seed)
        self.stream: list[ReceivedEvent] = []
        self.queue: list[tuple[str, str]] = []
        self.runs: Counter[tuple[str, str]] = Counter()
        self.jobs: dict[str, tuple[str, str]] = {}
        """The cron job and the tick of each job in the queue."""
        self.admits = True
        """A planted fault, if it is False: workers run whatever they find."""
        self.pushes_again = True
        """A planted fault, if it is False: nobody cares for what a killed coordinator has claimed."""
        self.kills = 0
        self.now_ms = _midnight_ms(start) - 86_400_000
        self.keys = [CRON + plan.job.name for plan in plans]
        for plan in plans:
            self.record("boss", plan.job.name, CronRegistered(job=msgspec.to_builtins(plan.job), now_ms=self.now_ms))
        folds: Callable[[], list[FeatureFold]] = lambda: [cron_fold(_is_trusted), ClaimFold(_is_trusted)]  # noqa: E731
        self.coordinators = [VirtualCoordinator(self, folds()) for _ in range(COORDINATORS)]
        for one in self.coordinators:
            one.fold_all()
        self.leader = 0

    def record(self, user: str, subject: str, data: EventData) -> str:
        """Append an event to the stream."""
        # What is read of JSON is dicts and lists.
        fields = msgspec.json.decode(msgspec.json.encode(data))
        event_id = f"evt_{new_id()}"
        kind = EVENT_TYPES[type(data)]
        self.stream.append(ReceivedEvent(event_id, kind, "/test", time_of(self.now_ms), subject, fields, user=user))
        return event_id

    def round(self) -> None:
        """Let everybody do something, in an order of chance."""
        chance = self.chance
        order = chance.sample(self.coordinators, len(self.coordinators))
        for one in order:
            if chance.random() < KILL:
                one.kill()
                self.leader = chance.randrange(COORDINATORS)
            one.fold_some()
            if one is self.coordinators[self.leader] or chance.random() < KILL:
                one.act()
        self.work()
        if chance.random() < KILL:
            self.leader = chance.randrange(COORDINATORS)

    def work(self) -> None:
        """Let a worker take what is in the queue; one that is killed leaves its copy there."""
        chance, left = self.chance, []
        chance.shuffle(self.queue)
        for job_id, copy in self.queue:
            if self.admits and not self._is_admitted(job_id, copy):
                continue
            if chance.random() < KILL:
                # Killed before the handler began.
                left.append((job_id, copy))
                continue
            self.runs[self.jobs[job_id]] += 1
            started = JobStarted(job_type="a.b", queue="default", worker_id="w", attempt=1)
            self.record("worker", job_id, started)
            self.record("worker", job_id, JobCompleted(job_type="a.b", queue="default", duration_ms=1, attempt=1))
        self.queue = left

    def _is_admitted(self, job_id: str, copy: str) -> bool:
        self.record("boss", job_id, ClaimAdmitted(copy=copy, worker_id="w"))
        one = self.chance.choice(self.coordinators)
        one.fold_all()
        found = one.rows.load([key_of(job_id)])
        claim = msgspec.json.decode(next(iter(found.values())).value, type=Claim) if found else None
        return claim is not None and claim.copy == copy


class VirtualCoordinator:
    """One coordinator."""

    def __init__(self, world: World, folds: Sequence[FeatureFold]) -> None:
        self.world = world
        self.rows = MemoryRows(Overflow())
        self._folds = FeatureFolds(folds)
        self._offset = 0
        self._known: dict[str, tuple[bytes, CronRow, int | None]] = {}
        self._begin()

    def _begin(self) -> None:
        """Begin as a new process."""
        self.id = new_id()
        self.skew_ms = self.world.chance.randint(-MAX_SKEW_MS, MAX_SKEW_MS)
        self._tried: set[str] = set()
        self._in_hand: set[str] = set()
        self._copying: dict[str, tuple[str, int]] = {}

    def kill(self) -> None:
        """Forget what is in memory. What was folded is in the database, with the offset."""
        self.world.kills += 1
        self._begin()

    def fold_some(self) -> None:
        """Fold some of what has come, maybe nothing."""
        self._fold(self._offset + self.world.chance.randint(0, len(self.world.stream) - self._offset))

    def fold_all(self) -> None:
        """Fold all that has come."""
        self._fold(len(self.world.stream))

    def _fold(self, end: int) -> None:
        events = self.world.stream[self._offset : end]
        rows = Rows(self.rows.load)
        self._folds.fold_all(rows, events)
        self.rows.change(*rows.changes())
        self._offset = end

    def act(self) -> None:
        """Decide and push as a leader, until a kill."""
        world, chance = self.world, self.world.chance
        for row in self._due_rows():
            for claim in decide(row, world.now_ms + self.skew_ms, self.id):
                if chance.random() < KILL:
                    self.kill()
                    return
                if claim.job_id is not None:
                    world.jobs[claim.job_id] = (row.job.name, claim.key)
                world.record("boss", row.job.name, claim)
        for key, stored in self.rows.marked(PENDING, 1000):
            if not self._push(key.removeprefix("claim/"), msgspec.json.decode(stored.value, type=Claim)):
                self.kill()
                return

    def _push(self, job_id: str, claim: Claim) -> bool:
        """Push a job as `ClaimPusher` does; False if that is when it is killed."""
        world, chance = self.world, self.world.chance
        if job_id in self._in_hand or (claim.by != self.id and not world.pushes_again):
            return True
        if claim.by == self.id and job_id not in self._tried:
            self._tried.add(job_id)
            copy = claim.copies[0]
        elif job_id not in self._copying:
            copy = new_id()
            world.record("boss", job_id, ClaimCopied(copy=copy, by=self.id))
            self._copying[job_id] = copy, len(world.stream)
            return chance.random() >= KILL
        else:
            copy, offset = self._copying[job_id]
            if self._offset < offset:
                return True
            del self._copying[job_id]
        self._in_hand.add(job_id)
        world.queue.append((job_id, copy))
        if chance.random() < 2 * KILL:
            return False
        world.record("boss", job_id, ClaimPushed(copy=copy, by=self.id))
        return True

    def _due_rows(self) -> list[CronRow]:
        """Return the cron jobs that are due by this clock; when they are is remembered, as `CronScheduler` does."""
        now_ms, due = self.world.now_ms + self.skew_ms, []
        for key, stored in self.rows.load(self.world.keys).items():
            known = self._known.get(key)
            if known is None or known[0] is not stored.value:
                row = msgspec.json.decode(stored.value, type=CronRow)
                tick = next_tick(row)
                known = self._known[key] = stored.value, row, None if tick is None else wake_ms(row, tick)
            if known[2] is not None and known[2] <= now_ms:
                due.append(known[1])
        return due


class Outcome(NamedTuple):
    """What came of a simulation: ticks that were expected, those that were missed, and those that ran twice."""

    expected: int
    missed: list[tuple[str, str]]
    twice: list[tuple[str, str]]
    unexpected: list[tuple[str, str]]
    kills: int


def simulate(
    plans: Sequence[Plan],
    seed: int,
    start: date,
    days: int,
    *,
    tell: Callable[[str], None] = lambda _: None,
    plant: Callable[[World], None] = lambda _: None,
    cron_fold: type[CronFold] = CronFold,
) -> Outcome:
    """Run cron jobs for some days, and say what became of each tick."""
    world = World(plans, seed, start, cron_fold=cron_fold)
    plant(world)
    wanted: dict[tuple[str, str], int] = {}
    for plan in plans:
        ticks = plan.ticks(start - timedelta(days=1), start + timedelta(days=days + 1))
        wanted |= {(plan.job.name, key): due_ms for key, due_ms in ticks.items()}
    first_ms, last_ms = world.now_ms, _midnight_ms(start) + days * 86_400_000
    wanted = {tick: due_ms for tick, due_ms in wanted.items() if first_ms < due_ms <= last_ms}
    moments = sorted(set(wanted.values()))
    due = sorted(wanted, key=lambda tick: wanted[tick])
    told = ran = 0
    for number, moment in enumerate(moments):
        # All clocks are past it, but not yet past the next.
        world.now_ms = moment + MAX_SKEW_MS
        while ran < len(due) and wanted[due[ran]] <= moment:
            ran += 1
        for _ in range(MAX_ROUNDS):
            world.round()
            if all(world.runs[tick] for tick in due[told:ran]):
                break
        else:
            break
        told = ran
        world.stream, world.coordinators = _shortened(world)
        if number % 2_000 == 0:
            tell(f"{time_of(moment)[:10]}: {ran} ticks, {world.kills} kills")
    for _ in range(50):
        world.round()
    seen = {tick: count for tick, count in world.runs.items() if count}
    return Outcome(
        len(wanted),
        [tick for tick in due if tick not in seen],
        [tick for tick, count in seen.items() if count > 1],
        [tick for tick in seen if tick not in wanted],
        world.kills,
    )


def _shortened(world: World) -> tuple[list[ReceivedEvent], list[VirtualCoordinator]]:
    """Forget what all have folded: a stream of years would not fit."""
    least = min(one._offset for one in world.coordinators)
    if least > 10_000:
        for one in world.coordinators:
            one._offset -= least
            one._copying = {job_id: (copy, offset - least) for job_id, (copy, offset) in one._copying.items()}
        return world.stream[least:], world.coordinators
    return world.stream, world.coordinators


def _is_trusted(user: str | None) -> bool:
    return user == "boss"


def _midnight_ms(day: date) -> int:
    return int(datetime.combine(day, time(), UTC).timestamp() * 1000)
