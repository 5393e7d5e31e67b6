"""kvplane.v1 over grpcio, with stubs generated from proto/."""

import signal
import threading

import grpc
import pytest

from harness.reference import Copies, Presence
from harness.replica import Replica
from harness.wait import eventually
from harness.wire import NEWEST

V = NEWEST


def root(hash):
    return V.stored([hash], None, [hash % 1000] * 4, 4)


def follows(hash, parent):
    return V.stored([hash], parent, [hash % 1000] * 4, 4)


class Subscriber:
    """A subscription and the replica that it feeds."""

    def __init__(self, channel, pb, **request):
        self.pb = pb
        self.call = pb.PlaneStub(channel).Subscribe(pb.SubscribeRequest(**request), timeout=60)
        self.replica = Replica()
        self.messages = []

    def next(self):
        message = next(self.call)
        self.messages.append(message)
        self.replica.apply(message, self.pb)
        return message

    def until(self, condition):
        """Reads until the replica is as wanted."""
        while not condition(self.replica):
            self.next()
        return self.replica

    def until_at(self, sequence):
        return self.until(lambda r: r.engine_sequence == sequence)

    def kinds(self):
        return [message.WhichOneof("item") for message in self.messages]


@pytest.fixture
def channel():
    made = []

    def make(plane):
        # A small window: a subscriber that does not read is felt by the server soon.
        options = {"grpc.enable_http_proxy": 0, "grpc.http2.bdp_probe": 0, "grpc.http2.lookahead_bytes": 65536}
        made.append(grpc.insecure_channel(plane.grpc, options=list(options.items())))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def subscribe(channel, stubs):
    def make(plane, **request):
        return Subscriber(channel(plane), stubs, **request)

    return make


def test_a_snapshot_and_then_the_tail(engine, plane, subscribe):
    one = engine()
    one.publish(root(1), follows(2, 1))
    one.publish(root(1))
    p = plane(one)
    status = p.wait_at(1)
    s = subscribe(p)
    replica = s.until(lambda r: r.complete)
    assert s.kinds() == ["reset", "snapshot"]
    assert (replica.resets, replica.trust, replica.continuity) == (["START"], "exact", "live")
    assert (replica.engine_sequence, replica.known_from) == (1, 0)
    assert replica.copies == {("device", 0, 1): 2, ("device", 0, 2): 1}
    assert str(replica.sequence) == status["cursor"] and replica.epoch == status["epoch"]
    first, second = (block for stored in s.messages[1].snapshot.stored for block in stored.blocks)
    assert (first.root, first.hash, list(first.token_ids)) == (True, 1, [1] * 4)
    assert (second.root, second.parent) == (False, 1)
    last = one.publish(V.removed([1]), V.removed([1]))
    s.until_at(last)
    batch = s.messages[-1].batch
    assert [block.copies for event in batch.events for block in event.removed.blocks] == [1, 0]
    assert s.replica.copies == {("device", 0, 2): 1}
    assert batch.timestamp > 1_700_000_000


def test_resume_inside_the_window_gets_exactly_what_follows(engine, plane, subscribe, stubs):
    one = engine()
    p = plane(one)
    p.wait_live()
    all_of_it = subscribe(p)
    all_of_it.until(lambda r: r.complete)
    for n in range(12):
        last = one.publish(root(n))
    all_of_it.until_at(last)
    batches = [m for m in all_of_it.messages if m.WhichOneof("item") == "batch"]
    for at in (0, 3, len(batches) - 2):
        cursor = stubs.Cursor(epoch=batches[at].epoch, sequence=batches[at].sequence)
        s = subscribe(p, streams=[stubs.StreamSelector(engine="e0", rank=0, resume=cursor)])
        s.until(lambda r: r.engine_sequence == last)
        assert s.messages == batches[at + 1 :]
    # From the very end: nothing, until there is something.
    cursor = stubs.Cursor(epoch=batches[-1].epoch, sequence=batches[-1].sequence)
    s = subscribe(p, streams=[stubs.StreamSelector(engine="e0", resume=cursor)])
    last = one.publish(root(50))
    message = s.next()
    assert (message.WhichOneof("item"), message.batch.engine_sequence) == ("batch", last)


