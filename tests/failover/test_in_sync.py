"""The replicas in sync: whoever may be elected has everything that was acknowledged."""

from random import Random

from reliable_mq.failover.in_sync import Follower, InSyncReplicas

PATIENCE = 15.0


def followers(**acknowledged: int) -> dict[int, Follower]:
    """Return followers that keep up: `_2=100` is number 2."""
    return {int(name[1:]): Follower(each, caught_up=100.0) for name, each in acknowledged.items()}


def wanted(
    replicas: InSyncReplicas, known: dict[int, Follower], start: int = 0, now: float = 100.0
) -> set[int] | None:
    found = replicas.wanted(known, start, now, PATIENCE)
    return None if found is None else set(found)


def test_a_master_alone_confirms_what_it_has_stored() -> None:
    replicas = InSyncReplicas(1)

    assert replicas.confirm_log({}, 70) == 70
    assert wanted(replicas, {}) is None


def test_a_replica_joins_when_it_has_everything_that_was_acknowledged() -> None:
    replicas = InSyncReplicas(1)
    replicas.confirm_log({}, 100)

    assert wanted(replicas, followers(_2=99)) is None
    assert wanted(replicas, followers(_2=100)) == {1, 2}
    assert wanted(replicas, followers(_2=100), start=101) is None, "it lacks the master's epoch"
    learner = {2: Follower(100, 100.0, is_learner=True)}
    assert wanted(replicas, learner) is None


def test_a_replica_is_waited_for_as_soon_as_the_controller_is_asked() -> None:
    replicas = InSyncReplicas(1)
    replicas.confirm_log({}, 100)
    replicas.ask(frozenset({1, 2}))

    assert replicas.confirm_log(followers(_2=100), 150) == 100
    replicas.refused()
    assert replicas.confirm_log(followers(_2=100), 150) == 100, "the controller's set is not known"
    replicas.confirm({1}, 0)
    assert replicas.confirm_log(followers(_2=100), 150) == 150


def test_a_refusal_ends_no_wait_for_an_earlier_request_whose_answer_was_lost() -> None:
    """The controller refuses the second request because it has taken the first one."""
    replicas = InSyncReplicas(1)
    replicas.confirm_log({}, 100)
    replicas.ask(frozenset({1, 2}))
    replicas.ask(frozenset({1, 2, 3}))
    replicas.refused()

    assert replicas.awaited == {2, 3}
    assert replicas.confirm_log(followers(_2=100, _3=150), 150) == 100
    replicas.confirm({1, 2}, 1)
    assert replicas.awaited == {2}


def test_a_request_whose_answer_was_lost_is_settled_by_another_one() -> None:
    """Else a master would wait for ever for a replica that never joined, and is gone."""
    replicas = InSyncReplicas(1)
    replicas.ask(frozenset({1, 2}))

    assert wanted(replicas, {}) == {1}
    replicas.ask(frozenset({1}))
    replicas.refused()  # the set of the controller is the same
    replicas.confirm({1}, 0)
    assert replicas.awaited == set()
    assert wanted(replicas, {}) is None


def test_nobody_leaves_the_set_before_the_controller_says_so() -> None:
    replicas = InSyncReplicas(1, {1, 2}, 4)
    assert replicas.confirm_log(followers(_2=50), 80) == 50

    assert wanted(replicas, {}) == {1}
    replicas.ask(frozenset({1}))
    assert replicas.confirm_log({}, 80) == 50
    replicas.confirm({1}, 5)
    assert replicas.confirm_log({}, 80) == 80


def test_an_older_answer_of_the_controller_changes_nothing() -> None:
    replicas = InSyncReplicas(1, {1, 2}, 4)
    replicas.ask(frozenset({1}))

    replicas.confirm({1, 2}, 4)  # it was asked before the request
    assert replicas.awaited == {2}
    replicas.confirm({1}, 5)
    replicas.confirm({1, 2}, 4)
    assert replicas.members == {1}


def test_an_unanswered_request_counts_until_a_newer_set_is_known() -> None:
    replicas = InSyncReplicas(1)
    replicas.ask(frozenset({1, 2}))
    replicas.ask(frozenset({1, 3}))

    assert replicas.awaited == {2, 3}
    replicas.invariants()


def test_a_replica_that_lags_for_long_is_left_out() -> None:
    replicas = InSyncReplicas(1, {1, 2})
    follower = Follower(0, caught_up=0.0)
    for second in range(10):  # it is always one second behind
        follower.look(second * 10, second * 10 + 10, float(second))
    assert follower.caught_up == 8.0
    assert wanted(replicas, {2: follower}, now=9.0) is None
    for second in range(10, 40):  # and now it hangs
        follower.look(100, second * 10 + 10, float(second))
    assert wanted(replicas, {2: follower}, now=39.0) == {1}


class Simulated:
    """A master, two replicas that come and go, and a controller that is slow or silent."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.replicas = InSyncReplicas(1)
        self.at_controller, self.epoch = frozenset({1}), 0
        self.logs = {2: 0, 3: 0}
        self.connected: set[int] = set()
        self.on_its_way: tuple[frozenset[int], int] | None = None
        self.end = 0

    @property
    def known(self) -> dict[int, Follower]:
        return {each: Follower(self.logs[each], 100.0) for each in self.connected}

    def step(self) -> None:
        random = self.random
        acts = (self.append, self.connect, self.copy, self.ask, self.apply, self.look)
        random.choice(acts)()
        confirmed = self.replicas.confirm_log(self.known, self.end)
        self.replicas.invariants()
        assert all(self.logs[each] >= confirmed for each in self.at_controller - {1})

    def append(self) -> None:
        self.end += self.random.randrange(50)

    def connect(self) -> None:
        self.connected ^= {self.random.choice((2, 3))}

    def copy(self) -> None:
        for number in self.connected:
            self.logs[number] = self.random.randint(self.logs[number], self.end)

    def ask(self) -> None:
        asked = self.replicas.wanted(self.known, 0, 100.0, PATIENCE)
        if self.on_its_way is None and asked is not None:
            self.replicas.ask(asked)
            self.on_its_way = asked, self.replicas.epoch

    def apply(self) -> None:
        """The controller takes the request if it is of its set; the answer may be lost."""
        if self.on_its_way is not None and self.on_its_way[1] == self.epoch:
            self.at_controller, self.epoch = self.on_its_way[0], self.epoch + 1
            if self.random.random() < 0.6:
                self.look()
        elif self.on_its_way is not None:
            self.replicas.refused()
        self.on_its_way = None

    def look(self) -> None:
        self.replicas.confirm(self.at_controller, self.epoch)


def test_at_every_moment_whoever_may_be_elected_has_what_was_acknowledged() -> None:
    for seed in range(300):
        world = Simulated(seed)
        for _step in range(80):
            world.step()