def test_cursors_that_cannot_be_served(engine, plane, subscribe, stubs):
    one = engine()
    p = plane(one, args=["--set", "journal.max_batches=3"])
    for n in range(10):
        last = one.publish(root(n))
    status = p.wait_at(last)
    epoch, sequence = status["epoch"], int(status["cursor"])
    for cursor, reason in [
        ((epoch - 1, sequence), "OTHER_EPOCH"), ((epoch + 1, sequence), "OTHER_EPOCH"), ((0, 0), "OTHER_EPOCH"),
        ((epoch, sequence - 5), "EXPIRED"), ((epoch, 0), "EXPIRED"),
        ((epoch, sequence + 1), "FUTURE"), ((epoch, 2**64 - 1), "FUTURE"),
    ]:
        resume = stubs.Cursor(epoch=cursor[0], sequence=cursor[1])
        s = subscribe(p, streams=[stubs.StreamSelector(engine="e0", resume=resume)])
        replica = s.until(lambda r: r.complete)
        assert replica.resets == [reason], cursor
        assert s.kinds() == ["reset", "snapshot"]
        assert {hash for _, _, hash in replica.copies} == set(range(10))
        s.call.cancel()


def test_live_only(engine, plane, subscribe, stubs):
    one = engine()
    one.publish(root(1))
    p = plane(one)
    p.wait_at(0)
    s = subscribe(p, start=stubs.START_LIVE)
    witness = subscribe(p)
    witness.until(lambda r: r.complete)
    # Nothing says when a live subscription has begun: publish until it hears something.
    heard = threading.Event()
    reader = threading.Thread(target=lambda: (s.next(), heard.set()), daemon=True)
    reader.start()
    def publish():
        witness.until_at(one.publish(root(2)))
        return heard.is_set()
    eventually(publish, "something live")
    (message,) = s.messages
    assert message.WhichOneof("item") == "batch" and message.batch.engine_sequence >= 1


def test_a_subscription_survives_a_restart_of_the_engine(engine, plane, subscribe):
    one = engine()
    p = plane(one)
    s = subscribe(p)
    one.publish(root(1), root(2))
    s.until_at(0)
    epoch = s.replica.epoch
    one = engine.keep(one.restarted(before=[[root(n)] for n in range(2, 8)]))
    s.until(lambda r: r.epoch > epoch and r.engine_sequence == 5 and r.continuity == "live")
    assert s.replica.resets[0] == "START"
    assert set(s.replica.resets[1:]) == {"NEW_EPOCH"}
    assert (s.replica.trust, {hash for _, _, hash in s.replica.copies}) == ("exact", set(range(2, 8)))
    last = one.publish(root(9))
    s.until_at(last)
    assert ("device", 0, 9) in s.replica.copies
    epochs = [message.epoch for message in s.messages]
    assert epochs == sorted(epochs), "nothing of an old life after the new one began"


def test_a_reconnect_is_no_reset(engine, plane, subscribe):
    one = engine()
    p = plane(one)
    s = subscribe(p)
    one.publish(root(1))
    s.until_at(0)
    one.reconnect(while_away=lambda: one.record(root(2)))
    s.until_at(1)
    assert s.replica.resets == ["START"]
    assert ("device", 0, 1) in s.replica.copies and ("device", 0, 2) in s.replica.copies


def test_a_loss_is_an_event_of_its_own(engine, plane, subscribe):
    one = engine()
    p = plane(one)
    s = subscribe(p)
    one.publish(root(1), follows(2, 1))
    s.until_at(0)
    one.publish(V.removed([1]), live=False, ring=False)
    last = one.publish(root(3))
    s.until_at(last)
    dropped = [e.dropped.reason for m in s.messages for e in m.batch.events if e.WhichOneof("kind") == "dropped"]
    assert dropped == ["gap"]
    assert (s.replica.trust, set(s.replica.copies)) == ("lower", {("device", 0, 3)})
    assert s.replica.resets == ["START"], "the epoch goes on"
    # What a later store proves is told as such.
    last = one.publish(follows(4, 2))
    s.until_at(last)
    proven = [b.hash for e in s.messages[-1].batch.events if e.stored.cause == 1 for b in e.stored.blocks]
    assert proven == [1, 2]


def test_large_states_come_in_chunks_parents_first(engine, plane, subscribe):
    one = engine()
    p = plane(one)
    copies, chains = Copies(), 40
    for chain in range(chains):
        hashes = [chain * 1_000_000 + n for n in range(1, 801)]
        event = V.stored(hashes, None, [n % 997 for n in range(len(hashes) * 16)], 16)
        copies.apply([event])
        last = one.publish(event)
    p.wait_at(last)
    s = subscribe(p)
    s.until(lambda r: r.complete)
    chunks = [m.snapshot for m in s.messages if m.WhichOneof("item") == "snapshot"]
    assert len(chunks) > 1
    assert [c.index for c in chunks] == list(range(len(chunks)))
    assert [c.last for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(m.ByteSize() < 2 << 20 for m in s.messages)
    seen = set()
    for chunk in chunks:
        for stored in chunk.stored:
            for block in stored.blocks:
                assert block.root or block.parent in seen
                seen.add(block.hash)
    assert s.replica.copies == copies.as_dict()


def test_snapshots_while_everything_moves(engine, plane, subscribe):
    """Subscribers that join at any moment end with the same state."""
    one = engine()
    p = plane(one)
    copies, subscribers = Copies(), []
    for n in range(300):
        events = [root(n), follows(10_000 + n, n)]
        if n > 100:
            events += [V.removed([10_000 + n - 100]), V.removed([n - 100])]
        copies.apply(events)
        last = one.publish(*events)
        if n % 30 == 0:
            subscribers.append(subscribe(p))
    for s in subscribers:
        s.until_at(last)
        assert s.replica.copies == copies.as_dict()
        assert s.replica.resets == ["START"]


def test_a_subscriber_that_does_not_read_hurts_only_itself(engine, plane, subscribe):
    one = engine()
    p = plane(one, args=["--set", "journal.max_batches=50"])
    fast, slow = subscribe(p), subscribe(p)
    fast.until(lambda r: r.complete)
    slow.until(lambda r: r.complete)
    tokens = list(range(70_000, 86_000))
    for n in range(400):
        last = one.publish(V.stored([n], None, tokens, 16_000))
        fast.until_at(last)
    with pytest.raises(grpc.RpcError) as lost:
        slow.until_at(last)
    assert lost.value.code() == grpc.StatusCode.DATA_LOSS
    assert fast.replica.resets == ["START"] and fast.replica.engine_sequence == last


@pytest.mark.parametrize("loss", [True, False], ids=["dropped", "changed"])
def test_a_stalled_snapshot_is_not_given_to_others(engine, plane, subscribe, loss):
    one = engine()
    p = plane(one)
    for chain in range(40):
        hashes = [chain * 1_000_000 + n for n in range(1, 801)]
        last = one.publish(V.stored(hashes, None, [70_000 + n for n in range(len(hashes) * 16)], 16))
    p.wait_at(last)
    stalled = subscribe(p)
    stalled.next()
    stalled.next()
    # Everything goes: because it was lost and dropped, or because the engine said so.
    if loss:
        one.publish(V.removed([1]), live=False, ring=False)
    else:
        one.publish(V.cleared())
    last = one.publish(root(5))
    assert p.wait_at(last)["blocks"]["device"] == 1
    presence = Presence()
    presence.catch_up(p)
    assert presence.device() == {5}, "a dump shows what is no longer held"
    assert p.held() == {5}


def test_all_streams_of_all_engines(engine, plane, subscribe, stubs):
    a, b = engine(), engine()
    a.publish(root(1))
    b.publish(root(2))
    p = plane(a, b)
    p.wait_at(0, "e0")
    p.wait_at(0, "e1")
    call = subscribe(p).call
    replicas = {"e0": Replica(), "e1": Replica()}
    while not all(r.complete for r in replicas.values()):
        message = next(call)
        assert message.rank == 0
        replicas[message.engine].apply(message, stubs)
    assert [set(r.copies) for r in replicas.values()] == [{("device", 0, 1)}, {("device", 0, 2)}]
    a.publish(root(3))
    while replicas["e0"].engine_sequence != 1:
        message = next(call)
        replicas[message.engine].apply(message, stubs)


def test_requests_that_make_no_sense(engine, plane, subscribe, stubs):
    one = engine()
    p = plane(one, ranks=2)
    select = stubs.StreamSelector
    cursor = stubs.Cursor(epoch=1, sequence=1)
    for streams, code, words in [
        ([select(engine="nobody")], grpc.StatusCode.NOT_FOUND, "e0"),
        ([select(engine="")], grpc.StatusCode.NOT_FOUND, "e0"),
        ([select(engine="e0", rank=2)], grpc.StatusCode.NOT_FOUND, "rank 2"),
        ([select(engine="e0", rank=0), select(engine="e0")], grpc.StatusCode.INVALID_ARGUMENT, "twice"),
        ([select(engine="e0", resume=cursor)], grpc.StatusCode.INVALID_ARGUMENT, "rank"),
    ]:
        with pytest.raises(grpc.RpcError) as refused:
            next(subscribe(p, streams=streams).call)
        assert refused.value.code() == code
        assert words in refused.value.details()


def test_status_says_what_http_says(engine, plane, channel, stubs):
    one = engine()
    p = plane(one, model="llama")
    one.publish(root(1))
    told = p.wait_at(0)
    stub = stubs.PlaneStub(channel(p))
    (answer,) = stub.Status(stubs.StatusRequest(engine="e0"), timeout=10).engines
    assert (answer.id, answer.kind, answer.model) == ("e0", "vllm", "llama")
    (rank,) = answer.ranks
    assert rank.continuity == stubs.CONTINUITY_LIVE and rank.trust.level == stubs.TRUST_LEVEL_EXACT
    assert (rank.cursor.epoch, str(rank.cursor.sequence)) == (told["epoch"], told["cursor"])
    assert (rank.engine_sequence, rank.known_from, rank.block_size) == (0, 0, 4)
    assert {tier: n for tier, n in rank.blocks.items() if n} == {"device": 1}
    with pytest.raises(grpc.RpcError) as refused:
        stub.Status(stubs.StatusRequest(engine="x"), timeout=10)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND


def test_health_and_reflection(engine, plane, channel):
    one = engine()
    c = channel(plane(one))
    check = c.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"", timeout=10) == b"\x08\x01", "SERVING"
    reflect = c.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    listed = next(reflect(iter([b"\x3a\x00"]), timeout=10))
    assert b"kvplane.v1.Plane" in listed
    with pytest.raises(grpc.RpcError) as unknown:
        c.unary_unary("/kvplane.v1.Plane/Nothing")(b"", timeout=10)
    assert unknown.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_subscriptions_and_exits_zero(engine, plane, subscribe, how):
    one = engine()
    p = plane(one)
    one.publish(root(1))
    subscribers = [subscribe(p) for _ in range(3)]
    for s in subscribers:
        s.until_at(0)
    p.process.send_signal(how)
    for s in subscribers:
        with pytest.raises(grpc.RpcError) as ended:
            while True:
                s.next()
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "shutting down" in ended.value.details()
    assert p.process.wait(timeout=10) == 0


def test_a_stop_with_a_subscriber_that_does_not_read(engine, plane, subscribe):
    one = engine()
    p = plane(one, args=["--drain-timeout", "2s"])
    s = subscribe(p)
    s.until(lambda r: r.complete)
    tokens = list(range(70_000, 86_000))
    for n in range(200):
        last = one.publish(V.stored([n], None, tokens, 16_000))
    p.wait_at(last)
    assert p.stop() == 0


def test_a_restart_of_kvplane_makes_cursors_foreign(engine, plane, subscribe, stubs):
    one = engine()
    one.publish(root(1))
    first = plane(one)
    first.wait_at(0)
    s = subscribe(first)
    s.until(lambda r: r.complete)
    cursor = stubs.Cursor(epoch=s.replica.epoch, sequence=s.replica.sequence)
    assert first.stop() == 0
    last = one.publish(root(2))
    second = plane(one)
    second.wait_at(last)
    s = subscribe(second, streams=[stubs.StreamSelector(engine="e0", resume=cursor)])
    s.until(lambda r: r.complete)
    assert s.replica.resets == ["OTHER_EPOCH"]
    assert set(s.replica.copies) == {("device", 0, 1), ("device", 0, 2)}
    eventually(lambda: second.status()["trust"] == "exact", "exact")
